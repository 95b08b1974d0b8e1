// Test data for choosing kernels, and a bitwise comparison of their results.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

// Random values in [-scale, scale).
void fill_random(CudaStream&, Tensor, uint32_t seed, float scale);
// Random values in [-1, 1); the second half of each row repeats the first, multiplied by `sign`.
// The product of two such matrices with opposite signs cancels: it is 0 except for rounding.
void fill_cancelling(CudaStream&, Tensor, uint32_t seed, float sign);
// 0, but the first number of row i is random number i of the seed, times `scale`; with seed 0 it is
// `scale`. The product of two such matrices is exact.
void fill_first_column(CudaStream&, Tensor, uint32_t seed, float scale);
// Random number j of the seed, times `scale`, in column j of every row.
void fill_columns(CudaStream&, Tensor, uint32_t seed, float scale);

// What a product adds besides a sum over k: numbers that tell one order of these additions from the
// others, whatever the order of the sum is. In 16 bits most results differ.
enum class Addends : uint8_t {
  first,   // from the others: (bias + prior) + product
  second,  // from the others: (product + bias) + prior
};
struct AddendTensors {
  Tensor a, b, bias, prior;  // a (M, K), b (N, K), bias (N), prior (M, N)
};
void fill_addends(CudaStream&, Addends, const AddendTensors&);

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
