// Matrix products. Each new shape of a cuBLASLt product is timed once, over the algorithms the
// library proposes and its fused epilogues against our own kernels. The choice is kept on disk.
#pragma once

#include <memory>
#include <string>

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct GemmsSpec {
  bool tf32 = false;
  std::string card;  // the GPU's name: choices are kept per GPU
};

class Gemms {
 public:
  Gemms(CudaStream&, const GemmsSpec&);
  ~Gemms();
  void run(const GemmArgs&);
  // Also computes the column sums of c.
  void run(const GemmArgs&, const ColumnSumArgs&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Entries of the kernel table.
void gemm(Stream&, const GemmArgs&);
void gemm_sums(Stream&, const GemmArgs&, const ColumnSumArgs&);
bool norm_gemm_takes(Stream&, int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm(Stream&, const NormGemmArgs&);

// The product of a norm_gemm; its `a` is not yet normalised.
inline GemmArgs product_of(const NormGemmArgs& args) {
  return {.c = args.c,
          .a = args.x,
          .b = args.b,
          .bias = args.bias,
          .prior = args.prior,
          .spec = args.gemm};
}

// The rest of a product x computed without a fused epilogue: c = alpha * act(x) + prior, or with
// act_slope c = alpha * x * act'(aux) + prior. All have the dtype of c; c may alias any input.
void gemm_epilogue(CudaStream&, const GemmArgs&, Tensor x);

}  // namespace hearth::cuda
