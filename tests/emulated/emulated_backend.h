// A CPU backend that fuses decode steps as the CUDA backend does, and runs them on the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/persistent/block.cuh"
#include "cuda/persistent/recorder.h"
#include "unit/wrapped_backend.h"

namespace hearth::emulated {

struct EmulatedSpec {
  int blocks = 2;
  int64_t ring_bytes = 0;  // 0: what is left of a multiprocessor's memory
  bool fuses = true, joins_norms = true;
  uint64_t seed = 1;
  uint32_t number = 1;  // of the first phase
};

// Draws the likeliest tokens, as the sampling kernel does at temperature 0.
inline void sample_likeliest(Stream&, const SampleArgs& a) {
  for (int64_t n = 0; n < a.logits.rows(); ++n) {
    const float* const row = a.logits.as<const float>() + n * a.logits.cols();
    const auto best = int32_t(std::max_element(row, row + a.drawable) - row);
    double sum = 0;
    for (int64_t i = 0; i < a.vocab; ++i) sum += std::exp(double(row[i]) - double(row[best]));
    const auto logprob = float(-std::log(sum));
    a.drawn.as<Drawn>()[n] = {best, logprob, best, logprob};
    if (a.tokens) a.tokens.as<int32_t>()[n] = best;
  }
}

class EmulatedStep final : public Replay {
 public:
  EmulatedStep(cuda::persistent::StepPlan plan, const EmulatedSpec& spec, int& runs)
      : plan_(std::move(plan)), spec_(spec), wires_(size_t(plan_.packets)), runs_(runs) {
    if (spec.ring_bytes) plan_.step.layout.ring_bytes = int32_t(spec.ring_bytes);
    plan_.step.phases = plan_.phases.data(), plan_.step.wires = wires_.data();
    plan_.step.number = spec.number;
  }
  void run() override {
    const GridSpec grid{.blocks = spec_.blocks,
                        .threads = cuda::persistent::block_threads,
                        .shared_bytes = plan_.step.layout.bytes(),
                        .seed = spec_.seed++};
    run_grid(grid, [&](unsigned char* memory) { run_block(plan_.step, memory); });
    plan_.step.number += uint32_t(plan_.step.count);
    Stream none;
    if (plan_.sample) sample_likeliest(none, *plan_.sample);
    ++runs_;
  }

 private:
  cuda::persistent::StepPlan plan_;
  EmulatedSpec spec_;
  std::vector<uint64_t> wires_;
  int& runs_;
};

class EmulatedBackend final : public WrappedBackend {
 public:
  explicit EmulatedBackend(const EmulatedSpec& spec = {}) : spec_(spec) {
    kernels_ = WrappedBackend::kernels();
    kernels_.sample = sample_likeliest;
    if (!spec.fuses || !spec.joins_norms) return;
    kernels_.norm_gemm = [](Stream&, const NormGemmArgs&) {};  // recorded only
    kernels_.norm_gemm_takes = [](Stream&, int64_t, int64_t, int64_t, DType) { return true; };
  }
  const Kernels& kernels() const override { return kernels_; }
  std::unique_ptr<Replay> fuse(const LaunchOn& launch) override {
    if (!spec_.fuses) return {};
    cuda::persistent::Recorder recorder(
        {.blocks = spec_.blocks,
         .shared_bytes = shared_bytes,
         .control_bytes = int64_t(sizeof(cuda::persistent::Control))});
    launch(cuda::persistent::Recorder::kernels(), recorder);
    plan = recorder.finish();
    refusal = recorder.refusal();
    if (!plan) return {};
    return std::make_unique<EmulatedStep>(*plan, spec_, runs);
  }

  static constexpr int64_t shared_bytes = 227 << 10;
  std::optional<cuda::persistent::StepPlan> plan;  // of the last program
  std::string refusal;
  int runs = 0;  // of fused steps

 private:
  EmulatedSpec spec_;
  Kernels kernels_;
};

}  // namespace hearth::emulated
