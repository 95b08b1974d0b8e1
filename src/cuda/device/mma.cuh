// Warp-level matrix products for Ampere and later: mma.sync m16n8k16, ldmatrix, cp.async, and tiles
// of rows in shared memory, swizzled by 16-byte chunks so that ldmatrix has no bank conflicts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/copy_async.cuh"

namespace hearth::cuda {

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds to four floats in memory without waiting. GPUs before Hopper add them one by one.
__device__ inline void add_in_memory(float4* to, const float (&c)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]),
               "f"(c[1]), "f"(c[2]), "f"(c[3])
               : "memory");
#else
  for (int e = 0; e < 4; ++e) atomicAdd(reinterpret_cast<float*>(to) + e, c[e]);
#endif
}

// Two floats rounded and packed, the first in the lower half.
__device__ inline uint32_t pack(float x, float y, __nv_bfloat16) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ inline uint32_t pack(float x, float y, __half) {
  const __half2 v = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ inline float2 unpack(uint32_t v, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v));
}

__device__ inline float2 unpack(uint32_t v, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&v));
}

// Two neighbouring 8-column accumulators as the A operand of a product over those 16 columns.
template <class T>
__device__ inline void accumulators_to_a(uint32_t (&a)[4], const float (&left)[4],
                                         const float (&right)[4]) {
  a[0] = pack(left[0], left[1], T());
  a[1] = pack(left[2], left[3], T());
  a[2] = pack(right[0], right[1], T());
  a[3] = pack(right[2], right[3], T());
}

// A tile of rows of `Columns` 16-bit elements in shared memory.
template <int Columns>
struct SharedTile {
  static constexpr int chunks = Columns / 8;
  uint32_t at;

  static constexpr int bytes(int rows) { return rows * Columns * 2; }
  // Bits of a chunk's index that are swizzled by the row: enough for 8 rows to cover all banks.
  static constexpr int turned = Columns % 64 == 0 ? 7 : Columns % 32 == 0 ? 3 : 1;
  __device__ static int turn(int row) {
    return turned == 7 ? row & 7 : turned == 3 ? (row >> 1) & 3 : (row >> 2) & 1;
  }
  __device__ uint32_t chunk(int row, int c) const {
    return at + uint32_t(row * Columns * 2 + ((c ^ turn(row)) << 4));
  }
  // chunk(row + lane_row, c + side), where row is a multiple of 8 and c is even. With constant row
  // and c, everything except one exclusive or is the same in every call.
  __device__ uint32_t corner(int row, int c, int lane_row, int side) const {
    const uint32_t base = at + uint32_t(lane_row * Columns * 2 + ((side ^ turn(lane_row)) << 4));
    return (base ^ uint32_t((c & turned) << 4)) + uint32_t(row * Columns * 2 + (c & ~turned) * 16);
  }

  // Fragments of 16 x 16 elements whose corner is (row, 8 * c). "A": row index m, column index k.
  __device__ void a(uint32_t (&r)[4], int row, int c, int lane) const {
    load_matrices(r, corner(row, c, lane & 15, lane >> 4));
  }
  // A of the transpose: row index k, column index m.
  __device__ void a_transposed(uint32_t (&r)[4], int row, int c, int lane) const {
    load_transposed(r, corner(row, c, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1));
  }
  // "B" of 16 columns: row index n, column index k; r[0], r[1] are for the first 8 of n.
  __device__ void b(uint32_t (&r)[4], int row, int c, int lane) const {
    load_matrices(r, corner(row, c, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1));
  }
  // B of the transpose: row index k, column index n.
  __device__ void b_transposed(uint32_t (&r)[4], int row, int c, int lane) const {
    load_transposed(r, corner(row, c, lane & 15, lane >> 4));
  }

  // Rows [first, first + Rows) of a matrix with `limit` rows of `width` elements; zeros beyond.
  template <int Rows, int Threads, class T>
  __device__ void load(const T* from, int64_t stride, int first, int limit, int width) const {
    constexpr int step = Threads / chunks;  // rows
    if constexpr (Threads % chunks == 0 && Rows % step == 0) {
      const int row = int(threadIdx.x) / chunks, c = int(threadIdx.x) % chunks;
      const T* p = from + (first + row) * stride + c * 8;
      const int rows = c * 8 < width ? limit - first : 0;
#pragma unroll
      for (int i = 0; i < Rows; i += step, p += step * stride)
        copy_async(chunk(row + i, c), p, row + i < rows);
    } else {
#pragma unroll
      for (int i = 0; i < (Rows * chunks + Threads - 1) / Threads; ++i) {
        const int row = (i * Threads + int(threadIdx.x)) / chunks;
        const int c = (i * Threads + int(threadIdx.x)) % chunks;
        if (row >= Rows) break;
        copy_async(chunk(row, c), from + (first + row) * stride + c * 8,
                   first + row < limit && c * 8 < width);
      }
    }
  }
};

}  // namespace hearth::cuda
