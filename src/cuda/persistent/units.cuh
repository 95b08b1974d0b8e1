// How attention is divided: a unit is a row, up to four query heads of one KV head, and all keys of
// the row or a split of them. Units go round the blocks; which keys a split has depends on the
// position of its row alone.
#pragma once

#include "cuda/persistent/wires.cuh"

namespace hearth::cuda::persistent {

struct Unit {
  int row, kv_head, first_head, heads;
  int split, splits;
  int begin, end;  // its keys; the last key of a row is its own, which is not in the cache yet
  int position;    // of the row; negative: padding, without keys

  __device__ bool has_own() const { return position >= begin && position < end; }
  __device__ int end_cached() const { return min(end, position); }
};

// The units of a phase that one block works on, in order.
struct Units {
  const AttentionPhase& f;
  const Control& control;
  int rows, at_once, groups;  // at_once: heads of a unit; groups: of units with the same KV head

  __device__ Units(const Step& s, const AttentionPhase& f, const Control& control)
      : f(f), control(control), rows(s.rows), at_once(heads_at_once(f.H, f.G)) {
    groups = (f.H / f.G + at_once - 1) / at_once;
  }

  // The keys of a row and their splits.
  struct Splits {
    int begin, size, first, count;
    __device__ Splits(int position, int window) {
      begin = window && position >= window ? position - window + 1 : 0;
      const int keys = position + 1 - begin;
      if (keys <= whole_keys) {
        size = position + 1, first = 0, count = 1;
        return;
      }
      size = split_size(keys);
      first = begin / size, count = position / size + 1 - first;
    }
  };

  // The unit of this number, or false past the last one.
  __device__ bool find(int number, Unit& u) const {
    for (int row = 0; row < rows; ++row) {
      const int position = control.positions[row];
      const Splits all(position, f.window);
      const int units = all.count * f.G * groups;
      if (number >= units) {
        number -= units;
        continue;
      }
      const int share = f.H / f.G, group = number % groups;
      u.row = row, u.position = position;
      u.kv_head = number / groups % f.G, u.split = number / groups / f.G, u.splits = all.count;
      u.first_head = u.kv_head * share + group * at_once;
      u.heads = min(at_once, share - group * at_once);
      u.begin = max(all.begin, (all.first + u.split) * all.size);
      u.end = min(position + 1, (all.first + u.split + 1) * all.size);
      return true;
    }
    return false;
  }
  template <class F>
  __device__ void each(F&& f) const {
    Unit u;
    for (int n = block_index(); find(n, u); n += block_count()) f(u);
  }
};

// Calls f(first key, keys) for the keys of a unit that are in the cache, cache block by block: each
// call is an entry of the ring.
template <class F>
__device__ __forceinline__ void each_entry(const Unit& u, F&& f) {
  const int block = int(cache_block), end = u.end_cached();
  for (int key = u.begin; key < end;) {
    const int next = min(end, (key / block + 1) * block);
    f(key, next - key);
    key = next;
  }
}

// Where a row's key (half 0) or value (half 1) of a position lies in the cache.
__device__ __forceinline__ uint16_t* in_cache(const Step& s, const AttentionPhase& f, int row,
                                              int kv_head, int half, int position) {
  const int block = int(cache_block);
  const int64_t number = s.tables[int64_t(row) * s.table_width + position / block];
  return f.cache + (((number * 2 + half) * f.G + kv_head) * block + position % block) * f.D;
}

// The loading warp: all keys of a unit, then all of its values. Those of short texts may stay in
// the L2 cache from step to step, because the weights leave it first.
__device__ __forceinline__ void load_attention(const Step& s, const AttentionPhase& f,
                                               const Control& control, RingWriter& ring) {
  Units(s, f, control).each([&](const Unit& u) {
    for (int half = 0; half < 2; ++half)
      each_entry(u, [&](int key, int keys) {
        const uint32_t bytes = uint32_t(keys * f.D * 2);
        unsigned char* const to = ring.begin(bytes, bytes);
        if (thread_index() % 32 == 0)
          copy_shared(to, in_cache(s, f, u.row, u.kv_head, half, key), bytes, ring.barrier());
      });
  });
}

}  // namespace hearth::cuda::persistent
