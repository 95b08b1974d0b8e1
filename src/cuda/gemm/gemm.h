// Matrix products through cuBLASLt. Every new shape is timed once, over the algorithms the library
// proposes and over its fused epilogues against kernels of our own, and the choice is kept on disk.
#pragma once

#include <memory>
#include <string>

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct GemmsSpec {
  bool tf32 = false;
  std::string card;  // its name: choices are kept per card
};

class Gemms {
 public:
  Gemms(CudaStream&, const GemmsSpec&);
  ~Gemms();
  void run(const GemmArgs&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Entries of the table.
void gemm(Stream&, const GemmArgs&);
bool norm_gemm_takes(Stream&, int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm(Stream&, const NormGemmArgs&);

// The product of a norm_gemm, whose a has still to be normed.
inline GemmArgs product_of(const NormGemmArgs& args) {
  return {.c = args.c,
          .a = args.x,
          .b = args.b,
          .bias = args.bias,
          .prior = args.prior,
          .spec = args.gemm};
}

// What a product x without a fused epilogue leaves to do: c = alpha * act(x) + prior, or with
// act_slope c = alpha * x * act'(aux) + prior. All have the dtype of c; c may be the memory of any.
void gemm_epilogue(CudaStream&, const GemmArgs&, Tensor x);

}  // namespace hearth::cuda
