// The pairs of tokens and experts, sorted by expert: a stable radix sort of a few integers per
// token, and one kernel that writes what grouped products read.
#include <algorithm>

#include "cuda/device/device.cuh"
#include "cuda/device/sort.h"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

struct SortedPairs {
  int32_t *offsets, *order, *tokens, *place;
  const uint32_t *experts, *pairs;  // sorted by expert
  int64_t R;
  int E, k;
};

__global__ void __launch_bounds__(256) place_pairs(SortedPairs a) {
  const int64_t r = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= a.R) return;
  const auto pair = int32_t(a.pairs[r]);
  a.order[r] = pair;
  a.tokens[r] = pair / a.k;
  a.place[pair] = int32_t(r);
  // The first row of an expert writes its offset, and those of the experts before it without rows.
  const int expert = int(a.experts[r]), before = r > 0 ? int(a.experts[r - 1]) : -1;
  for (int e = before + 1; e <= expert; ++e) a.offsets[e] = int32_t(r);
  if (r == a.R - 1)
    for (int e = expert + 1; e <= a.E; ++e) a.offsets[e] = int32_t(a.R);
}

// counted[e + 1] = the pairs of expert e whose tokens count. Integer sums have no order.
__global__ void __launch_bounds__(256) count_pairs(int32_t* counted, const int32_t* ids,
                                                   const int32_t* counts, int64_t R, int E, int k) {
  extern __shared__ int32_t found[];
  for (int e = int(threadIdx.x); e < E; e += 256) found[e] = 0;
  __syncthreads();
  const int64_t step = int64_t(gridDim.x) * 256;
  for (int64_t pair = int64_t(blockIdx.x) * 256 + threadIdx.x; pair < R; pair += step)
    if (counts[pair / k] != 0) atomicAdd(&found[ids[pair]], 1);
  __syncthreads();
  for (int e = int(threadIdx.x); e < E; e += 256)
    if (found[e] != 0) atomicAdd(&counted[e + 1], found[e]);
}

// Counts become offsets. One warp.
__global__ void __launch_bounds__(32) add_counts(int32_t* counted, int E) {
  const int lane = int(threadIdx.x);
  int before = 0;
  for (int first = 0; first < E; first += 32) {
    const int e = first + lane;
    int sum = e < E ? counted[e + 1] : 0;  // of this lane and those below
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (e < E) counted[e + 1] = before + sum;
    before += __shfl_sync(~0u, sum, 31);
  }
}

void write_counted(CudaStream& s, const ExpertRowsArgs& args, int E) {
  check(cudaMemsetAsync(args.counted.data, 0, size_t(args.counted.bytes()), s.handle),
        "clearing counts");
  const int64_t R = args.ids.numel();
  if (R == 0) return;
  const int64_t blocks = std::min<int64_t>(ceil_div(R, 256), s.card.processors);
  count_pairs<<<unsigned(blocks), 256, size_t(E) * sizeof(int32_t), s.handle>>>(
      as<int32_t>(args.counted), as<int32_t>(args.ids), as<int32_t>(args.counts), R, E,
      int(args.ids.cols()));
  add_counts<<<1, 32, 0, s.handle>>>(as<int32_t>(args.counted), E);
  check_launch("expert_rows counts");
}

}  // namespace

void expert_rows(Stream& stream, const ExpertRowsArgs& args) {
  CudaStream& s = on(stream);
  const int64_t R = args.ids.numel(), E = args.offsets.numel() - 1;
  if (args.counted) write_counted(s, args, int(E));
  if (R == 0) {
    check(cudaMemsetAsync(args.offsets.data, 0, size_t(args.offsets.bytes()), s.handle),
          "clearing offsets");
    return;
  }
  const SortedRows sorted = sort_rows(s, s.scratch(sort_bytes(R)), as<int32_t>(args.ids), R, E);
  place_pairs<<<unsigned(ceil_div(R, 256)), 256, 0, s.handle>>>(
      {as<int32_t>(args.offsets), as<int32_t>(args.order), as<int32_t>(args.tokens),
       as<int32_t>(args.place), sorted.keys, sorted.rows, R, int(E), int(args.ids.cols())});
  check_launch("expert_rows");
}

}  // namespace hearth::cuda
