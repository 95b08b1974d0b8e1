// Flash attention forward for Hopper: one warpgroup copies tiles by TMA, the others each own 64
// query rows and keep scores, probabilities and output in registers (wgmma, online softmax).
// 4 * B * H * D * (visible pairs) FLOP; blocks are persistent and take the longest rows first.
#pragma once

#include <algorithm>
#include <climits>

#include "cuda/attention.h"
#include "cuda/hopper.cuh"

namespace hearth::cuda::flash_fwd {

using namespace hopper;

// The compile-time shape of a kernel.
template <int D_, int groups_, int N_, int stages_, bool documents_ = false, bool scored_ = false,
          bool turns_ = true>
struct Shape {
  static constexpr int D = D_;            // head_dim: a multiple of 64
  static constexpr int groups = groups_;  // consumer warpgroups, of 64 query rows each
  static constexpr int N = N_;            // keys of a tile
  static constexpr int stages = stages_;  // tiles of K, and of V, in flight
  static constexpr bool documents = documents_;
  static constexpr bool scored = scored_;  // softcap and ALiBi
  static constexpr bool turns = turns_;    // warpgroups take turns issuing products
};

struct Params {
  CUtensorMap q, kv, y;
  float* lse;                // (B, H, T)
  const int32_t* documents;  // (B, T)
  const int2* ranges;        // (B, range_blocks): smallest and largest document of 64 tokens
  const float* slopes;       // (H)
  int T, H, G;
  int tiles;      // of query rows in a sequence
  int heads;      // B * H
  int section;    // heads whose K and V stay in L2 together
  int window;     // INT_MAX / 2: none
  float scale;    // of the scores
  float softcap;  // 0: off
};

constexpr int range_rows = 64;
constexpr float log2e = 1.4426950408889634f;
constexpr float ln2 = 0.6931471805599453f;
constexpr float hidden = -__builtin_huge_valf();

template <class S>
struct Layout {
  static constexpr int rows = 64 * S::groups;
  static constexpr int q_bytes = 64 * S::D * 2;  // of one warpgroup
  static constexpr int kv_bytes = S::N * S::D * 2;
  static constexpr int q = 0;
  static constexpr int y = q + S::groups * q_bytes;
  static constexpr int k = y + S::groups * q_bytes;
  static constexpr int v = k + S::stages * kv_bytes;
  static constexpr int bars = v + S::stages * kv_bytes;
  static constexpr int bytes = bars + 8 * (2 + 4 * S::stages) + 1024;  // 1024 to align
  static constexpr int threads = 128 * (S::groups + 1);
};

// Barriers in shared memory, by address.
template <class S>
struct Bars {
  uint32_t at;
  __device__ uint32_t q_full() const { return at; }
  __device__ uint32_t q_empty() const { return at + 8; }
  __device__ uint32_t k_full(int s) const { return at + 16 + 8 * s; }
  __device__ uint32_t k_empty(int s) const { return k_full(S::stages + s); }
  __device__ uint32_t v_full(int s) const { return k_full(2 * S::stages + s); }
  __device__ uint32_t v_empty(int s) const { return k_full(3 * S::stages + s); }
};

// Where a ring of S::stages tiles stands.
template <class S>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == S::stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// One tile of query rows of one head, and the tiles of keys it meets, from high to low.
template <class S>
struct Item {
  int b, h, row;
  int n, lo;     // the tile at hand, and the last one
  int2 queries;  // documents of the rows

  // Longest first within a section of heads: blocks end together, and K and V are re-read from L2.
  __device__ Item(const Params& p, int index) {
    const int per = p.section * p.tiles, first = index / per * p.section;
    const int heads = min(p.section, p.heads - first), rest = index % per;
    const int head = first + rest % heads;
    b = head / p.H;
    h = head % p.H;
    row = (p.tiles - 1 - rest / heads) * Layout<S>::rows;
    lo = max(0, row - p.window + 1) / S::N;
    n = (min(row + Layout<S>::rows, p.T) - 1) / S::N;
    if constexpr (S::documents) {
      queries = span(p, row, Layout<S>::rows);
      if (!meets(p)) next(p);
    }
  }
  __device__ bool valid() const { return n >= lo; }
  __device__ void next(const Params& p) {
    --n;
    if constexpr (S::documents)
      while (valid() && !meets(p)) --n;
  }
  // Smallest and largest document of `rows` tokens.
  __device__ int2 span(const Params& p, int first, int rows) const {
    const int blocks = (p.T + range_rows - 1) / range_rows;
    int2 range{INT_MAX, INT_MIN};
    for (int i = first / range_rows; i < min(blocks, (first + rows) / range_rows); ++i) {
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
  Ring<S> k, v;
  uint32_t q_phase = 0;
  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    Item<S> item(p, index);
    const int g = item.h / (p.H / p.G);
    barrier_wait(bars.q_empty(), q_phase ^ 1);
    barrier_expect(bars.q_full(), S::groups * L::q_bytes);
    for (int i = 0; i < S::groups; ++i)
      tma_load(smem + L::q + i * L::q_bytes, p.q, bars.q_full(), 0, item.row + 64 * i, 0, item.h,
               item.b);
    q_phase ^= 1;
    const auto load = [&](Ring<S>& ring, uint32_t full, uint32_t empty, int base, int head, int n) {
      barrier_wait(empty, ring.phase ^ 1);
      barrier_expect(full, L::kv_bytes);
      tma_load(smem + base + ring.stage * L::kv_bytes, p.kv, full, 0, n * S::N, 0, head, item.b);
      ring.next();
    };
    int before = -1;  // V comes one tile behind K: it is needed a softmax later
    for (; item.valid(); item.next(p)) {
      load(k, bars.k_full(k.stage), bars.k_empty(k.stage), L::k, p.H + g, item.n);
      if (before >= 0)
        load(v, bars.v_full(v.stage), bars.v_empty(v.stage), L::v, p.H + p.G + g, before);
      before = item.n;
    }
    load(v, bars.v_full(v.stage), bars.v_empty(v.stage), L::v, p.H + p.G + g, before);
  }
}

// A consumer warpgroup's 64 rows. A thread holds rows `row` and `row + 8` (wgmma's layout).
template <class T, class S>
struct Consumer {
  using L = Layout<S>;
  static constexpr int lane_columns = S::N / 4;
  const Params& p;
  const uint32_t smem;
  const Bars<S> bars;
  const int group, lane, warp;
  Ring<S> k, v;
  uint32_t q_phase = 0;
  float s[S::N / 2];         // scores, then probabilities
  uint32_t probs[S::N / 4];  // packed: the A operand
  float y[S::D / 2];
  float top[2], sum[2];  // of raw scores; of this thread's columns
  float c;               // exp2(c * score)

  __device__ Consumer(const Params& p, uint32_t smem)
      : p(p),
        smem(smem),
        bars{smem + L::bars},
        group(int(threadIdx.x) / 128 - 1),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32 % 4),
        c(S::scored ? 1.f : p.scale * log2e) {}

  __device__ void release(uint32_t bar) {
    if (lane == 0) barrier_arrive(bar);
  }
  // A token goes round the warpgroups: who holds it issues products, the others do softmax.
  __device__ void take_turn() {
    if constexpr (S::turns) named_sync(1 + group, 256);
  }
  __device__ void pass_turn() {
    if constexpr (S::turns) named_arrive(1 + (group + 1) % S::groups, 256);
  }

  __device__ void issue_scores() {
    const uint64_t q = desc_k_major(smem + L::q + group * L::q_bytes);
    const uint64_t keys = desc_k_major(smem + L::k + k.stage * L::kv_bytes);
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      const int panel = i / 4, in = i % 4 * 32;
      Wgmma<T, S::N>::template ss<0, 0>(s, q + ((panel * 64 * 128 + in) >> 4),
                                        keys + ((panel * S::N * 128 + in) >> 4), i > 0);
    }
    wgmma_commit();
  }
  __device__ void issue_values(bool add) {
    const uint64_t values = desc_mn_major(smem + L::v + v.stage * L::kv_bytes, S::N * 128);
#pragma unroll
    for (int i = 0; i < S::N / 16; ++i)
      Wgmma<T, S::D>::template rs<1>(y, probs[4 * i], probs[4 * i + 1], probs[4 * i + 2],
                                     probs[4 * i + 3], values + ((i * 2048) >> 4), add || i > 0);
    wgmma_commit();
  }

  // What the thread's row and column are of element 4 j + 2 r + e: row + 8 r, column + 8 j + e.
  __device__ void score(int h, int row, int column) {
    const float slope = p.slopes ? p.slopes[h] * log2e : 0;
    const float inner = p.softcap > 0 ? 2 * log2e * p.scale / p.softcap : p.scale * log2e;
#pragma unroll
    for (int i = 0; i < S::N / 2; ++i) {
      float x = s[i] * inner;
      if (p.softcap > 0) {  // tanh(z) = 1 - 2 / (1 + e^2z)
        x = p.softcap * log2e * (1 - __fdividef(2.f, 1 + exp2f(x)));
      }
      s[i] = x - slope * float(row + i % 4 / 2 * 8 - (column + i / 4 * 8 + i % 2));
    }
  }
  __device__ void mask(int row, int column) {
#pragma unroll
    for (int i = 0; i < S::N / 2; ++i) {
      const int back = row - column + i % 4 / 2 * 8 - (i / 4 * 8 + i % 2);
      if (uint32_t(back) >= uint32_t(p.window)) s[i] = hidden;
    }
  }
  __device__ void mask_documents(int b, int row, int column) {
    const int32_t* ids = p.documents + int64_t(b) * p.T;
    const int mine[2] = {__ldg(ids + min(row, p.T - 1)), __ldg(ids + min(row + 8, p.T - 1))};
#pragma unroll
    for (int j = 0; j < S::N / 4; ++j) {
      const int id = __ldg(ids + min(column + j / 2 * 8 + j % 2, p.T - 1));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (id != mine[r]) s[j / 2 * 4 + 2 * r + j % 2] = hidden;
    }
  }
  __device__ void hide(const Item<S>& item) {
    const int first = item.row + 64 * group, begin = item.n * S::N;
    const int row = first + 16 * warp + lane / 4, column = begin + lane % 4 * 2;
    if constexpr (S::scored) score(item.h, row, column);
    if (begin + S::N - 1 > first || first + 63 - begin >= p.window) mask(row, column);
    if constexpr (S::documents) {
      const int2 rows = item.span(p, first, 64), keys = item.span(p, begin, S::N);
      if (rows.x != rows.y || keys.x != keys.y || rows.x != keys.x)
        mask_documents(item.b, row, column);
    }
  }

  // Scores to probabilities; `fade` is what earlier sums are multiplied by.
  __device__ void softmax(float (&fade)[2]) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = s[2 * r];
#pragma unroll
      for (int i = 0; i < S::N / 4; ++i) m = fmaxf(m, s[i / 2 * 4 + 2 * r + i % 2]);
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      m = fmaxf(m, top[r]);
      base[r] = m == hidden ? 0 : m * c;
      fade[r] = exp2_fast(fmaf(top[r], c, -base[r]));
      top[r] = m;
    }
#pragma unroll
    for (int i = 0; i < S::N / 2; ++i) s[i] = exp2_fast(fmaf(s[i], c, -base[i % 4 / 2]));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < S::N / 4; ++i) total += s[i / 2 * 4 + 2 * r + i % 2];
      sum[r] = fmaf(sum[r], fade[r], total);
    }
  }
  static __device__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
  }
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < S::N / 4; ++i) probs[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
  }

  // A tile this warpgroup sees nothing of.
  __device__ void skip() {
    barrier_wait(bars.k_full(k.stage), k.phase);
    release(bars.k_empty(k.stage));
    k.next();
    barrier_wait(bars.v_full(v.stage), v.phase);
    release(bars.v_empty(v.stage));
    v.next();
    take_turn();
    pass_turn();
  }

  __device__ void attend(Item<S>& item) {
    const int first = item.row + 64 * group;
    const int hi = (first + 63) / S::N, lo = max(0, first - p.window + 1) / S::N;
    barrier_wait(bars.q_full(), q_phase);
    for (; item.valid() && (item.n > hi || first >= p.T); item.next(p)) skip();
    if (!item.valid()) {
      release(bars.q_empty());
      q_phase ^= 1;
      return;
    }
    top[0] = top[1] = hidden;
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) y[i] = 0;
    float fade[2];

    barrier_wait(bars.k_full(k.stage), k.phase);
    take_turn();
    wgmma_fence();
    issue_scores();
    pass_turn();
    wgmma_wait<0>();
    pin(s);
    release(bars.k_empty(k.stage));
    k.next();
    hide(item);
    softmax(fade);
    pack();

    for (item.next(p); item.valid() && item.n >= lo; item.next(p)) {
      barrier_wait(bars.k_full(k.stage), k.phase);
      take_turn();
      wgmma_fence();
      issue_scores();
      barrier_wait(bars.v_full(v.stage), v.phase);
      issue_values(true);
      pass_turn();
      wgmma_wait<1>();
      pin(s);
      release(bars.k_empty(k.stage));
      k.next();
      hide(item);
      softmax(fade);
      wgmma_wait<0>();
      pin(y);
      release(bars.v_empty(v.stage));
      v.next();
#pragma unroll
      for (int i = 0; i < S::D / 2; ++i) y[i] *= fade[i % 4 / 2];
      pack();
    }
    release(bars.q_empty());
    q_phase ^= 1;
    barrier_wait(bars.v_full(v.stage), v.phase);
    wgmma_fence();
    issue_values(true);
    wgmma_wait<0>();
    pin(y);
    release(bars.v_empty(v.stage));
    v.next();
    for (; item.valid(); item.next(p)) skip();
  }

  // y / sum to memory through shared memory; lse straight.
  __device__ void finish(const Item<S>& item) {
    const int first = item.row + 64 * group, row = first + 16 * warp + lane / 4;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      inverse[r] = 1 / total;
      const float lse = (top[r] * c + log2f(total)) * ln2;
      if (lane % 4 == 0 && row + 8 * r < p.T)
        p.lse[(int64_t(item.b) * p.H + item.h) * p.T + row + 8 * r] = lse;
    }
    const uint32_t out = smem + L::y + group * L::q_bytes;
    const int id = 8 + group;
    const bool storer = threadIdx.x % 128 == 0;
    if (storer) store_wait_read<0>();
    named_sync(id, 128);
    // Lane l addresses row l % 16 of its warp's 16, columns 8 (l / 16) of each 16.
    const int at = 16 * warp + lane % 16;
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      uint32_t x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[e] = pack2<T>(y[8 * i + 2 * e] * inverse[e % 2], y[8 * i + 2 * e + 1] * inverse[e % 2]);
      stmatrix4(out + i / 4 * 64 * 128 + swizzled(at, i % 4 * 2 + lane / 16), x[0], x[1], x[2],
                x[3]);
    }
    async_fence();
    named_sync(id, 128);
    if (storer) {
      tma_store(p.y, out, 0, first, 0, item.h, item.b);
      store_commit();
    }
  }

  __device__ void run(int total) {
    if (S::turns && group == S::groups - 1) pass_turn();
    for (int index = blockIdx.x; index < total; index += gridDim.x) {
      Item<S> item(p, index);
      attend(item);
      if (item.row + 64 * group < p.T) finish(item);
    }
    if (S::turns && group == 0) take_turn();
    if (threadIdx.x % 128 == 0) store_wait<0>();
  }
};

template <class T, class S>
__global__ void __launch_bounds__(Layout<S>::threads, 1)
    flash_hopper_kernel(const __grid_constant__ Params p) {
  using L = Layout<S>;
  extern __shared__ char raw[];
  const uint32_t smem = (shared_at(raw) + 1023) & ~1023u;
  const Bars<S> bars{smem + L::bars};
  if (threadIdx.x == 0) {
    prefetch_map(p.q);
    prefetch_map(p.kv);
    prefetch_map(p.y);
    barrier_init(bars.q_full(), 1);
    barrier_init(bars.q_empty(), 4 * S::groups);
    for (int i = 0; i < S::stages; ++i) {
      barrier_init(bars.k_full(i), 1);
      barrier_init(bars.v_full(i), 1);
      barrier_init(bars.k_empty(i), 4 * S::groups);
      barrier_init(bars.v_empty(i), 4 * S::groups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int total = p.heads * p.tiles;
  if (threadIdx.x < 128) {
    registers_down<S::groups == 3 ? 32 : 40>();
    if (threadIdx.x == 0) produce<S>(p, smem, total);
  } else {
    registers_up<S::groups == 3 ? 160 : 232>();
    Consumer<T, S>(p, smem).run(total);
  }
}

// ranges (B, blocks): one warp finds the smallest and largest document of 64 tokens.
static __global__ void document_ranges(int2* ranges, const int32_t* documents, int B, int T) {
  const int blocks = (T + range_rows - 1) / range_rows, lane = threadIdx.x % 32;
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (at >= B * blocks) return;
  const int32_t* ids = documents + int64_t(at / blocks) * T;
  const int first = at % blocks * range_rows + lane;
  int lo = INT_MAX, hi = INT_MIN;
  for (int t = first; t < min(T, first - lane + range_rows); t += 32) {
    lo = min(lo, ids[t]);
    hi = max(hi, ids[t]);
  }
  lo = __reduce_min_sync(~0u, lo);
  hi = __reduce_max_sync(~0u, hi);
  if (lane == 0) ranges[at] = {lo, hi};
}

template <class T, class S>
void launch(const AttnCall& a, CudaStream& stream) {
  using L = Layout<S>;
  const int heads = a.H + 2 * a.G;
  Params p{.q = head_tile_map(a.qkv, a.dtype, a.B, a.T, heads, a.D, 64),
           .kv = head_tile_map(a.qkv, a.dtype, a.B, a.T, heads, a.D, S::N),
           .y = head_tile_map(a.y, a.dtype, a.B, a.T, a.H, a.D, 64),
           .lse = a.lse,
           .documents = a.documents,
           .ranges = nullptr,
           .slopes = a.slopes,
           .T = a.T,
           .H = a.H,
           .G = a.G,
           .tiles = (a.T + L::rows - 1) / L::rows,
           .heads = a.B * a.H,
           .section = 1,
           .window = a.window > 0 ? a.window : INT_MAX / 2,
           .scale = a.scale,
           .softcap = a.softcap};
  // A third of L2: what is being read from, beside queries and outputs that pass through.
  const int64_t kv = int64_t(a.T) * a.D * 4 * a.G / a.H;
  p.section =
      int(std::clamp<int64_t>(stream.card.l2_bytes / 3 / std::max<int64_t>(kv, 1), 1, p.heads));
  if constexpr (S::documents) {
    const int warps = a.B * ((a.T + range_rows - 1) / range_rows);
    int2* ranges = static_cast<int2*>(stream.scratch(int64_t(warps) * 8));
    document_ranges<<<(warps + 7) / 8, 256, 0, stream.handle>>>(ranges, a.documents, a.B, a.T);
    check_launch("document_ranges");
    p.ranges = ranges;
  }
  const auto kernel = flash_hopper_kernel<T, S>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::bytes),
        "giving flash_hopper its shared memory");
  const int blocks = std::min(stream.card.processors, p.heads * p.tiles);
  kernel<<<blocks, L::threads, L::bytes, stream.handle>>>(p);
  check_launch("flash_hopper");
}

}  // namespace hearth::cuda::flash_fwd
