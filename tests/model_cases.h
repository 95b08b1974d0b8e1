// Small models that together cover every choice of a config, and one training pass over them whose
// loss and gradients can be read in double.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/decoder.h"
#include "op_cases.h"

namespace hearth::cases {

struct ModelCase {
  std::string name;
  ModelConfig config;
  bool documents = false;
};

// Whether rounding may change which experts a token has, and with them the result.
inline bool chooses_experts(const ModelCase& m) {
  return m.config.moe.top_k < m.config.moe.experts;
}

// Elements of a parameter that a token passes through: of experts only those chosen for it.
inline int64_t active_size(const ModelConfig& c, const ParamSpec& p) {
  const bool routed = p.name.find(".experts.") != p.name.npos;
  return routed ? p.shape.numel() / c.moe.experts * c.moe.top_k : p.shape.numel();
}

inline void PrintTo(const ModelCase& m, std::ostream* out) { *out << m.name; }

const std::vector<ModelCase>& model_cases();

// Random-looking tokens with every fifth target masked; with documents, of uneven lengths.
Batch make_batch(const ModelConfig&, int64_t B, int64_t T, bool documents, int32_t salt = 0);

struct ModelRunSpec {
  DType dtype = DType::f32;
  int64_t B = 2, T = 6;
  Recompute recompute = Recompute::none;
  bool dropout = true;
  float shift = 0.2f;    // half width of the noise added to every weight
  float loss_scale = 1;  // divided out of the gradients that are read
};

// Weights are larger than at a real start and no vector is constant, so no gradient is trivial.
class ModelRun {
 public:
  ModelRun(Backend&, const ModelCase&, const ModelRunSpec&);
  void feed(const Batch&);
  void run();
  double loss();  // the sum of the terms times their weights
  Numbers nll();  // per token
  Named gradient(const std::string& param);
  std::vector<Named> gradients();         // of the trained parameters, in the order of specs()
  std::vector<Named> joined_gradients();  // the same, with_numbers_joined()

  ParamStore& params() { return params_; }
  Memory& memory() { return memory_; }

 private:
  Backend& backend_;
  ParamStore params_;
  Memory memory_;
  float loss_scale_;
  std::vector<LossTerm> terms_;
  std::unique_ptr<Exec> exec_;
};

}  // namespace hearth::cases
