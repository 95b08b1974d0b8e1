// Stream of CUDA: the queue kernels are launched on, the card's properties, and memory they may use
// while they run. Also the checks every launch goes through.
#pragma once

#include <cuda_runtime_api.h>

#include "core/kernels.h"

namespace hearth::cuda {

struct Gemms;  // cuBLASLt, its plans and their tuning

struct Card {
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // streaming multiprocessors
  int64_t shared_bytes = 0;  // most shared memory a block may ask for
  int64_t l2_bytes = 0;
  bool hopper() const { return major == 9; }
};

struct CudaStream : Stream {
  cudaStream_t handle = nullptr;
  Card card;
  Gemms* gemms = nullptr;
  bool hopper_kernels = true;  // false: the mma.sync kernels even where wgmma would run

  // Memory for the kernel being launched, good until the next one asks. Grows on first use, so a
  // program runs once before it is captured.
  void* scratch(int64_t bytes);

  void* scratch_data = nullptr;
  int64_t scratch_bytes = 0;
};

inline CudaStream& on(Stream& s) { return static_cast<CudaStream&>(s); }

// Throws `[cuda] expected <what> to work, got <CUDA's words>`.
void check(cudaError_t, const char* what);
// After a launch: was it accepted?
void check_launch(const char* kernel);
// Throw `[cuda <op>] expected .., got ..`.
[[noreturn]] void refuse_dtype(const char* op, DType);
[[noreturn]] void refuse_dtypes(const char* op, DType, DType);

}  // namespace hearth::cuda
