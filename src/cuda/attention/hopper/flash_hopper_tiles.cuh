// Flash attention forward for Hopper: the work items of its blocks (tiles of queries, longest
// first, with the tiles of keys each one sees) and the producer that loads the tiles by TMA.
#pragma once

#include <climits>

#include "cuda/attention/documents.cuh"
#include "cuda/device/hopper.cuh"

namespace hearth::cuda::flash_fwd {

using namespace hopper;

// The compile-time shape of a kernel.
template <int D_, int groups_, int N_, int stages_, bool documents_ = false, bool scored_ = false,
          bool halves_ = true, bool biased_ = false>
struct Shape {
  static constexpr int D = D_;                   // head_dim: a multiple of 64
  static constexpr int groups = groups_;         // consumer warp groups, of 64 query rows each
  static constexpr int N = N_;                   // keys per tile
  static constexpr int stages = stages_;         // tiles of K, and of V, in flight
  static constexpr bool documents = documents_;  // the call may have documents
  static constexpr bool scored = scored_;        // softcap, ALiBi or a bias
  static constexpr bool biased = biased_;        // a bias: needs registers that the others lack
  static constexpr bool halves = halves_;  // compute half of a diagonal tile where that is enough
};

struct Params {
  CUtensorMap q, kv, y;
  float* lse;                // (B, H, T)
  const int32_t* documents;  // (B, T)
  const int2* ranges;        // (B, document_blocks(T)), from find_document_ranges
  const float* slopes;       // (H)
  const float* bias;         // (H, distances)
  int distances;
  int T, H, G;
  int tiles;      // tiles of query rows per sequence
  int shift;      // row of the first tile, <= 0: the partial tile is first, where least is seen
  int heads;      // B * H
  int section;    // heads whose K and V stay in L2 together
  int window;     // INT_MAX / 2: none
  float scale;    // of the scores
  float softcap;  // 0: off
};

constexpr float log2e = 1.4426950408889634f;
constexpr float ln2 = 0.6931471805599453f;
constexpr float hidden = -__builtin_huge_valf();

template <class S>
struct Layout {
  static constexpr int rows = 64 * S::groups;
  static constexpr int q_bytes = 64 * S::D * 2;  // per warp group
  static constexpr int kv_bytes = S::N * S::D * 2;
  static constexpr int q = 0;
  static constexpr int y = q + 2 * S::groups * q_bytes;
  static constexpr int k = y + S::groups * q_bytes;
  static constexpr int v = k + S::stages * kv_bytes;
  static constexpr int bars = v + S::stages * kv_bytes;
  static constexpr int bytes = bars + 8 * (4 + 4 * S::stages) + 1024;  // 1024 for alignment
  static constexpr int consumers = 128 * S::groups;
  static constexpr int threads = consumers + 128;
};

// Addresses of the mbarriers in shared memory.
template <class S>
struct Bars {
  uint32_t at;
  __device__ uint32_t q_full(int s) const { return at + 8 * s; }
  __device__ uint32_t q_empty(int s) const { return at + 16 + 8 * s; }
  __device__ uint32_t k_full(int s) const { return at + 32 + 8 * s; }
  __device__ uint32_t k_empty(int s) const { return k_full(S::stages + s); }
  __device__ uint32_t v_full(int s) const { return k_full(2 * S::stages + s); }
  __device__ uint32_t v_empty(int s) const { return k_full(3 * S::stages + s); }
};

// One tile of query rows of one head, and the tiles of keys it sees, from last to first.
template <class S>
struct Item {
  int b, h, row;
  int n, lo;       // the current tile of keys, and the last to visit
  int2 queries{};  // document range of the rows

  // Longest first within a section of heads: blocks finish together, and L2 serves K and V again.
  __device__ Item(const Params& p, int index) {
    const int per = p.section * p.tiles, first = index / per * p.section;
    const int heads = min(p.section, p.heads - first), rest = index % per;
    const int head = first + rest % heads;
    b = head / p.H;
    h = head % p.H;
    row = (p.tiles - 1 - rest / heads) * Layout<S>::rows + p.shift;
    lo = max(0, row - p.window + 1) / S::N;
    n = (min(row + Layout<S>::rows, p.T) - 1) / S::N;
    if (S::documents && p.ranges) {
      queries = span(p, row, Layout<S>::rows);
      if (!meets(p)) next(p);
    }
  }
  __device__ bool valid() const { return n >= lo; }
  __device__ void next(const Params& p) {
    --n;
    if (S::documents && p.ranges)
      while (valid() && !meets(p)) --n;
  }
  // Smallest and largest document of `rows` tokens.
  __device__ int2 span(const Params& p, int first, int rows) const {
    const int blocks = document_blocks(p.T);
    int2 range{INT_MAX, INT_MIN};
    const int end = min(blocks, (first + rows) / document_block);
    for (int i = max(0, first / document_block); i < end; ++i) {
      const int2 r = __ldg(p.ranges + b * blocks + i);
      range = {min(range.x, r.x), max(range.y, r.y)};
    }
    return range;
  }
  __device__ bool meets(const Params& p) const {
    const int2 keys = span(p, n * S::N, S::N);
    return keys.x <= queries.y && queries.x <= keys.y;
  }
};

template <class S>
__device__ void produce(const Params& p, uint32_t smem, int total) {
  using L = Layout<S>;
  const Bars<S> bars{smem + L::bars};
  Ring<2> q;
  Ring<S::stages> k, v;
  const auto load = [&](Ring<S::stages>& ring, uint32_t full, uint32_t empty, int base, int n,
                        int head, int b) {
    barrier_wait(empty, ring.phase ^ 1);
    barrier_expect(full, L::kv_bytes);
    tma_load(smem + base + ring.stage * L::kv_bytes, p.kv, full, 0, n * S::N, 0, head, b);
    ring.next();
  };
  int n = -1, head = 0, b = 0;  // V is loaded one tile behind K: it is needed a softmax later
  const auto load_values = [&] {
    if (n >= 0) load(v, bars.v_full(v.stage), bars.v_empty(v.stage), L::v, n, head, b);
  };
  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    Item<S> item(p, index);
    const int key_head = p.H + item.h / (p.H / p.G);
    barrier_wait(bars.q_empty(q.stage), q.phase ^ 1);
    barrier_expect(bars.q_full(q.stage), S::groups * L::q_bytes);
    for (int i = 0; i < S::groups; ++i)
      tma_load(smem + L::q + (q.stage * S::groups + i) * L::q_bytes, p.q, bars.q_full(q.stage), 0,
               item.row + 64 * i, 0, item.h, item.b);
    q.next();
    for (; item.valid(); item.next(p)) {
      load(k, bars.k_full(k.stage), bars.k_empty(k.stage), L::k, item.n, key_head, item.b);
      load_values();
      n = item.n;
      head = key_head + p.G;
      b = item.b;
    }
  }
  load_values();
}

}  // namespace hearth::cuda::flash_fwd
