// Flash attention forward for Hopper: which calls it takes, and what it is told of documents.
#include "cuda/attention/hopper/flash_hopper_launch.cuh"

namespace hearth::cuda {
namespace flash_fwd {
namespace {

// ranges (B, blocks): one warp finds the smallest and largest document of 64 tokens.
__global__ void find_ranges(int2* ranges, const int32_t* documents, int B, int T) {
  const int blocks = (T + range_rows - 1) / range_rows, lane = threadIdx.x % 32;
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (at >= B * blocks) return;
  const int32_t* ids = documents + int64_t(at / blocks) * T;
  const int first = at % blocks * range_rows + lane;
  int lo = INT_MAX, hi = INT_MIN;
  for (int t = first; t < min(T, first - lane + range_rows); t += 32) {
    lo = min(lo, ids[t]);
    hi = max(hi, ids[t]);
  }
  lo = __reduce_min_sync(~0u, lo);
  hi = __reduce_max_sync(~0u, hi);
  if (lane == 0) ranges[at] = {lo, hi};
}

}  // namespace

const int2* document_ranges(const AttnCall& a, CudaStream& stream) {
  const int warps = a.B * ((a.T + range_rows - 1) / range_rows);
  int2* ranges = static_cast<int2*>(stream.scratch(int64_t(warps) * int64_t(sizeof(int2))));
  find_ranges<<<(warps + 7) / 8, 256, 0, stream.handle>>>(ranges, a.documents, a.B, a.T);
  check_launch("flash_hopper");
  return ranges;
}

}  // namespace flash_fwd

bool flash_hopper_takes(const AttnCall& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return (a.dtype == DType::bf16 || a.dtype == DType::f16) && (a.D == 64 || a.D == 128) &&
         a.dropout == 0 && a.scale > 0 && aligned(a.qkv) && aligned(a.y);
}

void flash_hopper(const AttnCall& a, CudaStream& stream) {
  if (a.dtype == DType::f16)
    flash_hopper_f16(a, stream);
  else
    flash_hopper_bf16(a, stream);
}

}  // namespace hearth::cuda
