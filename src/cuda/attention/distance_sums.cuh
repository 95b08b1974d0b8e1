// Sums of the gradients of scores by distance, for the gradient of a bias: one thread adds each
// diagonal of a tile in order, so no sum depends on the order in which threads run.
#pragma once

#include <cstdint>

namespace hearth::cuda {

// All threads of a block call every function together.
class DistanceSums {
 public:
  // `sums` (distances) is shared memory, which the first __syncthreads() makes visible.
  __device__ DistanceSums(float* sums, int distances) : sums_(sums), last_(distances - 1) {
    for (int i = int(threadIdx.x); i <= last_; i += int(blockDim.x)) sums_[i] = 0;
  }
  // Adds a tile of gradients in shared memory: at(i, j) of query i and key j. `away`: the first
  // query minus the first key. The caller synchronises before and after.
  template <int Queries, int Keys, class At>
  __device__ void add(int away, const At& at) {
    const int along = int(threadIdx.x) - (Keys - 1);  // of this thread's diagonal: query minus key
    if (along >= Queries) return;
    float sum = 0;
    for (int j = max(0, -along); j < min(Keys, Queries - along); ++j) sum += at(j + along, j);
    if (away + along >= last_)
      far_ += sum;
    else if (away + along >= 0)
      sums_[away + along] += sum;
  }
  // Writes the sums of all tiles to `to` (distances). `room`: shared memory for a float per thread,
  // which nobody reads or writes any more.
  __device__ void store(float* to, float* room) {
    room[threadIdx.x] = far_;
    __syncthreads();
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int i = 0; i < int(blockDim.x); ++i) sum += room[i];
      sums_[last_] = sum;
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i <= last_; i += int(blockDim.x)) to[i] = sums_[i];
  }

 private:
  float* sums_;
  int last_;
  float far_ = 0;  // of the distances that share the last entry
};

}  // namespace hearth::cuda
