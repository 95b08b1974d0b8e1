// Flash attention forward for Hopper: a producer warp loads tiles by TMA; each consumer warp group
// owns 64 query rows, with scores, probabilities and output in registers (wgmma, online softmax).
// 4 * B * H * D * (visible pairs) FLOP.
#pragma once

#include "cuda/attention/hopper/flash_hopper_tiles.cuh"
#include "cuda/device/quick_math.cuh"

namespace hearth::cuda::flash_fwd {

// A consumer warp group's 64 rows. A thread holds rows `row` and `row + 8` (the layout of wgmma).
template <class T, class S>
struct Consumer {
  using L = Layout<S>;
  const Params& p;
  const uint32_t smem;
  const Bars<S> bars;
  const int group, lane, warp;
  const int total;
  Ring<2> q;
  Ring<S::stages> k, v;
  int index;                 // of the work item
  float s[S::N / 2];         // scores, then probabilities
  uint32_t probs[S::N / 4];  // packed: the A operand of wgmma
  float y[S::D / 2];
  float top[2], sum[2];  // maximum of raw scores; sum over this thread's columns
  float c;               // probabilities are exp2(c * score - base)

  __device__ Consumer(const Params& p, uint32_t smem, int total)
      : p(p),
        smem(smem),
        bars{smem + L::bars},
        group(__shfl_sync(~0u, int(threadIdx.x) / 128, 0)),  // tells the compiler it is uniform
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32 % 4),
        total(total),
        index(int(blockIdx.x)),
        c(S::scored ? 1.f : p.scale * log2e) {}

  __device__ void release(uint32_t bar) {
    if (lane == 0) barrier_arrive(bar);
  }
  // A token goes round the warp groups: its holder issues products, the others compute softmax.
  __device__ void take_turn() { named_sync(1 + group, 256); }
  __device__ void pass_turn() { named_arrive(1 + (group + 1) % S::groups, 256); }

  // N: S::N, or half of it where a warp group sees only the first half of a diagonal tile.
  template <int N>
  __device__ void issue_scores() {
    const uint64_t rows = desc_k_major(smem + L::q + (q.stage * S::groups + group) * L::q_bytes);
    const uint64_t keys = desc_k_major(smem + L::k + k.stage * L::kv_bytes);
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      const int panel = i / 4, in = i % 4 * 32;
      Wgmma<T, N>::template ss<0, 0>(reinterpret_cast<float(&)[N / 2]>(s),
                                     rows + ((panel * 64 * 128 + in) >> 4),
                                     keys + ((panel * S::N * 128 + in) >> 4), i > 0);
    }
  }
  __device__ void issue_values(bool add) {
    const uint64_t values = desc_mn_major(smem + L::v + v.stage * L::kv_bytes, S::N * 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::N / 16; ++i)
      Wgmma<T, S::D>::template rs<1>(y, probs[4 * i], probs[4 * i + 1], probs[4 * i + 2],
                                     probs[4 * i + 3], values + ((i * 2048) >> 4), add || i > 0);
    wgmma_commit();
  }

  // Element 4 j + 2 r + e of a thread is at row + 8 r, column + 8 j + e.
  template <int N>
  __device__ void score(int h, int row, int column) {
    const float slope = p.slopes ? p.slopes[h] * log2e : 0;
    const float inner = p.softcap > 0 ? 2 * log2e * p.scale / p.softcap : p.scale * log2e;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float x = s[i] * inner;
      if (p.softcap > 0) {  // tanh(z) = 1 - 2 / (1 + e^2z)
        x = p.softcap * log2e * (1 - __fdividef(2.f, 1 + exp2f(x)));
      }
      s[i] = x - slope * float(row + i % 4 / 2 * 8 - (column + i / 4 * 8 + i % 2));
    }
    if constexpr (S::biased) add_bias<N>(h, row, column);
  }
  // A tile whose nearest key is far enough needs only the last entry.
  template <int N>
  __device__ void add_bias(int h, int row, int column) {
    const float* bias = p.bias + int64_t(h) * p.distances;
    const int last = p.distances - 1;
    const bool far = row - column - (N - 7) >= last;
    const float end = __ldg(bias + last);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const int away = row + i % 4 / 2 * 8 - (column + i / 4 * 8 + i % 2);
      s[i] = fmaf(log2e, far ? end : __ldg(bias + min(max(away, 0), last)), s[i]);
    }
  }
  template <int N>
  __device__ void mask(int row, int column) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const int back = row - column + i % 4 / 2 * 8 - (i / 4 * 8 + i % 2);
      if (uint32_t(back) >= uint32_t(p.window)) s[i] = hidden;
    }
  }
  template <int N>
  __device__ void mask_documents(int b, int row, int column) {
    const int32_t* ids = p.documents + int64_t(b) * p.T;
    const int mine[2] = {__ldg(ids + min(row, p.T - 1)), __ldg(ids + min(row + 8, p.T - 1))};
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      const int id = __ldg(ids + min(column + j / 2 * 8 + j % 2, p.T - 1));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (id != mine[r]) s[j / 2 * 4 + 2 * r + j % 2] = hidden;
    }
  }
  template <int N>
  __device__ void hide(const Item<S>& item) {
    const int first = item.row + 64 * group, begin = item.n * S::N;
    const int row = first + 16 * warp + lane / 4, column = begin + lane % 4 * 2;
    if constexpr (S::scored) score<N>(item.h, row, column);
    if (begin + N - 1 > first || first + 63 - begin >= p.window) mask<N>(row, column);
    if (S::documents && p.ranges) {
      const int2 rows = item.span(p, first, 64), keys = item.span(p, begin, S::N);
      if (rows.x != rows.y || keys.x != keys.y || rows.x != keys.x)
        mask_documents<N>(item.b, row, column);
    }
  }

  // Updates the running maximum with the scores; `fade` is the factor for earlier sums.
  template <int N>
  __device__ void raise(float (&base)[2], float (&fade)[2]) {
    float m[4] = {s[0], s[1], s[2], s[3]};  // two chains per row halve the latency
#pragma unroll
    for (int i = 4; i < N / 2; ++i) m[i % 4] = fmaxf(m[i % 4], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float row = fmaxf(m[2 * r], m[2 * r + 1]);
      row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
      row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
      row = fmaxf(row, top[r]);
      base[r] = row == hidden ? 0 : row * c;
      fade[r] = exp2_fast(fmaf(top[r], c, -base[r]));
      top[r] = row;
      sum[r] *= fade[r];
    }
  }
  // Turns scores [begin, end) of this thread into probabilities.
  template <int begin, int end>
  __device__ void exponentiate(const float (&base)[2]) {
#pragma unroll
    for (int i = begin; i < end; ++i) {
      s[i] = exp2_fast(fmaf(s[i], c, -base[i % 4 / 2]));
      sum[i % 4 / 2] += s[i];
    }
  }
  template <int N>
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < S::N / 4; ++i) {
      if (i < N / 4)
        probs[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
      else
        asm volatile("mov.b32 %0, 0;" : "=r"(probs[i]));  // a register, not a constant
    }
  }

  // Whether this warp group sees any of the current tile, and whether only its first half.
  __device__ bool sees(const Item<S>& item) const {
    const int first = item.row + 64 * group, begin = item.n * S::N;
    return begin < first + 64 && begin + S::N > first - p.window + 1 && first >= 0;
  }
  __device__ bool half(const Item<S>& item) const {
    return S::halves && item.n * S::N + S::N / 2 >= item.row + 64 * group + 64;
  }
  __device__ void clear() {
    top[0] = top[1] = hidden;
    sum[0] = sum[1] = 0;
  }
  __device__ void free_keys() {
    release(bars.k_empty(k.stage));
    k.next();
  }
  __device__ void free_values() {
    release(bars.v_empty(v.stage));
    v.next();
  }

  // Advances to the next work item; false: there is none.
  __device__ bool advance(Item<S>& item) {
    if (index >= total) return false;
    release(bars.q_empty(q.stage));
    q.next();
    index += gridDim.x;
    if (index >= total) return false;
    item = Item<S>(p, index);
    barrier_wait(bars.q_full(q.stage), q.phase);
    return true;
  }
  __device__ void skip_keys() {
    barrier_wait(bars.k_full(k.stage), k.phase);
    free_keys();
    take_turn();
    pass_turn();
  }
  __device__ void skip_values(int tiles) {
    for (; tiles > 0; --tiles) {
      barrier_wait(bars.v_full(v.stage), v.phase);
      free_values();
    }
  }
  // Releases tiles until one is seen; false: there are no more.
  __device__ bool seek(Item<S>& item) {
    for (;; item.next(p)) {
      while (!item.valid())
        if (!advance(item)) return false;
      if (sees(item)) return true;
      skip_keys();
      skip_values(1);
    }
  }

  // The first tile, with no products in flight.
  template <int N>
  __device__ void begin(const Item<S>& item) {
    float base[2], fade[2];
    barrier_wait(bars.k_full(k.stage), k.phase);
    take_turn();
    wgmma_fence();
    issue_scores<N>();
    wgmma_commit();
    pass_turn();
    wgmma_wait<0>();
    pin(s);
    free_keys();
    clear();
    hide<N>(item);
    raise<N>(base, fade);
    exponentiate<0, N / 2>(base);
    pack<N>();
  }
  // Scores of the current tile and values of the previous one (`add`: that tile was not the first
  // of its item). If `fresh`, the previous tile was the last of item `old`, and the `owed` tiles of
  // values in between are skipped.
  template <int N, bool fresh>
  __device__ void step(const Item<S>& item, const Item<S>& old, bool add, int owed = 0) {
    float base[2], fade[2];
    barrier_wait(bars.k_full(k.stage), k.phase);
    take_turn();
    wgmma_fence();
    issue_scores<N>();
    wgmma_commit();
    barrier_wait(bars.v_full(v.stage), v.phase);
    issue_values(add);
    pass_turn();
    wgmma_wait<1>();
    pin(s);
    free_keys();
    const float old_top[2] = {top[0], top[1]}, old_sum[2] = {sum[0], sum[1]};
    if constexpr (fresh) clear();
    hide<N>(item);
    raise<N>(base, fade);
    exponentiate<0, N / 4>(base);
    wgmma_wait<0>();  // halfway, so that what follows overlaps the exponentials
    pin(y);
    free_values();
    if constexpr (fresh) skip_values(owed);
    exponentiate<N / 4, N / 2>(base);
    if constexpr (fresh) {
      finish(old, old_top, old_sum);
    } else {
#pragma unroll
      for (int i = 0; i < S::D / 2; ++i) y[i] *= fade[i % 4 / 2];
    }
    pack<N>();
  }
  __device__ void end(const Item<S>& old, bool add) {
    barrier_wait(bars.v_full(v.stage), v.phase);
    issue_values(add);
    wgmma_wait<0>();
    pin(y);
    free_values();
    finish(old, top, sum);
  }

  // Writes y / sum through shared memory, and lse directly.
  __device__ void finish(const Item<S>& item, const float (&top)[2], const float (&sum)[2]) {
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

  // One stream of tiles through all work items: the products of an item's first tile overlap the
  // last products of the previous item.
  __device__ void run() {
    constexpr int H = S::halves ? S::N / 2 : S::N;
    if (group == S::groups - 1) pass_turn();
    Item<S> item(p, index);
    barrier_wait(bars.q_full(q.stage), q.phase);
    while (seek(item)) {
      if (half(item))
        begin<H>(item);
      else
        begin<S::N>(item);
      for (bool add = false;;) {
        const Item<S> old = item;
        item.next(p);
        const bool fresh = !item.valid();
        const bool more = !fresh || advance(item);
        int owed = 0;
        for (; fresh && more && owed < 2 && item.valid() && !sees(item); item.next(p), ++owed)
          skip_keys();
        if (!more || !item.valid() || !sees(item)) {
          end(old, add);
          skip_values(owed);
          break;
        }
        if (!fresh)
          step<S::N, false>(item, old, add);
        else if (half(item))
          step<H, true>(item, old, add, owed);
        else
          step<S::N, true>(item, old, add, owed);
        add = !fresh;
      }
    }
    if (group == 0) take_turn();
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
    for (int i = 0; i < 2; ++i) {
      barrier_init(bars.q_full(i), 1);
      barrier_init(bars.q_empty(i), 4 * S::groups);
    }
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
  if (threadIdx.x >= L::consumers) {
    registers_down<S::groups == 3 ? 32 : 40>();
    if (threadIdx.x == L::consumers) produce<S>(p, smem, total);
  } else {
    registers_up<S::groups == 3 ? 160 : 232>();
    Consumer<T, S>(p, smem, total).run();
  }
}

}  // namespace hearth::cuda::flash_fwd
