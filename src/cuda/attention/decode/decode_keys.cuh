// How keys and values of a paged cache reach the threads that use them: where they are, and
// prefetched batches of them, in registers or in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/kernels.h"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda {

constexpr int batch = 4;  // keys that a thread has in flight
constexpr int block_tokens = int(cache_block);

// Eight elements as stored, and as floats.
template <class T>
struct Eight {
  uint4 v[sizeof(T) / 2];

  __device__ void load(const T* from, int width) {
    if constexpr (sizeof(T) == 2) {
      v[0] = width >= 8 ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    } else {
      float* f = reinterpret_cast<float*>(v);
      if (width >= 8 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        v[0] = reinterpret_cast<const uint4*>(from)[0],
        v[1] = reinterpret_cast<const uint4*>(from)[1];
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) f[i] = i < width ? from[i] : 0.0f;
      }
    }
  }
  __device__ void floats(float (&f)[8]) const {
    if constexpr (sizeof(T) == 2) {
      const uint32_t words[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack(words[i], T());
        f[2 * i] = two.x, f[2 * i + 1] = two.y;
      }
    } else {
      const float* from = reinterpret_cast<const float*>(v);
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] = from[i];
    }
  }
};

// Where a row's keys are: those of this step in qkv, if this launch stores them; all others in the
// cache, whose elements are T or, in fp8, bytes.
template <class T, class C = T>
struct Keys {
  const C* cache;  // at this head
  const T* fresh;  // this step's k of this head, offset so that it is indexed by position
  const int32_t* table;
  int64_t block, to_v;  // strides of the cache: between blocks, from k to v
  int64_t fresh_row, fresh_v;
  int first_fresh, D;

  template <class Load>
  __device__ void load(int key, int d, const Load& both) const {
    if (key >= first_fresh) {
      const T* k = fresh + key * fresh_row + d;
      both(k, k + fresh_v);
    } else {
      const T* k = cache + table[key / block_tokens] * block + int64_t(key % block_tokens) * D + d;
      both(k, k + to_v);
    }
  }
};

// A batch of keys and values in flight to a thread; keys of the cache are loaded without waiting
// for those of this step. In registers, for few and large blocks.
template <class T, int Stride>
struct InRegisters {
  static constexpr int size = 0;                  // shared memory
  static constexpr int whole = 1;                 // a batch can begin at any key
  static constexpr int apart = 1, step = Stride;  // strides: between groups, within a thread
  Eight<T> k[batch], v[batch];

  __device__ explicit InRegisters(uint4*) {}
  __device__ void begin(const Keys<T>& keys, int j, int end, int d) {
    load(keys, j, end, d, false);
  }
  __device__ void wait(const Keys<T>& keys, int turn, int j, int end, int d) {
    if (turn > 0) load(keys, j, end, d, false);
    load(keys, j, end, d, true);
  }
  __device__ void next(const Keys<T>&, int, int, int, int) {}
  __device__ void key(float (&x)[8], int, int u) const { k[u].floats(x); }
  __device__ void value(float (&x)[8], int, int u) const { v[u].floats(x); }
  // The scale of the elements of a key, and of a value.
  __device__ static constexpr float key_unit(int) { return 1; }
  __device__ static constexpr float value_unit(int) { return 1; }

 private:
  __device__ void load(const Keys<T>& keys, int j, int end, int d, bool fresh) {
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = j + u * Stride, wide = key < end ? keys.D - d : 0;
      if (wide > 0 && (key >= keys.first_fresh) == fresh) {
        keys.load(key, d, [&](const T* from_k, const T* from_v) {
          k[u].load(from_k, wide), v[u].load(from_v, wide);
        });
      } else if (!fresh) {
        k[u].load(keys.cache, 0), v[u].load(keys.cache, 0);
      }
    }
  }
};

// For many blocks: two batches in shared memory, one loading while the other is used. A thread
// reads only what it has copied itself, so threads need not wait for each other. A batch lies
// within one block of the cache.
template <class T, int Stride, int Threads>
struct InShared {
  static constexpr int whole = Stride * batch;  // batches begin at its multiples
  static constexpr int apart = 1, step = Stride;
  static constexpr int slots = 2, slot = 2 * batch * Threads, size = slots * slot;
  uint4* memory;
  bool late = false;  // some of the first batches are from this step

  __device__ explicit InShared(uint4* m) : memory(m + threadIdx.x) {}
  __device__ void begin(const Keys<T>& keys, int j, int end, int d) {
#pragma unroll
    for (int n = 0; n < slots; ++n) {
      load<true, false>(keys, n, j + n * Stride * batch, end, d);
      commit_copies();
    }
  }
  __device__ void wait(const Keys<T>& keys, int turn, int j, int end, int d) {
    if (turn > 0) return wait_for_copies<1>();
    late = min(end, j + slots * Stride * batch) > keys.first_fresh;
#pragma unroll
    for (int n = 0; late && n < slots; ++n)
      load<false, true>(keys, n, j + n * Stride * batch, end, d);
    commit_copies();
    late ? wait_for_copies<0>() : wait_for_copies<2>();
  }
  // Called after batch `turn` at j has been used.
  __device__ void next(const Keys<T>& keys, int turn, int j, int end, int d) {
    load<true, true>(keys, turn % slots, j + slots * Stride * batch, end, d);
    commit_copies();
  }
  __device__ void key(float (&x)[8], int turn, int u) const { floats(x, turn, 2 * u); }
  __device__ void value(float (&x)[8], int turn, int u) const { floats(x, turn, 2 * u + 1); }
  __device__ static constexpr float key_unit(int) { return 1; }
  __device__ static constexpr float value_unit(int) { return 1; }

 private:
  __device__ void floats(float (&x)[8], int turn, int part) const {
    Eight<T> v;
    v.v[0] = memory[turn % slots * slot + part * Threads];
    v.floats(x);
  }
  // Loads keys of the cache, keys of this step, or both; `old` also writes the zero padding.
  template <bool old, bool fresh>
  __device__ void load(const Keys<T>& keys, int n, int j, int end, int d) {
    uint4* const to = memory + n * slot;
    const T* k = keys.cache +
                 int64_t(old && j < end ? keys.table[j / block_tokens] : 0) * keys.block +
                 int64_t(j % block_tokens) * keys.D + d;
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = j + u * Stride;
      uint4* const k_at = to + 2 * u * Threads;
      if (key >= end || d >= keys.D) {
        if (old) k_at[0] = k_at[Threads] = {0, 0, 0, 0};
      } else if (old && key < keys.first_fresh) {
        copy_async(k_at, k + u * Stride * keys.D);
        copy_async(k_at + Threads, k + u * Stride * keys.D + keys.to_v);
      } else if (fresh && key >= keys.first_fresh) {
        const T* own = keys.fresh + key * keys.fresh_row + d;
        copy_async(k_at, own);
        copy_async(k_at + Threads, own + keys.fresh_v);
      }
    }
  }
};

}  // namespace hearth::cuda
