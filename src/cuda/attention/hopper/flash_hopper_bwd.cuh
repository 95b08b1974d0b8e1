// Flash attention backward for Hopper: what its kernels share. A work item is one tile of 128 keys
// of one KV head against all query tiles that see it; dK and dV stay in registers. dQ is summed in
// fp32 scratch, tile by tile, in an order fixed by counters (`turn`), so that bits never change.
#pragma once

#include <climits>

#include "cuda/device/fp8_codes.cuh"
#include "cuda/device/hopper.cuh"

namespace hearth::cuda::flash_bwd {

using namespace hopper;

constexpr int keys = 128;  // per tile: 64 for each of the two consumer warp groups
constexpr float log2e = 1.4426950408889634f;

// The compile-time shape of a kernel.
template <int D_, bool documents_, bool codes_ = false>
struct Shape {
  static constexpr int D = D_;        // head_dim: 64 or 128
  static constexpr int M = 8192 / D;  // query rows per tile; a warp group has 64 x 64 of its dQ
  static constexpr int stages = 2;    // tiles of Q and dY in flight
  static constexpr int held = 4;      // 16-column parts of V that stay in registers
  static constexpr bool documents = documents_;
  // Writes dqkv as fp8 codes, whole tiles of one panel only: D is 64, T a multiple of 128.
  static constexpr bool codes = codes_;
  static_assert(!codes || D == 64);
};

struct Params {
  CUtensorMap q, kv, dy;  // boxes of M, 128, M rows
  CUtensorMap out;        // dqkv, boxes of 64 rows and 64 columns; not with codes
  Fp8Target to;           // with codes; its sums are 0
  bool measure_only;      // only finds max |dqkv|, if the scale is measured
  const float* stat;      // (B, H, q_tiles, 2 or 3, M): lse * log2(e), delta, document
  float* dq;              // (slots, q_tiles, 2, 64 * 64): running sums, in register order
  int* turn;              // (slots, q_tiles, 2): whose turn it is to add
  int* next_item;
  const int32_t* documents;  // (B, T)
  const int2* ranges;        // (B, q_tiles rounded up to whole key tiles): documents of M tokens
  const int* first_tile;     // (B, q_tiles): first tile of keys that a query tile sees
  const int* last_query;     // (B, k_tiles): last query tile whose first_tile is not after this one
  int B, T, H, G, R;         // R = H / G
  int q_tiles, k_tiles, items, slots;
  int window;  // INT_MAX / 2: none
  float scale;
  // Lanes per warp that arrive at a barrier: 1, after __syncwarp. All 32 under HEARTH_RACECHECK=1,
  // since compute-sanitizer does not see ordering through __syncwarp.
  int leaders;
};

template <class S>
struct Layout {
  static constexpr int stats = S::documents ? 3 : 2;
  static constexpr int q_bytes = S::M * S::D * 2;
  static constexpr int kv_bytes = keys * S::D * 2;
  static constexpr int ds_bytes = S::M * keys * 2;
  static constexpr int half_bytes = 64 * 64 * 4;  // a warp group's part of a tile of dQ
  static constexpr int stat_bytes = stats * S::M * 4;
  static constexpr int k = 0;  // two buffers
  static constexpr int v = k + 2 * kv_bytes;
  static constexpr int q = v + kv_bytes;
  static constexpr int dy = q + S::stages * q_bytes;
  static constexpr int ds = dy + S::stages * q_bytes;  // two buffers
  static constexpr int dq = ds + 2 * ds_bytes;
  static constexpr int stat = dq + 2 * half_bytes;
  static constexpr int steps = stat + S::stages * stat_bytes;
  static constexpr int items = steps + 8 * S::stages;
  static constexpr int bars = items + 8;
  static constexpr int bytes = bars + 8 * (16 + 3 * S::stages) + 1024;  // 1024 for alignment
  static constexpr int threads = 384;
};

// Addresses of the mbarriers in shared memory.
template <class S>
struct Bars {
  uint32_t at;
  __device__ uint32_t item_full(int s) const { return at + 8 * s; }
  __device__ uint32_t item_empty(int s) const { return at + 16 + 8 * s; }
  __device__ uint32_t k_full(int s) const { return at + 32 + 8 * s; }
  __device__ uint32_t k_empty(int s) const { return at + 48 + 8 * s; }
  __device__ uint32_t dq_full(int w) const { return at + 64 + 8 * w; }
  __device__ uint32_t dq_empty(int w) const { return at + 80 + 8 * w; }
  __device__ uint32_t v_full() const { return at + 96; }
  __device__ uint32_t v_empty() const { return at + 104; }
  __device__ uint32_t dq_prior(int w) const { return at + 112 + 8 * w; }
  __device__ uint32_t q_full(int s) const { return at + 128 + 8 * s; }
  __device__ uint32_t dy_full(int s) const { return q_full(S::stages + s); }
  __device__ uint32_t empty(int s) const { return q_full(2 * S::stages + s); }
};

// What consumers need to know about a step; the producer writes it next to the tiles.
struct Step {
  static constexpr int first = 1;  // first step of its item
  static constexpr int ends = 2;   // last step of its item
  static constexpr int last = 4;   // last to add to its tile of dQ
  static constexpr int prior = 8;  // other steps have added to that tile
  static constexpr int none = 16;  // no work is left
  int flags, distance;             // distance: first query - first key
  __device__ bool is(int flag) const { return flags & flag; }
  // The head within its group lies above the flags.
  static constexpr int head_shift = 8;
  __device__ int head() const { return flags >> head_shift; }
};

// The keys of a work item. They go from last to first: a query tile is first met by its diagonal
// keys, and blocks that start together reach it one after the other, in the order in which they may
// add.
struct KeyTile {
  int b, g, tile;

  __device__ KeyTile(const Params& p, int index) {
    const int group = index / p.k_tiles;
    tile = p.k_tiles - 1 - index % p.k_tiles;
    b = group / p.G;
    g = group % p.G;
  }
};

// Whether a query of one tile and a key of another can belong to the same document.
template <class S>
__device__ __forceinline__ bool documents_meet(const Params& p, int b, int i, int tile) {
  constexpr int per = keys / S::M;
  const int2* of = p.ranges + b * (p.k_tiles * per);
  const int2 q = of[i];
  int2 k = of[tile * per];
  if constexpr (per > 1) {
    const int2 k1 = of[tile * per + 1];
    k = {min(k.x, k1.x), max(k.y, k1.y)};
  }
  return q.x <= k.y && k.x <= q.y;
}

// Iterates over the steps of an item: the heads that share the keys, and the query tiles of each.
template <class S>
struct Walk : KeyTile {
  int lo, hi;  // range of query tiles
  int r, i;    // head within the group, query tile

  __device__ Walk(const Params& p, int index) : KeyTile(p, index) {
    const int key = tile * keys;
    lo = key / S::M;
    if constexpr (S::documents)
      hi = p.last_query[b * p.k_tiles + tile];
    else
      hi = min(p.q_tiles - 1, (key + keys + p.window - 2) / S::M);
    r = 0;
    i = lo;
  }
  __device__ int head(const Params& p) const { return g * p.R + r; }

  __device__ bool next_any(const Params& p) {
    if (++i > hi) {
      i = lo;
      ++r;
    }
    return r < p.R;
  }
  __device__ bool meets(const Params& p) const {
    if constexpr (S::documents) return documents_meet<S>(p, b, i, tile);
    return true;
  }
  __device__ bool next(const Params& p) {
    do {
      if (!next_any(p)) return false;
    } while (!meets(p));
    return true;
  }
};

// The position of a tile of keys among those that add to a query tile.
template <class S>
struct Visit {
  int place;   // number of tiles of keys before this one
  int places;  // number before the last one
  int base;    // counter value where this use of the scratch slot begins
  bool last;
  int slot;  // index in p.dq and p.turn, counted in halves

  __device__ Visit(const Params& p, const Walk<S>& at, int w) {
    const int own = min((at.i * S::M + S::M - 1) / keys, p.k_tiles - 1);
    int first = max(0, at.i * S::M - p.window + 1) / keys;
    if constexpr (S::documents) first = p.first_tile[at.b * p.q_tiles + at.i];
    const int head = at.b * p.H + at.head(p);
    place = own - at.tile;
    places = own - first;
    last = at.tile == first;
    base = head / p.slots * (p.k_tiles + 1);
    slot = (head % p.slots * p.q_tiles + at.i) * 2 + w;
  }
  __device__ int before() const { return base + place; }
  __device__ int after(const Params& p) const { return last ? base + p.k_tiles + 1 : before() + 1; }
};

__device__ __forceinline__ void turn_wait(const int* turn, int value) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != value);
}
__device__ __forceinline__ void turn_set(int* turn, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(value) : "memory");
}

}  // namespace hearth::cuda::flash_bwd
