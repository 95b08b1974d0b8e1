// Numbers to try kernels on, and whether they gave the same bits.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Random numbers in [-scale, scale).
void fill_random(CudaStream&, Tensor, uint32_t seed, float scale);
// Random numbers in [-1, 1), of which each row has every one twice, the second time multiplied by
// `sign`. The rows of one such matrix by those of another with the other sign cancel: their product
// is 0 but for rounding.
void fill_cancelling(CudaStream&, Tensor, uint32_t seed, float sign);

// Whether tensors differ in any bit.
class Differences {
 public:
  explicit Differences(CudaStream&);
  ~Differences();
  Differences(const Differences&) = delete;
  void add(const Tensor& a, const Tensor& b);  // as many bytes as b has
  bool any();                                  // waits for the card

 private:
  CudaStream& stream_;
  uint32_t* found_;
};

}  // namespace hearth::cuda
