// Sums over the rows of 16 columns that a warp holds as a product of matrices leaves them: lane l
// has columns 2 (l % 4) and the next one of each 8, in rows that depend only on l / 4.
#pragma once

namespace hearth::cuda {

struct ColumnTotal {
  float sum;
  int column;  // 0 .. 15
  bool owned;  // by this lane: another one has the same sum
};

// totals[2 i + k]: the sum of this lane's rows in column 8 i + 2 (lane % 4) + k. Lanes that have
// the same columns first share them out, so that each adds up one. The order of additions is fixed.
__device__ __forceinline__ ColumnTotal column_total(const float (&totals)[4], int lane) {
  const bool upper = lane & 16, odd = lane & 8;
  float even_sum = upper ? totals[2] : totals[0], odd_sum = upper ? totals[3] : totals[1];
  even_sum += __shfl_xor_sync(~0u, upper ? totals[0] : totals[2], 16);
  odd_sum += __shfl_xor_sync(~0u, upper ? totals[1] : totals[3], 16);
  float sum = odd ? odd_sum : even_sum;
  sum += __shfl_xor_sync(~0u, odd ? even_sum : odd_sum, 8);
  sum += __shfl_xor_sync(~0u, sum, 4);
  return {sum, (upper ? 8 : 0) + lane % 4 * 2 + (odd ? 1 : 0), (lane & 4) == 0};
}

}  // namespace hearth::cuda
