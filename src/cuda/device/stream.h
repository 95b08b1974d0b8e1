// The CUDA Stream: the queue kernels are launched on, the properties of the GPU, and scratch memory
// for kernels. Also the error checks that every launch uses.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/kernels.h"

namespace hearth::cuda {

class OffloadLanes;  // copies to and from host memory, overlapped with a kernel
class Gemms;         // matrix products by cuBLASLt and their tuning

struct Card {
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // streaming multiprocessors
  int64_t shared_bytes = 0;  // maximum shared memory per block
  int64_t l2_bytes = 0;
  bool hopper() const { return major == 9; }
  // Fewer blocks leave processors idle, so decoding then splits the keys of a row.
  int64_t enough_blocks() const { return 2 * processors; }
};

// Device memory of one GPU, with accounting.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t limit) : limit_(limit) {}
  void* allocate(int64_t bytes, const std::string& what);  // not zeroed
  void release(void*, int64_t bytes);
  int64_t free_bytes() const;
  int64_t used_bytes() const { return used_; }
  int64_t peak_bytes() const { return peak_; }

 private:
  int64_t limit_, used_ = 0, peak_ = 0;
};

struct CudaStream : Stream {
  explicit CudaStream(DeviceMemory&);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;

  cudaStream_t handle = nullptr;
  Card card;
  Gemms* gemms = nullptr;
  bool hopper_kernels = true;  // false: use the mma.sync kernels even where wgmma would run
  bool some_rows = false;      // use gemm_rows64 for products of 17 to 64 rows
  int own_products =
      -1;  // use this variant of gemm_hopper for every product it takes, without timing
  bool dependent_launch = true;  // use programmatic dependent launch
  bool invariant = false;        // batch-invariant mode (CudaSpec::batch_invariant)
  bool racecheck = false;        // barriers that compute-sanitizer's racecheck can follow
  DeviceMemory& memory;

  // Scratch for the kernel being launched, valid until the next call. It grows on first use, so a
  // program must run once before it is captured.
  void* scratch(int64_t bytes);
  // Zeroed memory, for kernels that leave it zeroed. Grows like scratch().
  void* zeros(int64_t bytes);
  void captured();  // a graph now holds the addresses of both blocks
  // Whether this kernel may use programmatic dependent launch (dependent_launch.cuh). The first
  // call for a kernel prepares it.
  bool prepare_dependent(const void* kernel);
  OffloadLanes& offload_lanes();  // created on first use

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
    bool held = false;  // by a graph
  };
  void* grown(Block&, int64_t bytes);

  Block scratch_, zeros_;
  std::vector<Block> retired_;  // outgrown blocks whose addresses graphs still hold
  std::unique_ptr<OffloadLanes> offload_lanes_;
  std::unordered_map<const void*, bool> dependent_kernels_;
};

inline CudaStream& on(Stream& s) { return static_cast<CudaStream&>(s); }

// Throws `[cuda] expected <what> to work, got <CUDA's message>`.
void check(cudaError_t, const char* what);
// Throws if the launch just made was not accepted.
void check_launch(const char* kernel);
// Throw `[cuda <op>] expected .., got ..`.
[[noreturn]] void refuse_dtype(const char* op, DType);
[[noreturn]] void refuse_dtypes(const char* op, DType, DType);

}  // namespace hearth::cuda
