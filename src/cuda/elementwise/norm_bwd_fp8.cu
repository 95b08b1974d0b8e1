// The gradient of a norm, rounded to fp8 as well: plain, transposed, and column sums. Memory bound:
// a row of C two-byte elements moves 10C bytes with a prior. A block takes groups of 128 rows, 8
// rows at a time, and transposes the codes of 32 rows through shared memory.
#include <algorithm>

#include "cuda/device/fp8_codes.cuh"
#include "cuda/elementwise/norm_bwd_rows.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int group = int(fp8_sum_rows), turns = group / warps;  // turns: rows of each warp
constexpr int turns_of_lines = Fp8Lines::rows / warps;
static_assert(turns % turns_of_lines == 0);

using Bf16 = __nv_bfloat16;
using Team = NormBwdTeam<8, false>;

enum class Pass : uint8_t { measure, round };  // measure: only finds max |dx|, writes nothing else

// The shared memory of a block: two rows of each warp, then codes or sums.
template <int P>
constexpr int ring_bytes = threads* P * 96;
template <int P>
size_t shared_bytes(int64_t width) {
  return ring_bytes<P> + std::max(Fp8Lines::bytes(width), size_t(threads * P * 8 * 4));
}

// The rows of a warp: those of its block's groups, which are gridDim.x groups apart.
struct Rows {
  int64_t first = int64_t(blockIdx.x) * group + int(threadIdx.x) / 32;
  __device__ int64_t at(int n) const {
    return first + int64_t(n / turns) * gridDim.x * group + n % turns * warps;
  }
};

// dx of a row as bf16, in packs.
template <int P>
__device__ __forceinline__ Pack<Bf16, 8> rounded_dx(float (&v)[8], const NormBwdRows<Bf16>& a,
                                                    const NormBwdRing<Team, Bf16, 8, P>& ring,
                                                    const Pack<Bf16, 8>& gain,
                                                    const NormBwdStat& stat, int p) {
  dx_of(v, a, ring.dy(p), ring.x(p), gain, ring.prior(p), stat);
  Pack<Bf16, 8> r;
  round_to(r, v);
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = get(r, k);
  return r;
}

template <int P, Pass pass, bool params, bool columns>
__global__ void __launch_bounds__(threads, 2)
    norm_bwd_codes(NormBwdRows<Bf16> a, Fp8Target to, bool wide_range) {
  extern __shared__ uint4 memory[];
  constexpr bool writes = pass == Pass::round;
  const bool measured = to.measures();
  if (!writes && !measured) return;
  auto* codes = reinterpret_cast<uint8_t*>(memory) + ring_bytes<P>;
  const float inverse =
      writes ? to.inverse_scale(measured, wide_range, blockIdx.x == 0 && threadIdx.x == 0) : 0;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  Pack<Bf16, 8> gain[P] = {};
  if (a.gain)
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (Team::column(p) < a.width) gain[p] = load<8>(a.gain + Team::column(p));
  float dgain[P][8] = {}, dbias[P][8] = {}, totals[columns ? P : 1][8] = {};
  uint32_t largest = 0;

  const Rows rows;
  NormBwdRing<Team, Bf16, 8, P> ring{memory, a};
  const auto stat_of = [&](int64_t row) {
    return row < a.rows ? reinterpret_cast<const float2*>(a.stat)[row] : float2{};
  };
  ring.fetch(rows.at(0), 0);
  float2 next = stat_of(rows.at(0));
  // All warps of a block take the same number of steps.
  for (int n = 0; rows.at(n) - warp < round_up(a.rows, group); ++n) {
    const int64_t row = rows.at(n);
    const float2 stat = next;
    next = stat_of(rows.at(n + 1));
    ring.stage = n & 1;
    ring.fetch(rows.at(n + 1), (n + 1) & 1);
    ring.wait(row);
    uint8_t* line = codes + Fp8Lines::at(n % turns_of_lines * warps + warp, a.width);
    if (row < a.rows) {
      float2 e_sums = {};
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (Team::column(p) < a.width)
          add_pack<params && writes>(e_sums, dgain[p], dbias[p], ring.dy(p), ring.x(p), gain[p],
                                     a.gain, stat);
      e_sums = {warp_sum(e_sums.x), warp_sum(e_sums.y)};
      const NormBwdStat r{stat.x, stat.y, a.layer ? e_sums.x / float(a.width) : 0,
                          e_sums.y / float(a.width)};
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (Team::column(p) < a.width) {
          float v[8];
          const Pack<Bf16, 8> dx = rounded_dx(v, a, ring, gain[p], r, p);
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            largest = max(largest, magnitude(v[k]));
            if constexpr (columns) totals[p][k] += v[k];
          }
          if constexpr (writes) {
            const uint2 eight = wide_range ? eight_codes<__NV_E5M2>(v, inverse)
                                           : eight_codes<__NV_E4M3>(v, inverse);
            const int64_t at = ring.at + Team::column(p);
            if (a.dx) store(a.dx + at, dx);
            if (to.y) *reinterpret_cast<uint2*>(to.y + at) = eight;
            *reinterpret_cast<uint2*>(line + Team::column(p)) = eight;
          }
        }
    } else if (writes) {  // zeros in the transposed copy
      for (int c = lane * 8; c < a.width; c += 32 * 8)
        *reinterpret_cast<uint2*>(line + c) = make_uint2(0, 0);
    }
    if (!writes || n % turns_of_lines != turns_of_lines - 1) continue;
    __syncthreads();
    const int64_t row0 = row - warp - (turns_of_lines - 1) * warps;
    if (to.yt) Fp8Lines::write_transposed<threads>(to, codes, row0);
    __syncthreads();
    if constexpr (columns) {
      if (n % turns != turns - 1) continue;
      put_sums(to.sums + row0 / group * a.width, reinterpret_cast<float*>(codes), totals, a.width);
      __syncthreads();
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int k = 0; k < 8; ++k) totals[p][k] = 0;
    }
  }
  if (!writes || !measured) raise_largest<threads>(to.site, largest);
  if constexpr (params && writes) {
    float* part = a.parts + blockIdx.x * int64_t(2 * a.width);
    __syncthreads();
    put_sums(part, reinterpret_cast<float*>(codes), dgain, a.width);
    __syncthreads();
    put_sums(part + a.width, reinterpret_cast<float*>(codes), dbias, a.width);
  }
}

template <int P, Pass pass, bool params, bool columns>
void launch(CudaStream& s, const NormBwdRows<Bf16>& a, const Fp8Target& to, bool wide_range) {
  auto* kernel = norm_bwd_codes<P, pass, params, columns>;
  const size_t bytes = shared_bytes<P>(a.width);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
        "asking for shared memory");
  const int64_t blocks = norm_bwd_fp8_blocks(s, a.rows, a.width);
  kernel<<<unsigned(blocks), threads, bytes, s.handle>>>(a, to, wide_range);
  check_launch("norm_bwd in fp8");
}

template <int P>
void launch(CudaStream& s, const NormBwdRows<Bf16>& a, const Fp8Target& to, bool wide_range) {
  launch<P, Pass::measure, false, false>(s, a, to, wide_range);
  if (a.parts && to.sums)
    launch<P, Pass::round, true, true>(s, a, to, wide_range);
  else if (a.parts)
    launch<P, Pass::round, true, false>(s, a, to, wide_range);
  else if (to.sums)
    launch<P, Pass::round, false, true>(s, a, to, wide_range);
  else
    launch<P, Pass::round, false, false>(s, a, to, wide_range);
}

}  // namespace

int64_t norm_bwd_fp8_blocks(const CudaStream& s, int64_t rows, int64_t width) {
  constexpr int64_t most_width = 3 * 32 * 8, few_rows = 2048;
  if (width % 16 || width > most_width ||
      int64_t(shared_bytes<3>(width)) + 1024 > s.card.shared_bytes)
    return 0;
  const int64_t groups = ceil_div(rows, group), all = 2 * s.card.processors;
  const int64_t waves = ceil_div(groups, all);
  // The separate rounding moves a fifth more bytes, but its blocks divide the work more evenly.
  if (rows > few_rows && 6 * groups < 5 * waves * all) return 0;
  return std::min(groups, all);
}

void norm_bwd_fp8(CudaStream& s, const NormBwdRows<Bf16>& a, const Fp8Output& fp8) {
  if (!is_fp8(fp8.dtype())) refuse_dtype("norm_bwd in fp8", fp8.dtype());
  const Fp8Target to(fp8, a.rows);
  const bool wide_range = fp8.dtype() == DType::e5m2;
  a.width <= 2 * 32 * 8 ? launch<2>(s, a, to, wide_range) : launch<3>(s, a, to, wide_range);
}

}  // namespace hearth::cuda
