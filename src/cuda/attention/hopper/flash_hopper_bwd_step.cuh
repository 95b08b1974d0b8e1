// What a consumer warp group computes in a step of the backward pass: products of tiles, P and dS
// in registers, and the stores of results to shared memory. A warp group has 64 keys (rows) by M
// queries (columns).
#pragma once

#include <cstring>

#include "cuda/attention/hopper/flash_hopper_bwd.cuh"
#include "cuda/device/quick_math.cuh"

namespace hearth::cuda::flash_bwd {

__device__ __forceinline__ float2 shared_float2(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ int2 shared_int2(uint32_t at) {
  int2 v;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

// x (64, M) = rows (64, D) of a tile of keys times a tile of Q or dY, transposed.
template <class T, class S>
__device__ __forceinline__ void times_rows(float (&x)[S::M / 2], uint32_t keys_at,
                                           uint32_t rows_at) {
#pragma unroll
  for (int k = 0; k < S::D / 16; ++k) {
    const uint64_t a = desc_k_major(keys_at + k / 4 * keys * 128) + 2 * (k % 4);
    const uint64_t b = desc_k_major(rows_at + k / 4 * S::M * 128) + 2 * (k % 4);
    Wgmma<T, S::M>::ss(x, a, b, k > 0);
  }
  wgmma_commit();
}

// The same with the first columns of the keys in registers, as loaded by `load_rows_64`.
template <class T, class S>
__device__ __forceinline__ void times_rows(float (&x)[S::M / 2], const uint32_t (&v)[4 * S::held],
                                           uint32_t keys_at, uint32_t rows_at) {
#pragma unroll
  for (int k = 0; k < S::D / 16; ++k) {
    const uint64_t a = desc_k_major(keys_at + k / 4 * keys * 128) + 2 * (k % 4);
    const uint64_t b = desc_k_major(rows_at + k / 4 * S::M * 128) + 2 * (k % 4);
    if (k < S::held)
      Wgmma<T, S::M>::template rs<0>(x, v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3], b,
                                     k > 0);
    else
      Wgmma<T, S::M>::ss(x, a, b, k > 0);
  }
  wgmma_commit();
}

// Loads 64 rows of a tile of keys. `at`: as in store_panels.
template <int n>
__device__ __forceinline__ void load_rows_64(uint32_t (&x)[n], uint32_t at) {
#pragma unroll
  for (int k = 0; k < n / 4; ++k) {
    uint32_t y[4];
    ldmatrix4(y, (at + k / 4 * keys * 128) ^ (k % 4 * 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[4 * k + i] = y[i];
  }
}

// sum (64, D) += x (64, M) times a tile of Q or dY.
template <class T, class S>
__device__ __forceinline__ void add_product(float (&sum)[S::D / 2], const uint32_t (&x)[S::M / 4],
                                            uint32_t rows_at, bool add) {
#pragma unroll
  for (int k = 0; k < S::M / 16; ++k)
    Wgmma<T, S::D>::template rs<1>(sum, x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3],
                                   desc_mn_major(rows_at, S::M * 128) + k * (2048 >> 4),
                                   add || k > 0);
  wgmma_commit();
}

// This warp group's 64 x 64 part of dq = dS K.
template <class T, class S>
__device__ __forceinline__ void dq_product(float (&dq)[32], uint32_t ds, uint32_t k_at, int w) {
  const uint32_t part = w * keys * 128;
  const uint64_t a = desc_mn_major(ds + (S::M == 128 ? part : 0), 0);
  const uint64_t b = desc_mn_major(k_at + (S::M == 128 ? 0 : part), 0);
#pragma unroll
  for (int k = 0; k < keys / 16; ++k)
    Wgmma<T, 64>::template ss<1, 1>(dq, a + k * (2048 >> 4), b + k * (2048 >> 4), k > 0);
  wgmma_commit();
}

// The two halves of a pair as floats.
template <class T>
__device__ __forceinline__ float2 unpack2(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 y;
    memcpy(&y, &x, 4);
    return __half22float2(y);
  } else {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000)};
  }
}

// Stores x (64 rows of this warp group, 4 * n columns) into panels `panel` bytes apart. `at`: the
// swizzled address of this lane's row and chunk in the first panel.
template <int n>
__device__ __forceinline__ void store_panels(uint32_t at, uint32_t panel, const uint32_t (&x)[n]) {
#pragma unroll
  for (int k = 0; k < n / 4; ++k)
    stmatrix4((at + k / 4 * panel) ^ (k % 4 * 32), x[4 * k], x[4 * k + 1], x[4 * k + 2],
              x[4 * k + 3]);
}

// The positions of a thread's query-key pairs, relative to its first element.
struct Pairs {
  int distance;  // query - key
  int window;
  int document[2];  // of two keys, 8 apart
};

// Probabilities from scores, packed.
template <class T, class S, bool masked>
__device__ __forceinline__ void probabilities(uint32_t (&packed)[S::M / 4],
                                              const float (&s)[S::M / 2], uint32_t stat,
                                              float scale, const Pairs& pairs) {
#pragma unroll
  for (int j = 0; j < S::M / 8; ++j) {
    const float2 lse = shared_float2(stat + 32 * j);
    int2 document{};
    if constexpr (masked && S::documents) document = shared_int2(stat + 2 * S::M * 4 + 32 * j);
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = e / 2, c = e % 2;
      x[e] = exp2_fast(s[4 * j + e] * scale - (c ? lse.y : lse.x));
      if constexpr (masked) {
        bool seen = unsigned(pairs.distance + 8 * j + c - 8 * r) < unsigned(pairs.window);
        if constexpr (S::documents)
          seen = seen && (c ? document.y : document.x) == pairs.document[r];
        x[e] = seen ? x[e] : 0;
      }
    }
    packed[2 * j] = pack2<T>(x[0], x[1]);
    packed[2 * j + 1] = pack2<T>(x[2], x[3]);
  }
}

// dS = P * (dP - delta), with P as rounded for dV: there are no registers to keep it in fp32 as
// well. A masked key gives exactly 0, even where dP is infinite.
template <class T, class S, bool masked>
__device__ __forceinline__ void slopes(uint32_t (&ds)[S::M / 4], const uint32_t (&packed)[S::M / 4],
                                       const float (&dp)[S::M / 2], uint32_t stat) {
#pragma unroll
  for (int j = 0; j < S::M / 8; ++j) {
    const float2 delta = shared_float2(stat + S::M * 4 + 32 * j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 p = unpack2<T>(packed[2 * j + r]);
      float x = p.x * (dp[4 * j + 2 * r] - delta.x), y = p.y * (dp[4 * j + 2 * r + 1] - delta.y);
      if constexpr (masked) {
        x = p.x == 0 ? 0 : x;
        y = p.y == 0 ? 0 : y;
      }
      ds[2 * j + r] = pack2<T>(x, y);
    }
  }
}

// Rounds 64 rows of a finished sum to 16 bits and stores them in panels.
template <class T, int n>
__device__ __forceinline__ void stage_sum(const float (&x)[n], float scale, uint32_t at) {
  uint32_t y[n / 2];
#pragma unroll
  for (int i = 0; i < n / 2; ++i) y[i] = pack2<T>(x[2 * i] * scale, x[2 * i + 1] * scale);
  store_panels(at, 64 * 128, y);
}

// Stores a part of dQ in register order; add_prior adds the running sum in the same layout.
__device__ __forceinline__ void stage_floats(const float (&x)[32], uint32_t at) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + i * 2048), "f"(x[4 * i]),
                 "f"(x[4 * i + 1]), "f"(x[4 * i + 2]), "f"(x[4 * i + 3])
                 : "memory");
}
__device__ __forceinline__ void add_prior(float (&x)[32], uint32_t at) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float4 y;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w)
                 : "r"(at + i * 2048)
                 : "memory");
    x[4 * i] += y.x;
    x[4 * i + 1] += y.y;
    x[4 * i + 2] += y.z;
    x[4 * i + 3] += y.w;
  }
}

}  // namespace hearth::cuda::flash_bwd
