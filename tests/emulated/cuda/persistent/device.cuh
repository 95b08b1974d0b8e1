// Stands in for src/cuda/persistent/device.cuh: the same functions, by the emulator. The emulated
// folder comes before src/ in the include path of its tests.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/dtype.h"
#include "cuda/elementwise/act.cuh"
#include "cuda/persistent/phase.h"
#include "emulator.h"

namespace hearth::cuda::persistent {

using std::max;
using std::min;

inline int thread_index() { return emulated::thread_index(); }
inline int block_index() { return emulated::block_index(); }
inline int block_count() { return emulated::block_count(); }

inline void announce_end() {}
inline void sync_block() { emulated::sync_threads(0, block_threads); }
inline void sync_compute() { emulated::sync_threads(1, compute_threads); }
inline void sync_warp() { emulated::exchange("sync_warp", 0); }

inline float shuffle_xor(float x, int lanes) {
  return emulated::exchange("shuffle_xor", x)[thread_index() % 32 ^ lanes];
}

// Every lane computes its elements of d from the fragments of all lanes.
inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const auto all =
      emulated::exchange("multiply_add", Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto half = [](uint32_t two, int k) {
    return std::bit_cast<float>(k % 2 ? two & 0xffff0000u : two << 16);
  };
  const int lane = thread_index() % 32, group = lane / 4, part = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * part + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = all[4 * group + k % 8 / 2].a[i / 2 + k / 8 * 2];
      const uint32_t y = all[4 * column + k % 8 / 2].b[k / 8];
      d[i] += half(x, k) * half(y, k);
    }
  }
}

inline uint64_t read_packet(const uint64_t* at) { return *at; }
inline Packets read_packets(const uint64_t* at) { return {at[0], at[1]}; }
inline void write_packet(uint64_t* at, uint64_t p) {
  emulated::check_write(at, p);
  *at = p;
  emulated::wake(at);
}
inline void await_packet(uint64_t& p, const uint64_t* at, uint32_t number) {
  for (p = *at; uint32_t(p >> 32) != number; p = *at) emulated::wait_for(at);
}
inline void await_packets(Packets& p, const uint64_t* at, uint32_t number) {
  await_packet(p.first, at, number);
  await_packet(p.second, at + 1, number);
}

inline void barrier_init(uint64_t* bar, int arrivals) { emulated::barrier_init(bar, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint64_t* bar) { emulated::barrier_arrive(bar, 0); }
inline void barrier_expect(uint64_t* bar, uint32_t bytes) {
  emulated::barrier_arrive(bar, int64_t(bytes));
}
inline void barrier_wait(uint64_t* bar, uint32_t parity) { emulated::barrier_wait(bar, parity); }
inline void copy_shared(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  emulated::copy_later(to, from, bytes, bar);
}
inline void copy_once(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  emulated::copy_later(to, from, bytes, bar);
}

inline uint32_t pack_bf16(float x, float y) {
  return uint32_t(bf16(x).bits) | uint32_t(bf16(y).bits) << 16;
}
inline float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

}  // namespace hearth::cuda::persistent
