// The pairs of tokens and experts, sorted by expert: a stable radix sort of a few integers per
// token, and one kernel that writes what grouped products read.
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

}  // namespace

void expert_rows(Stream& stream, const ExpertRowsArgs& args) {
  CudaStream& s = on(stream);
  const int64_t R = args.ids.numel(), E = args.offsets.numel() - 1;
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
