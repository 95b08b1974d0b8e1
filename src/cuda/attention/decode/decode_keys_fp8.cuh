// Keys and values stored in fp8 (core/fp8.h): loads as in decode_keys.cuh, and encoding. A kernel
// that reads keys of this step before they are in the cache rounds them to fp8 too, so that a row
// sees the same values whatever shares its step.
#pragma once

#include "core/fp8.h"
#include "cuda/attention/decode/decode_keys.cuh"

namespace hearth::cuda {

// Decodes two codes in the lower half of a word. GPUs before compute capability 8.9 place the bits
// in halves, which come out 2^8 too small.
__device__ inline float2 e4m3_floats(uint32_t two) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(two)));
  return unpack(halves, __half());
#else
  const uint32_t apart = __byte_perm(two, 0, 0x1404);  // each in the upper byte of its half
  const uint32_t halves = (apart & 0x80008000u) | ((apart & 0x7f007f00u) >> 1);
  const float2 f = unpack(halves, __half());
  return {f.x * 256, f.y * 256};
#endif
}

// Encodes finite x and y of magnitude at most 448; x goes to the lower byte.
__device__ inline uint32_t e4m3_codes(float x, float y) {
#if __CUDA_ARCH__ >= 890
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(y), "f"(x));
  return two;
#else
  const auto code = [](float f) {
    const uint32_t u = __float_as_uint(f), a = u & 0x7fffffffu, r = a - (120u << 23);
    const uint32_t small = __float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u;
    const uint32_t normal = (r + 0x7ffffu + ((r >> 20) & 1)) >> 20;
    return (a < 0x3c800000u ? small : normal) | ((u >> 24) & 0x80);
  };
  return code(x) | code(y) << 8;
#endif
}

__device__ inline float power_of(uint32_t exponent) { return __uint_as_float(exponent << 23); }

// Eight columns of a key or a value.
struct EightCodes {
  uint2 v;

  __device__ void load(const uint8_t* from, int width) {
    v = {0, 0};
    if (width >= 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
      v = *reinterpret_cast<const uint2*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t byte = i < width ? from[i] : 0;
        (i < 4 ? v.x : v.y) |= byte << 8 * (i % 4);
      }
    }
  }
  __device__ void store(uint8_t* to, int width) const {
    if (width >= 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint2*>(to) = v;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i < width) to[i] = uint8_t((i < 4 ? v.x : v.y) >> 8 * (i % 4));
    }
  }
  __device__ void floats(float (&f)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = e4m3_floats((i < 2 ? v.x : v.y) >> 16 * (i % 2));
      f[2 * i] = two.x, f[2 * i + 1] = two.y;
    }
  }
};

// Encodes eight values and returns their exponent; called by all Lanes threads of the vector.
template <int Lanes, class T>
__device__ uint32_t make_codes(EightCodes& codes, const T* from, int width) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned together = (Lanes == 32 ? ~0u : (1u << Lanes % 32) - 1) << lane / Lanes * Lanes;
  Eight<T> numbers;
  numbers.load(from, width);
  float f[8];
  numbers.floats(f);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(f[i]) & 0x7fffffffu);
  const uint32_t exponent = cache_exponent(__reduce_max_sync(together, largest));
  const float inverse = power_of(254 - min(exponent, 254u));
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    two[i] = exponent == 255 ? 0 : e4m3_codes(f[2 * i] * inverse, f[2 * i + 1] * inverse);
  codes.v = {two[0] | two[1] << 16, two[2] | two[3] << 16};
  return exponent;
}

// Encodes a vector and stores it at its place in a panel of the cache.
template <int Lanes, class T>
__device__ void store_codes(uint8_t* panel, const T* from, int at, int d, int D) {
  EightCodes codes;
  const uint32_t exponent = make_codes<Lanes>(codes, from + d, D - d);
  codes.store(panel + at * D + d, D - d);
  if (d == 0) panel[block_tokens * D + at] = uint8_t(exponent);
}

__device__ __forceinline__ void copy_eight_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}

// A thread's batch is `batch` consecutive keys, so that their exponents form one word.
struct Fp8Batch {
  static constexpr int apart = batch, step = 1;  // strides: between groups, within a thread
  static constexpr int in_order = batch;         // batches begin at its multiples

  // How many of the batch's keys from j on are in the cache.
  template <class T>
  __device__ static int old(const Keys<T, uint8_t>& keys, int j, int end) {
    return min(max(min(end, keys.first_fresh) - j, 0), batch);
  }
  // Their exponents, with zeros for the others.
  __device__ static uint32_t exponents(const uint8_t* panel, int row, int D, int n) {
    const uint32_t all = *reinterpret_cast<const uint32_t*>(panel + block_tokens * D + row);
    return n < batch ? all & ((1u << 8 * n) - 1) : all;
  }
};

// For few and large blocks.
template <class T, int Stride, int Lanes>
struct Fp8InRegisters : Fp8Batch {
  static constexpr int size = 0;  // shared memory
  static constexpr int whole = in_order;
  EightCodes k[batch], v[batch];
  uint32_t k_exponents, v_exponents;

  __device__ explicit Fp8InRegisters(uint4*) {}
  __device__ void begin(const Keys<T, uint8_t>& keys, int j, int end, int d) {
    const int n = old(keys, j, end), row = j % block_tokens;
    const uint8_t* panel =
        keys.cache + int64_t(n > 0 ? keys.table[j / block_tokens] : 0) * keys.block;
    k_exponents = n > 0 ? exponents(panel, row, keys.D, n) : 0;
    v_exponents = n > 0 ? exponents(panel + keys.to_v, row, keys.D, n) : 0;
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int width = u < n ? keys.D - d : 0;
      k[u].load(panel + (row + u) * keys.D + d, width);
      v[u].load(panel + keys.to_v + (row + u) * keys.D + d, width);
    }
  }
  __device__ void wait(const Keys<T, uint8_t>& keys, int turn, int j, int end, int d) {
    if (turn > 0) begin(keys, j, end, d);
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      if (j + u < keys.first_fresh || j + u >= end) continue;
      const T* own = keys.fresh + (j + u) * keys.fresh_row + d;
      k_exponents |= make_codes<Lanes>(k[u], own, keys.D - d) << 8 * u;
      v_exponents |= make_codes<Lanes>(v[u], own + keys.fresh_v, keys.D - d) << 8 * u;
    }
  }
  __device__ void next(const Keys<T, uint8_t>&, int, int, int, int) {}
  __device__ void key(float (&x)[8], int, int u) const { k[u].floats(x); }
  __device__ void value(float (&x)[8], int, int u) const { v[u].floats(x); }
  __device__ float key_unit(int u) const { return power_of(k_exponents >> 8 * u & 255); }
  __device__ float value_unit(int u) const { return power_of(v_exponents >> 8 * u & 255); }
};

// For many blocks: two batches in shared memory, as in InShared. Exponents are in registers, those
// of the batch in use first.
template <class T, int Stride, int Threads, int Lanes>
struct Fp8InShared : Fp8Batch {
  static constexpr int whole = Stride * batch;
  static constexpr int slots = 2, slot = 2 * batch * Threads;  // units of 8 bytes
  static constexpr int size = slots * slot / 2;                // units of 16 bytes
  uint2* memory;
  uint32_t k_exponents[slots], v_exponents[slots];

  __device__ explicit Fp8InShared(uint4* m) : memory(reinterpret_cast<uint2*>(m) + threadIdx.x) {}
  __device__ void begin(const Keys<T, uint8_t>& keys, int j, int end, int d) {
#pragma unroll
    for (int n = 0; n < slots; ++n) {
      load_old(keys, n, n, j + n * Stride * batch, end, d);
      commit_copies();
    }
  }
  __device__ void wait(const Keys<T, uint8_t>& keys, int turn, int j, int end, int d) {
    if (turn == 0)
#pragma unroll
      for (int n = 0; n < slots; ++n) load_fresh(keys, n, n, j + n * Stride * batch, end, d);
    wait_for_copies<1>();
  }
  // Called after batch `turn` at j has been used.
  __device__ void next(const Keys<T, uint8_t>& keys, int turn, int j, int end, int d) {
    k_exponents[0] = k_exponents[1], v_exponents[0] = v_exponents[1];
    load_old(keys, turn % slots, 1, j + slots * Stride * batch, end, d);
    commit_copies();
    load_fresh(keys, turn % slots, 1, j + slots * Stride * batch, end, d);
  }
  __device__ void key(float (&x)[8], int turn, int u) const { floats(x, turn, 2 * u); }
  __device__ void value(float (&x)[8], int turn, int u) const { floats(x, turn, 2 * u + 1); }
  __device__ float key_unit(int u) const { return power_of(k_exponents[0] >> 8 * u & 255); }
  __device__ float value_unit(int u) const { return power_of(v_exponents[0] >> 8 * u & 255); }

 private:
  __device__ void floats(float (&x)[8], int turn, int part) const {
    EightCodes{memory[turn % slots * slot + part * Threads]}.floats(x);
  }
  // n: the slot; e: index of its exponents.
  __device__ void load_old(const Keys<T, uint8_t>& keys, int n, int e, int j, int end, int d) {
    const int old_keys = old(keys, j, end), row = j % block_tokens;
    const uint8_t* panel =
        keys.cache + int64_t(old_keys > 0 ? keys.table[j / block_tokens] : 0) * keys.block;
    k_exponents[e] = old_keys > 0 ? exponents(panel, row, keys.D, old_keys) : 0;
    v_exponents[e] = old_keys > 0 ? exponents(panel + keys.to_v, row, keys.D, old_keys) : 0;
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      uint2* const to = memory + n * slot + 2 * u * Threads;
      const uint8_t* const from = panel + (row + u) * keys.D + d;
      if (u < old_keys && d < keys.D) {
        copy_eight_async(to, from);
        copy_eight_async(to + Threads, from + keys.to_v);
      } else {
        to[0] = to[Threads] = {0, 0};
      }
    }
  }
  __device__ void load_fresh(const Keys<T, uint8_t>& keys, int n, int e, int j, int end, int d) {
#pragma unroll 1  // rare and long
    for (int u = max(keys.first_fresh - j, 0); u < batch && j + u < end; ++u) {
      const T* own = keys.fresh + (j + u) * keys.fresh_row + d;
      EightCodes k, v;
      k_exponents[e] |= make_codes<Lanes>(k, own, keys.D - d) << 8 * u;
      v_exponents[e] |= make_codes<Lanes>(v, own + keys.fresh_v, keys.D - d) << 8 * u;
      uint2* const to = memory + n * slot + 2 * u * Threads;
      to[0] = k.v, to[Threads] = v.v;
    }
  }
};

// Stores k and v of every token in the cache. Launched with 128 threads.
template <class T, int Lanes>
__global__ void store_new_codes(uint8_t* cache, const T* qkv, const int32_t* positions,
                                const int32_t* sequences, const int32_t* tables, int width,
                                int before, int heads, int D) {
  const int64_t row = blockIdx.x;
  const int at = positions[row];
  if (at < 0) return;
  const int64_t block = tables[int64_t(sequences[row]) * width + at / block_tokens];
  const int d = int(threadIdx.x) % Lanes * 8;
  for (int i = int(threadIdx.x) / Lanes; i < heads; i += 128 / Lanes)
    store_codes<Lanes>(cache + (block * heads + i) * block_tokens * (D + 1),
                       qkv + (row * (before + heads) + before + i) * D, at % block_tokens, d, D);
}

}  // namespace hearth::cuda
