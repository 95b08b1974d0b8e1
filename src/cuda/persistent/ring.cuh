// The ring in shared memory that weights, gains, keys and values stream through. One warp fills it
// for all phases of the step, as far ahead as there is room; the other warps read the entries in
// the same order. Both know the size of every entry and so place it by the same rule.
#pragma once

#include "cuda/persistent/device.cuh"

namespace hearth::cuda::persistent {

constexpr int most_entries = 32;  // in the ring at once

// What a block's warps share besides the rows of a phase and the ring.
struct Control {
  uint64_t full[most_entries], empty[most_entries];  // barriers of entry i, i + most_entries, ..
  uint32_t starts[most_entries];                     // of the loading warp: see RingWriter
  Phase slots[4];                                    // two of the computing warps, two of the other
  int32_t positions[most_rows], ids[most_rows];
  float norm_sums[compute_warps], norm_squares[compute_warps];
  float sums[2][compute_warps][160];  // of a tile: 8 rows of 16, 20 apart
};

// Where entries lie. An entry never straddles the end of the ring: one that does not fit before the
// end begins at 0. Offsets count on from lap to lap, so they order entries; a block streams less
// than 4 GiB in a step.
struct RingPlace {
  uint32_t size;               // of the ring
  uint32_t at = 0, begun = 0;  // the next free byte of this lap; where the lap began
  uint32_t count = 0;          // entries placed so far

  __device__ uint32_t place(uint32_t bytes) {
    if (at + bytes > size) begun += size, at = 0;
    const uint32_t start = at;
    at += bytes, ++count;
    return start;
  }
};

// The loading warp's end. All of its lanes call begin() together.
struct RingWriter {
  Control& control;
  unsigned char* memory;
  RingPlace next;
  uint32_t oldest = 0;  // the first entry that may still be read

  // Waits for room for an entry and returns its place; its barrier then expects `loaded` bytes.
  //
  // The new entry [start, start + bytes) meets an earlier one only if that one, a lap later, begins
  // before start + bytes. Entries begin in order, so it is enough to look at the oldest that may be
  // read. A tail of the ring that was skipped belongs to no entry and needs no account of its own.
  __device__ unsigned char* begin(uint32_t bytes, uint32_t loaded) {
    const uint32_t entry = next.count, at = next.place(bytes), start = next.begun + at;
    while (oldest < entry && (entry - oldest == most_entries ||
                              start + bytes > control.starts[oldest % most_entries] + next.size)) {
      barrier_wait(&control.empty[oldest % most_entries], oldest / most_entries & 1);
      ++oldest;
    }
    sync_warp();
    if (thread_index() % 32 == 0) {
      control.starts[entry % most_entries] = start;
      barrier_expect(&control.full[entry % most_entries], loaded);
    }
    sync_warp();
    return memory + at;
  }
  __device__ uint64_t* barrier() { return &control.full[(next.count - 1) % most_entries]; }
};

// The computing warps' end: each warp takes and releases every entry.
struct RingReader {
  Control& control;
  unsigned char* memory;
  RingPlace next;

  __device__ const unsigned char* take(uint32_t bytes) {
    const uint32_t entry = next.count, at = next.place(bytes);
    barrier_wait(&control.full[entry % most_entries], entry / most_entries & 1);
    return memory + at;
  }
  // Releases the entry taken last.
  __device__ void release() {
    sync_warp();
    if (thread_index() % 32 == 0) barrier_arrive(&control.empty[(next.count - 1) % most_entries]);
  }
};

// Reads the phases one ahead, so that none waits for its description. `Threads` threads call it
// together, with a barrier of their own.
template <int Threads>
struct PhaseReader {
  static constexpr int words = int(sizeof(Phase) / 4), each = (words + Threads - 1) / Threads;
  const Step& step;
  Phase* slots;
  uint32_t ahead[each] = {};

  __device__ PhaseReader(const Step& step, Phase* slots) : step(step), slots(slots) { fetch(0); }

  __device__ void fetch(int phase) {
    if (phase >= step.count) return;
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (const int at = thread_index() % Threads + i * Threads; at < words)
        ahead[i] = reinterpret_cast<const uint32_t*>(step.phases + phase)[at];
  }
  // The two slots alternate: the one written here was last read before the previous call's barrier.
  __device__ const Phase& enter(int phase) {
    Phase& slot = slots[phase % 2];
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (const int at = thread_index() % Threads + i * Threads; at < words)
        reinterpret_cast<uint32_t*>(&slot)[at] = ahead[i];
    if constexpr (Threads == 32)
      sync_warp();
    else
      sync_compute();
    fetch(phase + 1);
    return slot;
  }
};

}  // namespace hearth::cuda::persistent
