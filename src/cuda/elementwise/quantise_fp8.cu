// Rounds bf16 tensors to fp8: a plain copy, a transposed copy through shared memory, column sums
// and max |v| in one pass. Memory bound: n elements move 4n bytes with both copies, 6n with the
// slope of an activation. Where the scale is measured, a pass before it reads the inputs once more.
#include <cuda_fp8.h>

#include <algorithm>

#include "core/fp8.h"
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int tile = 128;     // rows and columns of x that a block rounds
constexpr int threads = 256;  // each rounds 8 rows of 8 columns
constexpr int chunks = tile / 8;
static_assert(tile == fp8_sum_rows && chunks * chunks == threads);

using Eight = Pack<__nv_bfloat16, 8>;

struct Rounding {
  uint8_t* y;
  uint8_t* yt;  // may be null
  float* sums;  // may be null
  Fp8Site* site;
  const __nv_bfloat16 *x, *aux;
  const Scalars* scalars;  // may be null
  int64_t R, C, wide;      // wide: columns of yt

  __host__ __device__ int64_t across() const { return ceil_div(C, tile); }
  __host__ __device__ int64_t tiles() const { return across() * ceil_div(R, tile); }
  __device__ bool measures() const {
    Fp8Site s;
    s.previous = site->previous;
    return fp8_measures(s, scalars);
  }
};

// The 8 x 8 elements of this thread in the tile that begins at (row, column).
struct Place {
  int group = int(threadIdx.x) % chunks;  // of 8 columns
  int band = int(threadIdx.x) / chunks;   // of 8 rows
  int64_t row, column;
  __device__ Place(const Rounding& p, unsigned index) {
    const unsigned across = unsigned(p.across());
    row = int64_t(index / across) * tile + band * 8;
    column = int64_t(index % across) * tile + group * 8;
  }
};

// The inputs of one row of a thread. Elements outside of the tensor are 0.
template <Act A, bool slope>
struct Row {
  Eight x, aux, up;  // of a GLU: x is its gate, or with the slope aux is

  Row() = default;
  __device__ Row(const Rounding& p, int64_t row, int64_t column) : x{}, aux{}, up{} {
    if (row >= p.R || column >= p.C) return;
    if constexpr (!is_glu(A)) {
      x = load<8>(p.x + row * p.C + column);
      if constexpr (slope) aux = load<8>(p.aux + row * p.C + column);
    } else if constexpr (!slope) {
      x = load<8>(p.x + row * 2 * p.C + column);
      up = load<8>(p.x + row * 2 * p.C + p.C + column);
    } else {
      const int64_t half = p.C / 2, at = column < half ? column : column - half;
      x = load<8>(p.x + row * half + at);
      aux = load<8>(p.aux + row * p.C + at);
      if (column < half) up = load<8>(p.aux + row * p.C + half + at);
    }
  }

  // After the activation, rounded to bf16. `gate`: the column belongs to the gate of a GLU.
  __device__ void values(float (&v)[8], bool gate) const {
    using T = __nv_bfloat16;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      v[k] = get(x, k);
      if constexpr (is_glu(A) && slope) {
        const Slope<float> a = act_slope_for<A, T>(get(aux, k));
        v[k] = gate ? v[k] * get(up, k) * a.dy : v[k] * a.y;
      } else if constexpr (slope) {
        v[k] *= act_slope_for<A, T>(get(aux, k)).dy;
      } else if constexpr (A != Act::none) {
        v[k] = act_value_for<A, T>(v[k]);
        if constexpr (is_glu(A)) v[k] *= get(up, k);
      }
    }
    if constexpr (A != Act::none) {
      Eight r;
      round_to(r, v);
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = get(r, k);
    }
  }
};

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// Raises site->largest to the block's largest value. The order of blocks does not matter.
__device__ void raise_largest(Fp8Site* site, uint32_t largest) {
  __shared__ uint32_t of_warp[threads / 32];
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < threads / 32; ++w) largest = max(largest, of_warp[w]);
  // Most blocks find a larger value there already; reading is cheaper than an atomic.
  if (largest > *static_cast<volatile uint32_t*>(&site->largest))
    atomicMax(&site->largest, largest);
}

// Finds max |v| where the scale is measured.
template <Act A, bool slope>
__global__ void __launch_bounds__(threads) measure(Rounding p) {
  if (!p.measures()) return;
  uint32_t largest = 0;
  const unsigned tiles = unsigned(p.tiles());
  for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Place at(p, index);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float v[8];
      Row<A, slope>(p, at.row + i, at.column).values(v, at.column < p.C / 2);
#pragma unroll
      for (int k = 0; k < 8; ++k) largest = max(largest, magnitude(v[k]));
    }
  }
  raise_largest(p.site, largest);
}

// Saturates; inf and NaN become NaN, since inf * 0 is NaN.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ uint32_t four_codes(const float* v, float inverse) {
  float f[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) f[k] = __fmaf_rn(v[k], 0.0f, v[k] * inverse);
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(f[0], f[1]), __NV_SATFINITE, format);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(f[2], f[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

// Byte k of word j of the result is byte j of word k.
__device__ __forceinline__ void transpose(uint32_t (&to)[4], uint32_t a, uint32_t b, uint32_t c,
                                          uint32_t d) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);
  to[0] = __byte_perm(ab, cd, 0x5410), to[1] = __byte_perm(ab, cd, 0x7632);
  to[2] = __byte_perm(ab2, cd2, 0x5410), to[3] = __byte_perm(ab2, cd2, 0x7632);
}

// The transposed tile in shared memory: column c has 16 chunks of 8 rows; chunk b lies at position
// b ^ (c / 8), so that neither writing nor reading has bank conflicts.
__device__ __forceinline__ uint2* chunk_of(uint2* codes, int column, int band) {
  return codes + column * chunks + (band ^ (column / 8));
}

__device__ void write_transposed(const Rounding& p, const uint2 (&rows)[8], const Place& at,
                                 uint2* codes) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t w[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = half ? rows[i].y : rows[i].x;
    uint32_t top[4], bottom[4];
    transpose(top, w[0], w[1], w[2], w[3]);
    transpose(bottom, w[4], w[5], w[6], w[7]);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      *chunk_of(codes, at.group * 8 + half * 4 + k, at.band) = make_uint2(top[k], bottom[k]);
  }
  __syncthreads();
  const int64_t row0 = at.row - at.band * 8, column0 = at.column - at.group * 8;
#pragma unroll
  for (int j = 0; j < tile * chunks / threads; ++j) {
    const int index = int(threadIdx.x) + j * threads, column = index / chunks,
              band = index % chunks;
    const int64_t row = row0 + band * 8;
    if (column0 + column < p.C && row < p.wide)
      *reinterpret_cast<uint2*>(p.yt + (column0 + column) * p.wide + row) =
          *chunk_of(codes, column, band);
  }
}

// Column sums of the tile: bands of 8 rows are summed first, then added in order.
__device__ void write_sums(const Rounding& p, const float (&total)[8], const Place& at) {
  __shared__ float of_band[chunks][tile];
#pragma unroll
  for (int k = 0; k < 8; ++k) of_band[at.band][at.group * 8 + k] = total[k];
  __syncthreads();
  const int64_t column = at.column - at.group * 8 + int(threadIdx.x);
  if (int(threadIdx.x) >= tile || column >= p.C) return;
  float sum = 0;
#pragma unroll
  for (int b = 0; b < chunks; ++b) sum += of_band[b][threadIdx.x];
  p.sums[(at.row - at.band * 8) / tile * p.C + column] = sum;
}

template <Act A, bool slope, __nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(threads, 2) round_tile(Rounding p) {
  __shared__ uint2 codes[tile * chunks];
  const Place at(p, blockIdx.x);
  Row<A, slope> in[8];  // loaded first, so that all loads are in flight at once
#pragma unroll
  for (int i = 0; i < 8; ++i) in[i] = Row<A, slope>(p, at.row + i, at.column);
  const bool measured = p.measures();
  const uint32_t from = measured ? p.site->largest : __float_as_uint(p.site->previous);
  const uint32_t scale = fp8_scale_bits(from, format == __NV_E5M2, !measured);
  const float inverse = __uint_as_float((254u << 23) - scale);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.site->scale = __uint_as_float(scale);
  uint32_t largest = 0;
  float total[8] = {};
  uint2 rows[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float v[8];
    in[i].values(v, at.column < p.C / 2);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      largest = max(largest, magnitude(v[k]));
      total[k] += v[k];
    }
    rows[i] = make_uint2(four_codes<format>(v, inverse), four_codes<format>(v + 4, inverse));
    if (at.row + i < p.R && at.column < p.C)
      *reinterpret_cast<uint2*>(p.y + (at.row + i) * p.C + at.column) = rows[i];
  }
  if (p.yt) write_transposed(p, rows, at, codes);
  if (p.sums) write_sums(p, total, at);
  if (!measured) raise_largest(p.site, largest);  // measure() has done so otherwise
}

__global__ void advance(Fp8Site* sites, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t largest = sites[i].largest;
  if (largest > 0 && largest < 0x7f800000u) sites[i].previous = __uint_as_float(largest);
  sites[i].largest = 0;
}

template <Act A, bool slope>
void launch(CudaStream& s, const Rounding& p, bool wide_range) {
  const unsigned some = unsigned(std::min<int64_t>(p.tiles(), 4 * s.card.processors));
  measure<A, slope><<<some, threads, 0, s.handle>>>(p);
  check_launch("quantise_fp8 measure");
  const auto kernel =
      wide_range ? round_tile<A, slope, __NV_E5M2> : round_tile<A, slope, __NV_E4M3>;
  kernel<<<unsigned(p.tiles()), threads, 0, s.handle>>>(p);
  check_launch("quantise_fp8");
}

}  // namespace

void quantise_fp8(Stream& stream, const QuantiseFp8Args& args) {
  const DType format = args.y.dtype;
  if (!is_fp8(format)) refuse_dtype("quantise_fp8", format);
  expect_dtypes("quantise_fp8", format, args.yt);
  expect_dtypes("quantise_fp8", DType::bf16, args.x, args.aux);
  const int64_t R = args.y.rows(), C = args.y.cols();
  const bool halves = is_glu(args.spec.act) && args.spec.act_slope;
  if (C % (halves ? 32 : 16))  // linear_fp8() refuses such widths with their names
    check(cudaErrorInvalidValue, "rounding to fp8 a width that is not a multiple of 16, or of 32");
  if (R == 0 || C == 0) return;
  const Rounding p{.y = as<uint8_t>(args.y),
                   .yt = as<uint8_t>(args.yt),
                   .sums = as<float>(args.sums),
                   .site = as<Fp8Site>(args.site),
                   .x = as<__nv_bfloat16>(args.x),
                   .aux = as<__nv_bfloat16>(args.aux),
                   .scalars = as<Scalars>(args.scalars),
                   .R = R,
                   .C = C,
                   .wide = round_up(R, 16)};
  by_act(args.spec.act, [&]<Act A>(ActTag<A>) {
    if constexpr (A == Act::none)
      launch<A, false>(on(stream), p, format == DType::e5m2);
    else
      args.spec.act_slope ? launch<A, true>(on(stream), p, format == DType::e5m2)
                          : launch<A, false>(on(stream), p, format == DType::e5m2);
  });
}

void advance_fp8(Stream& stream, const AdvanceFp8Args& args) {
  const int64_t n = args.sites.rows();
  advance<<<unsigned(ceil_div(n, 256)), 256, 0, on(stream).handle>>>(as<Fp8Site>(args.sites), n);
  check_launch("advance_fp8");
}

}  // namespace hearth::cuda
