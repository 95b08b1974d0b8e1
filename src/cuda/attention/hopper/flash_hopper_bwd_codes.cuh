// Finished sums of the backward pass as fp8 codes: a warp group rounds its 64 x 64 elements, puts
// the codes into shared memory plain and transposed, and writes both copies. Values are scaled
// before they are rounded to bf16, which gives the same bits as scaling after it, since scales are
// powers of two.
#pragma once

#include "cuda/attention/hopper/flash_hopper_bwd_step.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda::flash_bwd {

// The shared memory for the codes of a warp group: two copies of 64 rows of 64 bytes, then 64 rows
// of bf16 as stage_sum stores them, whose place the column sums take.
constexpr int codes_plain = 0, codes_transposed = 64 * 64, codes_values = 2 * 64 * 64;
constexpr int codes_bytes = codes_values + 64 * 128;

// Byte offset of 16-byte chunk `chunk` (0 .. 3) of `row` in rows of 64 bytes. Eight rows at one
// chunk, and four rows at chunks 0 and 1 or 2 and 3, lie in different banks.
__device__ __forceinline__ uint32_t codes_at(int row, int chunk) {
  const int turn = (row & 2) | (row >> 2 & 1);
  return uint32_t(row * 64 + ((chunk ^ turn) << 4));
}

// What a consumer keeps while it writes codes.
struct Rounder {
  float inverse = 1;     // 1 / scale
  uint32_t largest = 0;  // two halves: max |v| / scale of this thread, as bits of bf16

  // The pass that measures leaves values as they are.
  __device__ void start(const Params& p) {
    if (p.measure_only) return;
    const bool stores = blockIdx.x == 0 && threadIdx.x == 0;
    inverse = p.to.inverse_scale(p.to.measures(), true, stores);
  }

  // All consumer warps call this at the end.
  __device__ void finish(const Params& p) const {
    if (!p.measure_only && p.to.measures()) return;  // the other pass has done it
    const uint32_t bits = max(largest << 16, largest & 0xffff0000u);
    const float v = __uint_as_float(bits) / inverse;
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(v) & 0x7fffffffu);
    if (threadIdx.x % 32 == 0) atomicMax(&p.to.site->largest, most);
  }
};

__device__ __forceinline__ uint32_t pair_of_codes(uint32_t x) {
  return __nv_cvt_float2_to_fp8x2(unpack2<__nv_bfloat16>(x), __NV_SATFINITE, __NV_E5M2);
}

// The sums over this warp's 16 rows of staged values: one float per column, in the place of its
// rows.
__device__ __forceinline__ void stage_column_sums(uint32_t values, uint32_t store_at, int warp,
                                                  int lane) {
  constexpr uint32_t one = 0x3f803f80u;
  const uint32_t ones[4] = {one, one, one, one};
  float sums[8][4] = {};
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t x[4];
    load_transposed(x, (values + store_at) ^ (k * 32));
    multiply(sums[2 * k], ones, x[0], x[1], __nv_bfloat16());
    multiply(sums[2 * k + 1], ones, x[2], x[3], __nv_bfloat16());
  }
  __syncwarp();  // all rows are read
  if (lane >= 4) return;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    asm volatile(
        "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(values + warp * 2048 + (8 * j + 2 * lane) * 4),
        "f"(sums[j][0]), "f"(sums[j][1])
        : "memory");
}

// Rounds this warp group's x * scale and stages it at `at`. `store_at`: as in store_panels. A
// barrier of the warp group must follow before write_codes.
__device__ __forceinline__ void stage_codes(const Params& p, Rounder& r, const float (&x)[32],
                                            float scale, uint32_t at, uint32_t store_at) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const float factor = scale * r.inverse;
  uint32_t y[16],
      most = 0;  // y[2 j + h]: row 8 h + lane / 4, the pair of columns 8 j + 2 (lane % 4)
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    y[i] = pack2<__nv_bfloat16>(x[2 * i] * factor, x[2 * i + 1] * factor);
    most = max_halves(most, y[i] & 0x7fff7fffu);
  }
  r.largest = max_halves(r.largest, most);
  if (p.measure_only) return;
  if ((most & 0xffffu) >= 0x7f80u || most >= 0x7f800000u)
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] = with_nans(y[i]);
  if (p.to.sums) {
    store_panels(at + codes_values + store_at, 64 * 128, y);
    stage_column_sums(at + codes_values, store_at, warp, lane);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i] = pair_of_codes(y[i]);
  // Plain: a chunk has 16 columns of a row; word q has the pairs 2 q and 8 + 2 q.
  const int row = 16 * warp + lane % 16;
#pragma unroll
  for (int k = 0; k < 4; k += 2)
    stmatrix4(at + codes_plain + codes_at(row, k + lane / 16),
              __byte_perm(y[4 * k], y[4 * k + 2], 0x5410),
              __byte_perm(y[4 * k + 1], y[4 * k + 3], 0x5410),
              __byte_perm(y[4 * k + 4], y[4 * k + 6], 0x5410),
              __byte_perm(y[4 * k + 5], y[4 * k + 7], 0x5410));
    // Transposed: chunk `warp` has this warp's 16 rows of a column, in the order 0, 8, 1, 9, ..
#pragma unroll
  for (int j = 0; j < 8; j += 4)
    stmatrix4_transposed(at + codes_transposed + codes_at(8 * j + lane, warp),
                         __byte_perm(y[2 * j], y[2 * j + 1], 0x5140),
                         __byte_perm(y[2 * j + 2], y[2 * j + 3], 0x5140),
                         __byte_perm(y[2 * j + 4], y[2 * j + 5], 0x5140),
                         __byte_perm(y[2 * j + 6], y[2 * j + 7], 0x5140));
}

__device__ __forceinline__ uint4 shared_uint4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ float shared_float(uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}

// Writes staged codes as rows from `row` and columns from `column` on. Two
// threads write 32 neighbouring bytes of a row, or of a column, at a time.
__device__ __forceinline__ void write_codes(const Params& p, const Rounder& r, uint32_t at,
                                            int64_t row, int column) {
  if (p.measure_only) return;
  const int thread = threadIdx.x % 128, line = thread / 2, half = thread % 2;
  if (p.to.y) {
    uint8_t* to = p.to.y + (row + line) * p.to.C + column + half * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 x = shared_uint4(at + codes_plain + codes_at(line, half + 2 * i));
      reinterpret_cast<uint4*>(to)[2 * i] =
          make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.z, x.w, 0x5410),
                     __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x7632));
    }
  }
  if (p.to.yt) {
    uint8_t* to = p.to.yt + (column + line) * p.to.wide + row + half * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 x = shared_uint4(at + codes_transposed + codes_at(line, half + 2 * i));
      reinterpret_cast<uint4*>(to)[2 * i] =
          make_uint4(__byte_perm(x.x, x.y, 0x6420), __byte_perm(x.z, x.w, 0x6420),
                     __byte_perm(x.x, x.y, 0x7531), __byte_perm(x.z, x.w, 0x7531));
    }
  }
  if (!p.to.sums || thread >= 64) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < 4; ++warp)
    sum += shared_float(at + codes_values + warp * 2048 + thread * 4);
  // Both warp groups add to a sum of 128 rows, which was 0: two addends have one sum in any order.
  atomicAdd(p.to.sums + row / fp8_sum_rows * p.to.C + column + thread, sum / r.inverse);
}

}  // namespace hearth::cuda::flash_bwd
