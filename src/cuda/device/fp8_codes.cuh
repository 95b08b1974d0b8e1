// Rounding to fp8: codes of floats, the scale that a site gives, and tiles of codes written
// transposed through shared memory. Every kernel with an Fp8Output uses these.
#pragma once

#include <cuda_fp8.h>

#include "core/fp8.h"
#include "cuda/device/device.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda {

// An Fp8Output as kernels see it.
struct Fp8Target {
  uint8_t* y;   // may be null
  uint8_t* yt;  // may be null
  float* sums;  // may be null
  Fp8Site* site;
  const Scalars* scalars;  // may be null
  int64_t R, C, wide;      // wide: columns of yt

  Fp8Target() = default;
  Fp8Target(const Fp8Output& to, int64_t rows)
      : y(as<uint8_t>(to.y)),
        yt(as<uint8_t>(to.yt)),
        sums(as<float>(to.sums)),
        site(as<Fp8Site>(to.site)),
        scalars(as<Scalars>(to.scalars)),
        R(rows),
        C(to.cols()),
        wide(round_up(rows, 16)) {}

  __device__ bool measures() const {
    Fp8Site s;
    s.previous = site->previous;
    return fp8_measures(s, scalars);
  }
  // 1 / scale. One thread of the grid stores the scale. Where it is measured, site->largest is
  // final already.
  __device__ float inverse_scale(bool measured, bool is_e5m2, bool stores) const {
    const uint32_t from = measured ? site->largest : __float_as_uint(site->previous);
    const uint32_t scale = fp8_scale_bits(from, is_e5m2, !measured);
    if (stores) site->scale = __uint_as_float(scale);
    return __uint_as_float((254u << 23) - scale);
  }
};

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// Raises site->largest to the largest value of a block. The order of blocks does not matter.
template <int threads>
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
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ uint2 eight_codes(const float (&v)[8], float inverse) {
  return make_uint2(four_codes<format>(v, inverse), four_codes<format>(v + 4, inverse));
}

// --- pairs of bf16 ---

__device__ __forceinline__ uint32_t max_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }
// The largest |v| of four pairs, one in each half.
__device__ __forceinline__ uint32_t largest_of(const uint32_t (&v)[4]) {
  constexpr uint32_t magnitudes = 0x7fff7fffu;
  return max_halves(max_halves(v[0] & magnitudes, v[1] & magnitudes),
                    max_halves(v[2] & magnitudes, v[3] & magnitudes));
}
// The larger half, as bits of a float.
__device__ __forceinline__ uint32_t larger_half(uint32_t pair) {
  return max(pair << 16, pair & 0xffff0000u);
}
// Infinities as NaNs, in both halves.
__device__ __forceinline__ uint32_t with_nans(uint32_t x) {
  if ((x & 0x7f80u) == 0x7f80u) x |= 0x7fu;
  if ((x & 0x7f800000u) == 0x7f800000u) x |= 0x7f0000u;
  return x;
}

// As eight_codes. The inverse of a scale is a power of two, so products in bf16 are exact.
template <__nv_fp8_interpretation_t format>
__device__ __forceinline__ uint2 codes_of_pairs(const uint32_t (&v)[4], float inverse) {
  const __nv_bfloat162 factor = __float2bfloat162_rn(inverse);
  uint32_t two[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const __nv_bfloat162 scaled = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&v[k]), factor);
    two[k] = *reinterpret_cast<const uint32_t*>(&scaled);
  }
  if (larger_half(largest_of(v)) >= 0x7f800000u) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // finite values that overflow stay infinite, and saturate
      if ((v[k] & 0x7f80u) == 0x7f80u) two[k] |= 0x7fffu;
      if ((v[k] & 0x7f800000u) == 0x7f800000u) two[k] |= 0x7fff0000u;
    }
  }
  uint32_t code[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    code[k] = __nv_cvt_float2_to_fp8x2(unpack(two[k], __nv_bfloat16()), __NV_SATFINITE, format);
  return make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
}

// Byte k of word j of the result is byte j of word k.
__device__ __forceinline__ void transpose(uint32_t (&to)[4], uint32_t a, uint32_t b, uint32_t c,
                                          uint32_t d) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);
  to[0] = __byte_perm(ab, cd, 0x5410), to[1] = __byte_perm(ab, cd, 0x7632);
  to[2] = __byte_perm(ab2, cd2, 0x5410), to[3] = __byte_perm(ab2, cd2, 0x7632);
}

// --- square tiles ---

// 256 threads round 128 rows and columns, 8 rows of 8 columns each.
struct Fp8Tile {
  static constexpr int side = 128, threads = 256, chunks = side / 8;
  static_assert(side == fp8_sum_rows && chunks * chunks == threads);
  // The transposed codes. Column c has 16 chunks of 8 rows; chunk b lies at position b ^ (c / 8),
  // so that neither writing nor reading has bank conflicts.
  using Codes = uint2[side * chunks];

  int thread, group, band;  // group: of 8 columns; band: of 8 rows
  int64_t row, column;      // of the thread's first element

  // Of the tile that begins at (row0, column0).
  __device__ Fp8Tile(int thread, int64_t row0, int64_t column0)
      : thread(thread),
        group(thread % chunks),
        band(thread / chunks),
        row(row0 + band * 8),
        column(column0 + group * 8) {}

  __device__ int64_t row0() const { return row - band * 8; }
  __device__ int64_t column0() const { return column - group * 8; }
  __device__ static uint2* chunk_of(uint2* codes, int column, int band) {
    return codes + column * chunks + (band ^ (column / 8));
  }

  // Writes the tile to `yt`. All threads of the block call this.
  __device__ void write_transposed(const Fp8Target& to, const uint2 (&rows)[8],
                                   uint2* codes) const {
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
        *chunk_of(codes, group * 8 + half * 4 + k, band) = make_uint2(top[k], bottom[k]);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < side * chunks / threads; ++j) {
      const int index = thread + j * threads, of_column = index / chunks, of_band = index % chunks;
      const int64_t c = column0() + of_column, r = row0() + of_band * 8;
      if (c < to.C && r < to.wide)
        *reinterpret_cast<uint2*>(to.yt + c * to.wide + r) = *chunk_of(codes, of_column, of_band);
    }
  }
};

// --- whole rows ---

// The codes of 32 rows in shared memory, one row after the other.
struct Fp8Lines {
  static constexpr int rows = 32;

  // Where row r begins. The gap of 64 bytes puts rows r and r + 16 into different banks.
  __host__ __device__ static constexpr int at(int r, int width) {
    return r * width + (r >= rows / 2 ? 64 : 0);
  }
  static constexpr size_t bytes(int64_t width) { return size_t(at(rows, int(width))); }

  // Writes the rows from row0 on to `yt`. Two threads share four columns: each takes 16 of the
  // rows, and both write 32 adjacent bytes.
  template <int threads>
  __device__ static void write_transposed(const Fp8Target& to, const uint8_t* codes, int64_t row0) {
    const int width = int(to.C);
    for (int task = int(threadIdx.x); task < width / 2; task += threads) {
      const int half = task % 2, column = task / 2 * 4;
      const int64_t row = row0 + half * 16;
      if (row >= to.wide) continue;
      uint32_t t[4][4];  // of four rows each: a word for every column
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] =
              *reinterpret_cast<const uint32_t*>(codes + at(half * 16 + q * 4 + i, width) + column);
        transpose(t[q], w[0], w[1], w[2], w[3]);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k)
        *reinterpret_cast<uint4*>(to.yt + (column + k) * to.wide + row) =
            make_uint4(t[0][k], t[1][k], t[2][k], t[3][k]);
    }
  }
};

}  // namespace hearth::cuda
