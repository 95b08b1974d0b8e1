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
  void run(Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior, const GemmSpec&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Entries of the table.
void gemm(Stream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
          const GemmSpec&);
bool norm_gemm_takes(Stream&, int64_t rows, int64_t width, int64_t columns, DType);
void norm_gemm(Stream&, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b, Tensor bias,
               Tensor prior, const NormSpec&, const GemmSpec&);

// What a product without a fused epilogue leaves to do, over n elements of one dtype:
// c = alpha * act(x) + prior, or with slope c = alpha * x * act'(aux) + prior. c may be any of
// them.
void gemm_epilogue(CudaStream&, Tensor c, Tensor x, Tensor aux, Tensor prior, float alpha, Act,
                   bool slope);

}  // namespace hearth::cuda
