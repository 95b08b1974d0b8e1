// Thin wrappers of Hopper's instructions: mbarrier, TMA, wgmma, setmaxnreg, named barriers. Device
// code needs sm_90a. Shared addresses are 32-bit (shared_at). Tiles of bf16 or f16 are stored as
// panels of 64 columns: rows of 128 bytes with 128-byte swizzle, aligned to 1024 bytes.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cuda/device/stream.h"

namespace hearth::cuda::hopper {

// ---- host: tensor maps ----

// Dimensions are innermost first. stride[i]: bytes between neighbouring indices of dimension i + 1.
struct TensorMapSpec {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  int dims = 0;
  cuuint64_t size[5] = {};
  cuuint64_t stride[4] = {};
  cuuint32_t box[5] = {};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

// The driver function is looked up through the runtime, so that nothing links libcuda. Elements
// outside the tensor read as zeros and are not stored.
inline CUtensorMap tensor_map(const TensorMapSpec& s) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          "looking up cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess) check(cudaErrorNotSupported, "encoding tensor maps");
    return reinterpret_cast<Encode>(entry);
  }();
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult made =
      encode(&map, s.type, cuuint32_t(s.dims), const_cast<void*>(s.data), s.size, s.stride, s.box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, s.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS) check(cudaErrorInvalidValue, "encoding a tensor map");
  return map;
}

// x (B, T, heads, D) of 16-bit floats as (64, T, D / 64, heads, B): a box is `rows` tokens of one
// head, one panel of 64 columns after the other.
inline CUtensorMap head_tile_map(const void* x, DType dtype, int B, int T, int heads, int D,
                                 int rows) {
  const auto type =
      dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t head = cuuint64_t(D) * 2, token = head * cuuint64_t(heads);
  return tensor_map(
      {.data = x,
       .type = type,
       .dims = 5,
       .size = {64, cuuint64_t(T), cuuint64_t(D / 64), cuuint64_t(heads), cuuint64_t(B)},
       .stride = {token, 128, head, token * cuuint64_t(T)},
       .box = {64, cuuint32_t(rows), cuuint32_t(D / 64), 1, 1}});
}

#ifdef __CUDACC__

// ---- addresses, barriers, registers ----

__device__ __forceinline__ uint32_t shared_at(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA; a __syncthreads must follow.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and makes the phase wait for `bytes` of TMA transfers as well.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_try(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done;
}
// Waits until the phase of this parity has completed. A new barrier is in phase 0, so waiting for
// parity 1 returns at once.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  while (!barrier_try(bar, parity)) {}
}

// Named barriers 1 .. 15 (0 is __syncthreads) of `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int N>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Orders this thread's ordinary accesses to shared memory before the TMA and wgmma accesses that
// follow the next barrier.
__device__ __forceinline__ void async_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- TMA: called by one thread; coordinates are innermost first ----

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap& map, uint32_t bar, int c0,
                                         int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap& map, uint32_t bar, int c0,
                                         int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap& map, uint32_t bar, int c0,
                                         int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
// To the same place in every block of the cluster whose bit is set; the barrier at `bar` of each of
// them counts the bytes.
__device__ __forceinline__ void tma_load_all(uint32_t dst, const CUtensorMap& map, uint32_t bar,
                                             int c0, int c1, int c2, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t src, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
      " [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t src, int c0, int c1,
                                          int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
      " [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t src, int c0, int c1,
                                          int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group"
      " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
// Plain bytes between global and shared memory: 16-byte aligned, a multiple of 16 bytes.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void bulk_store(void* dst, uint32_t src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add_f32(float* dst, uint32_t src, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst),
      "r"(src), "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most N of this thread's store groups still read shared memory.
template <int N>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// ---- shared memory of a swizzled panel ----

// Byte offset of 16-byte chunk `chunk` (0 .. 7) of `row` in a panel with rows of 128 bytes.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return uint32_t(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix4(uint32_t at, uint32_t a, uint32_t b, uint32_t c,
                                          uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same with each matrix transposed: lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix4_transposed(uint32_t at, uint32_t a, uint32_t b,
                                                     uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// Two floats as a pair of 16-bit floats, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// ---- wgmma ----

// Descriptor of a swizzled tile at the 1024-byte aligned address `at`. K-major (the K dimension
// runs along the rows of 128 bytes): groups of 8 rows are 1024 bytes apart. The next 16 of K within
// a panel are 32 bytes further: desc + 2.
__device__ __forceinline__ uint64_t desc_k_major(uint32_t at) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}
// MN-major (transposed: the K dimension runs down the rows). Panels of 64 columns are `panel` bytes
// apart. The next 16 of K are 16 rows further: desc + (2048 >> 4).
__device__ __forceinline__ uint64_t desc_mn_major(uint32_t at, uint32_t panel) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(panel >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

// Needed before the first wgmma of a batch, and after registers that it uses were written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most N committed groups are in flight.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving uses of accumulators across a wait.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d (64, N) [+]= a (64, 16) b (16, N). Thread t of the warp group holds, in d[4 j + 2 r + c], row
// 16 (t / 32) + 8 r + t % 32 / 4, column 8 j + 2 (t % 4) + c of d. If a is in registers, a[2 h + r]
// holds the pair of columns from 8 h + 2 (t % 4) on, of the same rows.
template <class T, int N>
struct Wgmma;

// clang-format off
#define HEARTH_R10(a) "%" #a "0, %" #a "1, %" #a "2, %" #a "3, %" #a "4, %" #a "5, %" #a "6, %" #a "7, %" #a "8, %" #a "9"
#define HEARTH_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HEARTH_D16(i) HEARTH_D4(i), HEARTH_D4(i + 4), HEARTH_D4(i + 8), HEARTH_D4(i + 12)
// Operands %0 .. of the accumulators, for N = 32, 64, ..
#define HEARTH_N32 HEARTH_R10() ", %10, %11, %12, %13, %14, %15"
#define HEARTH_N64 HEARTH_R10() ", " HEARTH_R10(1) ", " HEARTH_R10(2) ", %30, %31"
#define HEARTH_N96 HEARTH_R10() ", " HEARTH_R10(1) ", " HEARTH_R10(2) ", " HEARTH_R10(3) \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define HEARTH_N128 HEARTH_R10() ", " HEARTH_R10(1) ", " HEARTH_R10(2) ", " HEARTH_R10(3) ", " \
  HEARTH_R10(4) ", " HEARTH_R10(5) ", %60, %61, %62, %63"
#define HEARTH_N160 HEARTH_R10() ", " HEARTH_R10(1) ", " HEARTH_R10(2) ", " HEARTH_R10(3) ", " \
  HEARTH_R10(4) ", " HEARTH_R10(5) ", " HEARTH_R10(6) ", " HEARTH_R10(7)
#define HEARTH_N192 HEARTH_N160 ", " HEARTH_R10(8) ", %90, %91, %92, %93, %94, %95"
#define HEARTH_N256 HEARTH_N160 ", " HEARTH_R10(8) ", " HEARTH_R10(9) ", " HEARTH_R10(10) ", " \
  HEARTH_R10(11) ", %120, %121, %122, %123, %124, %125, %126, %127"

// o0 .. o6: operand numbers after the accumulators.
#define HEARTH_WGMMA(type, name, n, regs, o0, o1, o2, o3, o4, o5, o6, ...)                         \
  template <>                                                                                      \
  struct Wgmma<type, n> {                                                                          \
    /* a, b by descriptor; tb: b is MN-major, ta: a is. */                                         \
    template <int ta = 0, int tb = 0>                                                              \
    static __device__ __forceinline__ void ss(float (&d)[n / 2], uint64_t a, uint64_t b,           \
                                              bool add) {                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" regs       \
                   "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";\n}"                        \
                   : __VA_ARGS__ : "l"(a), "l"(b), "r"(int(add)), "n"(ta), "n"(tb));               \
    }                                                                                              \
    template <int tb = 0>                                                                          \
    static __device__ __forceinline__ void rs(float (&d)[n / 2], uint32_t a0, uint32_t a1,         \
                                              uint32_t a2, uint32_t a3, uint64_t b, bool add) {    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" regs       \
                   "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, %" #o6 ";\n}"  \
                   : __VA_ARGS__                                                                   \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int(add)), "n"(tb));          \
    }                                                                                              \
  };
#define HEARTH_WGMMAS(type, name)                                                                  \
  HEARTH_WGMMA(type, name, 32, HEARTH_N32, 16, 17, 18, 19, 20, 21, 22, HEARTH_D16(0))              \
  HEARTH_WGMMA(type, name, 64, HEARTH_N64, 32, 33, 34, 35, 36, 37, 38, HEARTH_D16(0),              \
               HEARTH_D16(16))                                                                     \
  HEARTH_WGMMA(type, name, 96, HEARTH_N96, 48, 49, 50, 51, 52, 53, 54, HEARTH_D16(0),              \
               HEARTH_D16(16), HEARTH_D16(32))                                                     \
  HEARTH_WGMMA(type, name, 128, HEARTH_N128, 64, 65, 66, 67, 68, 69, 70, HEARTH_D16(0),            \
               HEARTH_D16(16), HEARTH_D16(32), HEARTH_D16(48))                                     \
  HEARTH_WGMMA(type, name, 160, HEARTH_N160, 80, 81, 82, 83, 84, 85, 86, HEARTH_D16(0),            \
               HEARTH_D16(16), HEARTH_D16(32), HEARTH_D16(48), HEARTH_D16(64))                     \
  HEARTH_WGMMA(type, name, 192, HEARTH_N192, 96, 97, 98, 99, 100, 101, 102, HEARTH_D16(0),         \
               HEARTH_D16(16), HEARTH_D16(32), HEARTH_D16(48), HEARTH_D16(64), HEARTH_D16(80))     \
  HEARTH_WGMMA(type, name, 256, HEARTH_N256, 128, 129, 130, 131, 132, 133, 134, HEARTH_D16(0),     \
               HEARTH_D16(16), HEARTH_D16(32), HEARTH_D16(48), HEARTH_D16(64), HEARTH_D16(80),     \
               HEARTH_D16(96), HEARTH_D16(112))
HEARTH_WGMMAS(__nv_bfloat16, "bf16")
HEARTH_WGMMAS(__half, "f16")
#undef HEARTH_WGMMAS
#undef HEARTH_WGMMA
#undef HEARTH_N32
#undef HEARTH_N64
#undef HEARTH_N96
#undef HEARTH_N128
#undef HEARTH_N160
#undef HEARTH_N192
#undef HEARTH_N256
#undef HEARTH_D16
#undef HEARTH_D4
#undef HEARTH_R10
// clang-format on

// Position in a ring of buffers: the next stage, and the parity to wait for at its barriers.
template <int stages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

#endif  // __CUDACC__

}  // namespace hearth::cuda::hopper
