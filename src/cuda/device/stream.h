// Stream of CUDA: the queue kernels are launched on, the card's properties, and memory they may use
// while they run. Also the checks every launch goes through.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/kernels.h"

namespace hearth::cuda {

class OffloadLanes;  // copies to and from the host's memory beside a kernel
class Gemms;         // cuBLASLt, its plans and their tuning

struct Card {
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int processors = 0;        // streaming multiprocessors
  int64_t shared_bytes = 0;  // most shared memory a block may ask for
  int64_t l2_bytes = 0;
  bool hopper() const { return major == 9; }
};

// Memory of one card, counted.
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
  bool hopper_kernels = true;    // false: the mma.sync kernels even where wgmma would run
  bool some_rows = false;        // products of 17 to 64 rows by a kernel of our own
  bool dependent_launch = true;  // kernels may start before those ahead of them have ended
  bool invariant = false;        // rows of a forward pass have the same bits in any batch
  bool racecheck = false;        // barriers as compute-sanitizer's racecheck can follow them
  DeviceMemory& memory;

  // Memory for the kernel being launched, good until the next one asks. Grows on first use, so a
  // program runs once before it is captured.
  void* scratch(int64_t bytes);
  // Memory full of zeros, for kernels that leave it so. Grows as the scratch does.
  void* zeros(int64_t bytes);
  void captured();  // some graph now holds the addresses of both
  // Whether this kernel may start before the one ahead of it has ended (dependent_launch.cuh). The
  // first call for a kernel prepares it for that.
  bool prepare_dependent(const void* kernel);
  OffloadLanes& offload_lanes();  // made when first asked for

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
    bool held = false;  // by some graph
  };
  void* grown(Block&, int64_t bytes);

  Block scratch_, zeros_;
  std::vector<Block> retired_;  // what some graph still works with
  std::unique_ptr<OffloadLanes> offload_lanes_;
  std::unordered_map<const void*, bool> dependent_kernels_;
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
