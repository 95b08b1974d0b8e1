// Building blocks of all kernels: packs of elements moved 16 bytes at a time, conversions, sums
// over warps and blocks in a fixed order, dispatch on a tensor's dtype.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/math.h"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/stream.h"

namespace hearth::cuda {

// N adjacent elements; a load or store of up to 16 bytes is one instruction.
template <class T, int N>
struct Pack {
  static constexpr int bytes = N * int(sizeof(T));
  static constexpr int words = bytes < 4 ? 1 : bytes / 4;
  uint32_t w[words];
};

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* p) {
  using P = Pack<T, N>;
  P r;
  if constexpr (P::bytes == 2) {
    r.w[0] = *reinterpret_cast<const uint16_t*>(p);
  } else if constexpr (P::bytes == 4) {
    r.w[0] = *reinterpret_cast<const uint32_t*>(p);
  } else if constexpr (P::bytes == 8) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    r.w[0] = v.x, r.w[1] = v.y;
  } else {
    static_assert(P::bytes % 16 == 0);
#pragma unroll
    for (int i = 0; i < P::bytes / 16; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(p)[i];
      r.w[4 * i] = v.x, r.w[4 * i + 1] = v.y, r.w[4 * i + 2] = v.z, r.w[4 * i + 3] = v.w;
    }
  }
  return r;
}

template <int N, class T>
__device__ __forceinline__ void store(T* p, const Pack<T, N>& r) {
  using P = Pack<T, N>;
  if constexpr (P::bytes == 2) {
    *reinterpret_cast<uint16_t*>(p) = uint16_t(r.w[0]);
  } else if constexpr (P::bytes == 4) {
    *reinterpret_cast<uint32_t*>(p) = r.w[0];
  } else if constexpr (P::bytes == 8) {
    *reinterpret_cast<uint2*>(p) = make_uint2(r.w[0], r.w[1]);
  } else {
#pragma unroll
    for (int i = 0; i < P::bytes / 16; ++i)
      reinterpret_cast<uint4*>(p)[i] =
          make_uint4(r.w[4 * i], r.w[4 * i + 1], r.w[4 * i + 2], r.w[4 * i + 3]);
  }
}

// Element i of a pack as a float; i is known at compile time once loops are unrolled.
template <int N>
__device__ __forceinline__ float get(const Pack<float, N>& p, int i) {
  return __uint_as_float(p.w[i]);
}
template <int N>
__device__ __forceinline__ float get(const Pack<__nv_bfloat16, N>& p, int i) {
  return __uint_as_float(i % 2 ? p.w[i / 2] & 0xffff0000u : p.w[i / 2] << 16);
}
template <int N>
__device__ __forceinline__ float get(const Pack<__half, N>& p, int i) {
  return __half2float(__ushort_as_half(uint16_t(p.w[i / 2] >> (i % 2 * 16))));
}

template <int N>
__device__ __forceinline__ void round_to(Pack<float, N>& p, const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) p.w[i] = __float_as_uint(x[i]);
}
template <int N>
__device__ __forceinline__ void round_to(Pack<__nv_bfloat16, N>& p, const float (&x)[N]) {
  if constexpr (N == 1) {
    p.w[0] = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      p.w[i] = uint32_t(__bfloat16_as_ushort(pair.x)) | uint32_t(__bfloat16_as_ushort(pair.y))
                                                            << 16;
    }
  }
}
template <int N>
__device__ __forceinline__ void round_to(Pack<__half, N>& p, const float (&x)[N]) {
  if constexpr (N == 1) {
    p.w[0] = __half_as_ushort(__float2half_rn(x[0]));
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      p.w[i] = uint32_t(__half_as_ushort(pair.x)) | uint32_t(__half_as_ushort(pair.y)) << 16;
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void store_rounded(T* p, const float (&x)[N]) {
  Pack<T, N> r;
  round_to(r, x);
  store(p, r);
}

// Number of elements of T in 16 bytes.
template <class T>
constexpr int wide = 16 / int(sizeof(T));

// All lanes of each group of `lanes` (a power of two) get the same bits, because addition commutes.
template <int lanes = 32, class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// Over a block of whole warps. `shared` holds 32 values. Consecutive calls must use different
// memory, so that one barrier per call is enough.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  const int warps = int(blockDim.x) / 32, lane = int(threadIdx.x) % 32;
  x = warp_sum(x);
  if (lane == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < warps ? shared[lane] : T(0));
}
__device__ __forceinline__ float block_max(float x, float* shared) {
  const int warps = int(blockDim.x) / 32, lane = int(threadIdx.x) % 32;
  x = warp_max(x);
  if (lane == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_max(shared[lane < warps ? lane : 0]);
}

// ---- host ----

// The data of a tensor as elements of T.
template <class T>
T* as(const Tensor& t) {
  return reinterpret_cast<T*>(t.data);
}

// Checks the dtype of all tensors that are present.
template <class... Ts>
void expect_dtypes(const char* op, DType want, const Ts&... ts) {
  const auto expect = [&](const Tensor& t) {
    if (t && t.dtype != want) refuse_dtypes(op, want, t.dtype);
  };
  (expect(ts), ...);
}

// Calls f(static_cast<T*>(nullptr)) with the element type of t.
template <class F>
void by_dtype(const char* op, const Tensor& t, F&& f) {
  if (t.dtype == DType::f32) {
    f(static_cast<float*>(nullptr));
  } else if (t.dtype == DType::bf16) {
    f(static_cast<__nv_bfloat16*>(nullptr));
  } else if (t.dtype == DType::f16) {
    f(static_cast<__half*>(nullptr));
  } else {
    refuse_dtype(op, t.dtype);
  }
}

// Whether rows of `width` elements of all these tensors (absent ones aside) begin at multiples of
// 16 bytes.
template <class... Ts>
bool packs_fit(int64_t width, const Ts&... ts) {
  const auto fits = [&](const Tensor& t) {
    return !t ||
           (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && width * size_of(t.dtype) % 16 == 0);
  };
  return (fits(ts) && ...);
}

template <int n>
struct Number {
  static constexpr int value = n;
};

// Calls f(Number<n>), where n is how many elements of T may be moved at once: 16 bytes' worth or 1.
template <class T, class F>
void by_width(bool packs, F&& f) {
  if (packs)
    f(Number<wide<T>>{});
  else
    f(Number<1>{});
}

// Elementwise work: f.load<N>(i) reads the inputs of elements i .. i + N - 1, f.finish<N>(i, in)
// writes the results. Each thread has `deep` packs in flight.
template <int N, int deep, class F>
__global__ void __launch_bounds__(256) each_pack(F f, int64_t n) {
  const int64_t first = (int64_t(blockIdx.x) * blockDim.x * deep + threadIdx.x) * N;
  const int64_t step = int64_t(blockDim.x) * N;
  decltype(f.template load<N>(0)) in[deep];
#pragma unroll
  for (int d = 0; d < deep; ++d)
    if (first + d * step + N <= n) in[d] = f.template load<N>(first + d * step);
#pragma unroll
  for (int d = 0; d < deep; ++d)
    if (first + d * step + N <= n) f.template finish<N>(first + d * step, in[d]);
  if constexpr (N > 1) {  // the tail of the range, one element per thread
    const int64_t i = n / N * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && i < n) f.template finish<1>(i, f.template load<1>(i));
  }
}

template <int N, int deep = 2, class F>
void for_each(CudaStream& s, const char* op, const F& f, int64_t n) {
  if (n == 0) return;
  const int64_t blocks = ceil_div(n, int64_t(256) * deep * N);
  each_pack<N, deep><<<unsigned(blocks), 256, 0, s.handle>>>(f, n);
  check_launch(op);
}

}  // namespace hearth::cuda
