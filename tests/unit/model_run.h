// Runs a whole model: logits of given tokens on a chosen backend, and every node's outputs.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/exec.h"
#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "model/decoder.h"
#include "model/files/folder.h"

namespace hearth::test {

struct BackendCase {
  const char* name;
  std::function<std::unique_ptr<Backend>()> make;
  DType dtype;
};

// The backends that real models are tested on.
inline std::vector<BackendCase> backend_cases() {
  return {{"reference f32", make_reference_backend, DType::f32},
          {"reference f64", make_reference_backend, DType::f64},
          {"cpu f32", [] { return make_cpu_backend(2); }, DType::f32}};
}

inline std::vector<float> floats_of(Backend& b, const Tensor& t) {
  std::vector<float> out(size_t(t.numel()));
  if (t.dtype == DType::f32) {
    b.download(out.data(), t.data, t.bytes());
  } else if (t.dtype == DType::f64) {
    std::vector<double> wide(out.size());
    b.download(wide.data(), t.data, t.bytes());
    std::copy(wide.begin(), wide.end(), out.begin());
  } else {
    throw std::runtime_error("floats_of reads f32 and f64");
  }
  return out;
}

// The weights of a model on their own backend.
struct LoadedModel {
  LoadedModel(const ModelSource& source, const BackendCase& where)
      : config(source.config()),
        backend(where.make()),
        params(*backend, decoder_params(config), where.dtype),
        memory(*backend, &params) {
    source.load(params);
  }
  LoadedModel(const LoadedModel&) = delete;

  std::vector<float> weights(const std::string& name) { return params.values(Part::weight, name); }

  ModelConfig config;
  std::unique_ptr<Backend> backend;
  ParamStore params;
  Memory memory;
};

// Logits (B, T, V) of tokens (B, T); recorded once per shape.
class LogitsProgram {
 public:
  LogitsProgram(LoadedModel& m, int64_t B, int64_t T)
      : model_(m), name_("plain"), exec_(record(B, T), m.memory) {}

  std::vector<float> run(
      const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
      const Exec::Observer& observe = [](const Node&, auto) {}) {
    model_.memory.state.write<int32_t>(name_ + ".tokens", tokens);
    model_.memory.state.write<int32_t>(name_ + ".positions", positions);
    exec_.run(observe);
    return floats_of(*model_.backend, model_.memory.state.find(name_ + ".logits"));
  }

 private:
  Tape record(int64_t B, int64_t T) {
    Tape t(model_.params.dtype(), name_);
    const Var x = decoder(t, model_.config, declare_inputs(t, B, T, false), {});
    const Var y = linear(t, x, head_weight(t, model_.config));
    const Var logits = t.result("logits", t.shape(y), t.dtype());
    t.push(kernel_op<&Kernels::copy>(
               "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); }),
           {y}, {logits});
    return t;
  }

  LoadedModel& model_;
  std::string name_;
  Exec exec_;
};

}  // namespace hearth::test
