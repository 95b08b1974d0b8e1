// Rounds bf16 tensors to fp8: a plain copy, a transposed copy through shared memory, column sums
// and max |v| in one pass. Memory bound: n elements move 4n bytes with both copies, 6n with the
// slope of an activation. Where the scale is measured, a pass before it reads the inputs once more.
#include <algorithm>

#include "cuda/device/fp8_codes.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int tile = Fp8Tile::side, threads = Fp8Tile::threads, chunks = Fp8Tile::chunks;

using Eight = Pack<__nv_bfloat16, 8>;

struct Rounding : Fp8Target {
  const __nv_bfloat16 *x, *aux;

  __host__ __device__ int64_t across() const { return ceil_div(C, tile); }
  __host__ __device__ int64_t tiles() const { return across() * ceil_div(R, tile); }
  __device__ Fp8Tile place(unsigned index) const {
    const unsigned wide = unsigned(across());
    return {int(threadIdx.x), int64_t(index / wide) * tile, int64_t(index % wide) * tile};
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

  // Pairs of values after the activation, rounded to bf16. `gate`: the column belongs to the gate
  // of a GLU.
  __device__ void values(uint32_t (&pairs)[4], bool gate) const {
    using T = __nv_bfloat16;
    if constexpr (A == Act::none) {
      const uint4 all = *reinterpret_cast<const uint4*>(&x);
      pairs[0] = all.x, pairs[1] = all.y, pairs[2] = all.z, pairs[3] = all.w;
    } else {
      float v[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        v[k] = get(x, k);
        if constexpr (is_glu(A) && slope) {
          const Slope<float> a = act_slope_for<A, T>(get(aux, k));
          v[k] = gate ? v[k] * get(up, k) * a.dy : v[k] * a.y;
        } else if constexpr (slope) {
          v[k] *= act_slope_for<A, T>(get(aux, k)).dy;
        } else {
          v[k] = act_value_for<A, T>(v[k]);
          if constexpr (is_glu(A)) v[k] *= get(up, k);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs[k] = pack(v[2 * k], v[2 * k + 1], T());
    }
  }
};

// Finds max |v| where the scale is measured.
template <Act A, bool slope>
__global__ void __launch_bounds__(threads) measure(Rounding p) {
  if (!p.measures()) return;
  uint32_t largest = 0;
  const unsigned tiles = unsigned(p.tiles());
  for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
    const Fp8Tile at = p.place(index);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t v[4];
      Row<A, slope>(p, at.row + i, at.column).values(v, at.column < p.C / 2);
      largest = max_halves(largest, largest_of(v));
    }
  }
  raise_largest<threads>(p.site, larger_half(largest));
}

__device__ __forceinline__ void add_pairs(float (&total)[8], const uint32_t (&pairs)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 two = unpack(pairs[k], __nv_bfloat16());
    total[2 * k] += two.x, total[2 * k + 1] += two.y;
  }
}

// Column sums of the tile: bands of 8 rows are summed first, then added in order.
__device__ void write_sums(const Rounding& p, const float (&total)[8], const Fp8Tile& at) {
  __shared__ float of_band[chunks][tile];
#pragma unroll
  for (int k = 0; k < 8; ++k) of_band[at.band][at.group * 8 + k] = total[k];
  __syncthreads();
  const int64_t column = at.column0() + int(threadIdx.x);
  if (int(threadIdx.x) >= tile || column >= p.C) return;
  float sum = 0;
#pragma unroll
  for (int b = 0; b < chunks; ++b) sum += of_band[b][threadIdx.x];
  p.sums[at.row0() / tile * p.C + column] = sum;
}

template <Act A, bool slope, __nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(threads, slope ? 4 : 3) round_tile(Rounding p) {
  constexpr int ahead = slope ? 2 : 8;  // rows in flight; measured with the blocks above
  __shared__ Fp8Tile::Codes codes;
  const Fp8Tile at = p.place(blockIdx.x);
  Row<A, slope> in[ahead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) in[i] = Row<A, slope>(p, at.row + first + i, at.column);
  };
  load(0);
  const bool measured = p.measures();
  const float inverse =
      p.inverse_scale(measured, format == __NV_E5M2, blockIdx.x == 0 && threadIdx.x == 0);
  uint32_t largest = 0;
  float total[8] = {};
  uint2 rows[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t v[4];
    in[i % ahead].values(v, at.column < p.C / 2);
    if (i + 1 < 8 && (i + 1) % ahead == 0) load(i + 1);
    largest = max_halves(largest, largest_of(v));
    if (p.sums) add_pairs(total, v);
    rows[i] = codes_of_pairs<format>(v, inverse);
    if (p.y && at.row + i < p.R && at.column < p.C)
      *reinterpret_cast<uint2*>(p.y + (at.row + i) * p.C + at.column) = rows[i];
  }
  if (p.yt) at.write_transposed(p, rows, codes);
  if (p.sums) write_sums(p, total, at);
  // measure() has done so otherwise
  if (!measured) raise_largest<threads>(p.site, larger_half(largest));
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
  const Fp8Output& to = args.to;
  const DType format = to.dtype();
  if (!is_fp8(format)) refuse_dtype("quantise_fp8", format);
  expect_dtypes("quantise_fp8", format, to.yt);
  expect_dtypes("quantise_fp8", DType::bf16, args.x, args.aux);
  const int64_t R = args.x.rows(), C = to.cols();
  const bool halves = is_glu(args.spec.act) && args.spec.act_slope;
  if (C % (halves ? 32 : 16))  // linear_fp8() refuses such widths with their names
    check(cudaErrorInvalidValue, "rounding to fp8 a width that is not a multiple of 16, or of 32");
  if (R == 0 || C == 0) return;
  const Rounding p{{to, R}, as<__nv_bfloat16>(args.x), as<__nv_bfloat16>(args.aux)};
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
