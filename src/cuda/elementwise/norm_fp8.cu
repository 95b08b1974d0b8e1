// Layer norm and RMS norm whose result is rounded to fp8, plain and transposed. Memory bound: a row
// of C two-byte elements moves 4C bytes, or 8C with the residual addition. A block norms 32 rows,
// each in the registers of a warp, and keeps their codes in shared memory for the transposed copy.
#include <algorithm>

#include "cuda/device/fp8_codes.cuh"
#include "cuda/elementwise/norm_rows.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int rows = Fp8Lines::rows, threads = 256, warps = threads / 32;  // of a block

using Bf16 = __nv_bfloat16;
template <int P>
using Row = NormRow<Bf16, 8, P, false>;

// Packs of the result, rounded to bf16.
template <int P>
__device__ __forceinline__ Pack<Bf16, 8> rounded(float (&v)[8], const Row<P>& row, int p) {
  row.result(v, p);
  Pack<Bf16, 8> r;
  round_to(r, v);
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = get(r, k);
  return r;
}

__device__ __forceinline__ uint32_t largest_of(const float (&v)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) largest = max(largest, magnitude(v[k]));
  return largest;
}

// Finds max |y| where the scale is measured. Does not store the sum: it may be the memory of x or
// of the residual, which the next kernel reads.
template <int P>
__global__ void __launch_bounds__(threads) measure_norm(NormRows<Bf16> a, Fp8Target to) {
  if (!to.measures()) return;
  uint32_t largest = 0;
  const NormTeam<false> team{nullptr};
  for (int64_t index = team.row(); index < a.rows; index += int64_t(gridDim.x) * warps) {
    Row<P> row(a, team, index, false);
    row.measure();
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (row.column(p) < a.width) {
        float v[8];
        rounded(v, row, p);
        largest = max(largest, largest_of(v));
      }
  }
  raise_largest<threads>(to.site, largest);
}

template <int P>
__global__ void __launch_bounds__(threads)
    round_norm(NormRows<Bf16> a, Fp8Target to, bool wide_range) {
  extern __shared__ uint4 memory[];
  auto* codes = reinterpret_cast<uint8_t*>(memory);
  const NormTeam<false> team{nullptr};
  const bool measured = to.measures();
  const float inverse = to.inverse_scale(measured, wide_range, blockIdx.x == 0 && threadIdx.x == 0);
  const int64_t row0 = int64_t(blockIdx.x) * rows;
  uint32_t largest = 0;
  for (int r = int(threadIdx.x) / 32; r < rows; r += warps) {
    uint8_t* line = codes + Fp8Lines::at(r, a.width);
    if (row0 + r >= a.rows) {  // zeros in the transposed copy
      for (int c = team.rank() * 8; c < a.width; c += 32 * 8)
        *reinterpret_cast<uint2*>(line + c) = make_uint2(0, 0);
      continue;
    }
    Row<P> row(a, team, row0 + r, true);
    row.measure();
    if (team.rank() == 0) put_stat(a, row0 + r, row.mean, row.inverse);
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (row.column(p) < a.width) {
        float v[8];
        const Pack<Bf16, 8> y = rounded(v, row, p);
        largest = max(largest, largest_of(v));
        const uint2 eight =
            wide_range ? eight_codes<__NV_E5M2>(v, inverse) : eight_codes<__NV_E4M3>(v, inverse);
        const int64_t at = row.at + row.column(p);
        if (a.y) store(a.y + at, y);
        if (to.y) *reinterpret_cast<uint2*>(to.y + at) = eight;
        *reinterpret_cast<uint2*>(line + row.column(p)) = eight;
      }
  }
  if (to.yt) {
    __syncthreads();
    Fp8Lines::write_transposed<threads>(to, codes, row0);
  }
  if (!measured) raise_largest<threads>(to.site, largest);  // measure_norm() has done so otherwise
}

template <int P>
void launch(CudaStream& s, const NormRows<Bf16>& a, const Fp8Target& to, bool wide_range) {
  const int64_t some = std::min<int64_t>(ceil_div(a.rows, warps), 4 * s.card.processors);
  measure_norm<P><<<unsigned(some), threads, 0, s.handle>>>(a, to);
  check_launch("norm in fp8, measuring");
  const size_t bytes = Fp8Lines::bytes(a.width);
  check(
      cudaFuncSetAttribute(round_norm<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
      "asking for shared memory");
  round_norm<P><<<unsigned(ceil_div(a.rows, rows)), threads, bytes, s.handle>>>(a, to, wide_range);
  check_launch("norm in fp8");
}

void launch(CudaStream& s, const NormRows<Bf16>& a, const Fp8Target& to, bool wide_range) {
  const int64_t packs = ceil_div(a.width, 32 * 8);  // of each thread
  if (packs <= 1) return launch<1>(s, a, to, wide_range);
  if (packs <= 2) return launch<2>(s, a, to, wide_range);
  if (packs <= 3) return launch<3>(s, a, to, wide_range);
  if (packs <= 4) return launch<4>(s, a, to, wide_range);
  if (packs <= 6) return launch<6>(s, a, to, wide_range);
  if (packs <= 8) return launch<8>(s, a, to, wide_range);
  launch<16>(s, a, to, wide_range);
}

}  // namespace

void norm_fp8(CudaStream& s, const NormArgs& args) {
  const int64_t R = args.x.rows(), C = args.x.cols();
  expect_dtypes("norm in fp8", DType::bf16, args.x);
  const bool fits = C % 16 == 0 && C <= 4096 && !args.fp8.sums &&
                    int64_t(Fp8Lines::bytes(C)) + 1024 <= s.card.shared_bytes &&
                    packs_fit(C, args.y, args.sum, args.x, args.residual, args.gain, args.bias);
  if (fits) {
    if (!is_fp8(args.fp8.dtype())) refuse_dtype("norm in fp8", args.fp8.dtype());
    return launch(s, norm_rows_of<Bf16>(args), {args.fp8, R}, args.fp8.dtype() == DType::e5m2);
  }
  NormArgs plain = args;
  plain.fp8 = {};
  if (!args.y) plain.y = {static_cast<std::byte*>(s.scratch(R * C * 2)), args.x.shape, DType::bf16};
  norm(s, plain);
  quantise_fp8(s, {.to = args.fp8, .x = plain.y});
}

}  // namespace hearth::cuda
