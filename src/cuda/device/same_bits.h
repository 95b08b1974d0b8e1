// Test data for choosing kernels, and a bitwise comparison of their results.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Random values in [-scale, scale).
void fill_random(CudaStream&, Tensor, uint32_t seed, float scale);
// Random values in [-1, 1); the second half of each row repeats the first, multiplied by `sign`.
// The product of two such matrices with opposite signs cancels: it is 0 except for rounding.
void fill_cancelling(CudaStream&, Tensor, uint32_t seed, float sign);

// Whether tensors differ in any bit.
class Differences {
 public:
  explicit Differences(CudaStream&);
  ~Differences();
  Differences(const Differences&) = delete;
  void add(const Tensor& a, const Tensor& b);  // compares as many bytes as b has
  bool any();                                  // waits for the GPU

 private:
  CudaStream& stream_;
  uint32_t* found_;
};

}  // namespace hearth::cuda
