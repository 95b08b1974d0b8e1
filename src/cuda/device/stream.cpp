#include "cuda/device/stream.h"

#include <algorithm>
#include <limits>

#include "cuda/device/host_offload.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

constexpr int64_t mib = 1 << 20;

}  // namespace

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess)
    fail("cuda", "expected {} to work, got {}: {}", what, cudaGetErrorName(e),
         cudaGetErrorString(e));
}

void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

void refuse_dtype(const char* op, DType d) {
  fail(fmt::format("cuda {}", op), "expected f32, bf16 or f16, got {}", to_string(d));
}
void refuse_dtypes(const char* op, DType want, DType got) {
  fail(fmt::format("cuda {}", op), "expected {}, got {}", to_string(want), to_string(got));
}

int64_t DeviceMemory::free_bytes() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  const int64_t left = limit_ ? std::max<int64_t>(0, limit_ - used_) : int64_t(free);
  return std::min(left, int64_t(free));
}

void* DeviceMemory::allocate(int64_t bytes, const std::string& what) {
  if (bytes <= 0) fail("cuda", "expected a positive size of {}, got {} bytes", what, bytes);
  void* p = nullptr;
  const bool allowed = !limit_ || used_ + bytes <= limit_;
  const cudaError_t e = allowed ? cudaMalloc(&p, size_t(bytes)) : cudaErrorMemoryAllocation;
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear it, so that a later launch does not report it
    fail("cuda", "expected {} MiB of card memory for {}, got {} MiB free (this process holds {})",
         (bytes + mib - 1) / mib, what, free_bytes() / mib, used_ / mib);
  }
  check(e, "allocating memory");
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return p;
}

void DeviceMemory::release(void* p, int64_t bytes) {
  cudaFree(p);
  used_ -= bytes;
}

CudaStream::CudaStream(DeviceMemory& m) : memory(m) {}

CudaStream::~CudaStream() {
  for (const Block& b : {scratch_, zeros_})
    if (b.data) memory.release(b.data, b.bytes);
  for (const Block& b : retired_) memory.release(b.data, b.bytes);
}

OffloadLanes& CudaStream::offload_lanes() {
  if (!offload_lanes_) offload_lanes_ = std::make_unique<OffloadLanes>();
  return *offload_lanes_;
}

void CudaStream::captured() { scratch_.held = zeros_.held = true; }

void* CudaStream::grown(Block& block, int64_t bytes) {
  check(cudaStreamSynchronize(handle), "waiting for the stream");
  // A captured graph may still use the old block, which is kept until the end. Growing by half at
  // least bounds the sum of the kept blocks by twice the largest.
  if (block.data && block.held) {
    bytes = std::max(bytes, block.bytes + block.bytes / 2);
    retired_.push_back(block);
  } else if (block.data) {
    memory.release(block.data, block.bytes);
  }
  block = {};
  bytes = (bytes + mib - 1) / mib * mib;
  block.data = memory.allocate(bytes, "scratch of kernels");
  block.bytes = bytes;
  return block.data;
}

void* CudaStream::scratch(int64_t bytes) {
  return bytes <= scratch_.bytes ? scratch_.data : grown(scratch_, bytes);
}

void* CudaStream::zeros(int64_t bytes) {
  if (bytes <= zeros_.bytes) return zeros_.data;
  grown(zeros_, bytes);
  check(cudaMemsetAsync(zeros_.data, 0, size_t(zeros_.bytes), handle), "clearing memory");
  return zeros_.data;
}

}  // namespace hearth::cuda
