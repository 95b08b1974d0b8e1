// The main kernel of the backward pass: 10 * B * H * D * (visible pairs) FLOP. One warp loads tiles
// by TMA, two warps accumulate dQ in memory, and two warp groups each own 64 keys of an item.
// Scores are computed transposed (keys as rows), so that P and dS are register operands for dV and
// dK; only dS goes through shared memory, for dQ.
#pragma once

#include "cuda/attention/hopper/flash_hopper_bwd_codes.cuh"

namespace hearth::cuda::flash_bwd {

// ---- warp 0 of the last warp group: loads ----

template <class S>
__device__ __forceinline__ void load_keys(const Params& p, const Walk<S>& at, uint32_t dst,
                                          uint32_t bar, int head) {
  barrier_expect(bar, Layout<S>::kv_bytes);
  tma_load(dst, p.kv, bar, 0, at.tile * keys, 0, head, at.b);
}

// Arrives for the step only; the tile loads arrive separately.
template <class S>
__device__ __forceinline__ void write_step(uint32_t base, int stage, const Step& step) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(base + Layout<S>::steps + 8 * stage),
               "r"(step.flags), "r"(step.distance)
               : "memory");
  barrier_arrive(Bars<S>{base + Layout<S>::bars}.q_full(stage));
}

// Loads the tiles of one step.
template <class S>
__device__ __forceinline__ void load_rows(const Params& p, const Walk<S>& at, uint32_t base,
                                          int s) {
  using L = Layout<S>;
  const Bars<S> bars{base + L::bars};
  const int h = at.head(p);
  barrier_expect(bars.q_full(s), L::q_bytes + L::stat_bytes);
  tma_load(base + L::q + s * L::q_bytes, p.q, bars.q_full(s), 0, at.i * S::M, 0, h, at.b);
  bulk_load(base + L::stat + s * L::stat_bytes,
            p.stat + (int64_t(at.b * p.H + h) * p.q_tiles + at.i) * (L::stats * S::M),
            L::stat_bytes, bars.q_full(s));
  barrier_expect(bars.dy_full(s), L::q_bytes);
  tma_load(base + L::dy + s * L::q_bytes, p.dy, bars.dy_full(s), 0, at.i * S::M, 0, h, at.b);
}

template <class S>
__device__ void produce(const Params& p, uint32_t base) {
  using L = Layout<S>;
  const Bars<S> bars{base + L::bars};
  Ring<S::stages> ring;
  Ring<2> item;
  uint32_t v_phase = 1;
  for (;; item.next()) {
    const int index = atomicAdd(p.next_item, 1);
    barrier_wait(bars.item_empty(item.stage), item.phase ^ 1);
    const bool more = index < p.items;
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(base + L::items + 4 * item.stage),
                 "r"(more ? index : -1)
                 : "memory");
    barrier_arrive(bars.item_full(item.stage));
    if (!more) break;
    Walk<S> at(p, index);
    barrier_wait(bars.k_empty(item.stage), item.phase ^ 1);
    load_keys(p, at, base + L::k + item.stage * L::kv_bytes, bars.k_full(item.stage), p.H + at.g);
    bool first = true, ends;
    do {
      const Visit<S> visit(p, at, 0);
      Walk<S> following = at;
      ends = !following.next(p);
      barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
      write_step<S>(
          base, ring.stage,
          {(first ? Step::first : 0) | (ends ? Step::ends : 0) | (visit.last ? Step::last : 0) |
               (visit.place > 0 ? Step::prior : 0) | at.r << Step::head_shift,
           at.i * S::M - at.tile * keys});
      load_rows(p, at, base, ring.stage);
      if (first) {
        barrier_wait(bars.v_empty(), v_phase);
        v_phase ^= 1;
        load_keys(p, at, base + L::v, bars.v_full(), p.H + p.G + at.g);
      }
      first = false;
      at = following;
      ring.next();
    } while (!ends);
  }
  barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
  write_step<S>(base, ring.stage, {Step::none, 0});
  barrier_arrive(bars.q_full(ring.stage));
}

// ---- warps 1 and 2: accumulation of dQ, one half each ----

// The index of a published item, or -1. The caller then arrives at item_empty, once per warp.
template <class S>
__device__ __forceinline__ int read_item(uint32_t base, const Ring<2>& item) {
  int index;
  asm volatile("ld.shared.s32 %0, [%1];"
               : "=r"(index)
               : "r"(base + Layout<S>::items + 4 * item.stage)
               : "memory");
  return index;
}

template <class S>
__device__ void hand_on(const Params& p, uint32_t base, int w) {
  using L = Layout<S>;
  const Bars<S> bars{base + L::bars};
  const uint32_t half = base + L::dq + w * L::half_bytes;
  uint32_t phase = 0;
  for (Ring<2> item;; item.next()) {
    barrier_wait(bars.item_full(item.stage), item.phase);
    const int index = read_item<S>(base, item);
    barrier_arrive(bars.item_empty(item.stage));
    if (index < 0) break;
    Walk<S> at(p, index);
    do {
      const Visit<S> visit(p, at, w);
      int* turn = p.turn + visit.slot;
      if (!at.meets(p)) {  // pass the turn on, unless after the last tile that adds
        if (visit.place < visit.places) {
          turn_wait(turn, visit.before());
          turn_set(turn, visit.after(p));
        }
        continue;
      }
      float* sum = p.dq + int64_t(visit.slot) * (64 * 64);
      turn_wait(turn, visit.before());
      asm volatile("fence.proxy.async.global;" ::: "memory");
      if (visit.last && visit.place > 0) {
        barrier_expect(bars.dq_prior(w), L::half_bytes);
        bulk_load(half, sum, L::half_bytes, bars.dq_prior(w));
      }
      barrier_wait(bars.dq_full(w), phase);
      phase ^= 1;
      if (visit.last) {
        const int row = at.i * S::M + (S::M == 128 ? 64 * w : 0), panel = S::M == 128 ? 0 : w;
        if (!S::codes) tma_store(p.out, half, 0, row, panel, at.head(p), at.b);
      } else if (visit.place == 0) {
        bulk_store(sum, half, L::half_bytes);
      } else {
        bulk_add_f32(sum, half, L::half_bytes);
      }
      store_commit();
      store_wait_read<0>();
      barrier_arrive(bars.dq_empty(w));
      if (!visit.last) store_wait<0>();
      turn_set(turn, visit.after(p));
    } while (at.next_any(p));
  }
  store_wait<0>();
}

// ---- two warp groups: products ----

// One lane reads for its warp: the same lane later signals that the memory may be overwritten.
template <class S>
__device__ __forceinline__ Step read_step(uint32_t base, const Ring<S::stages>& ring) {
  int2 x{};
  if (threadIdx.x % 32 == 0) x = shared_int2(base + Layout<S>::steps + 8 * ring.stage);
  return {__shfl_sync(~0u, x.x, 0), __shfl_sync(~0u, x.y, 0)};
}

// The keys of a consumer's item.
template <class S>
__device__ __forceinline__ KeyTile keys_of(const Params& p, uint32_t base, const Ring<2>& item) {
  const int index = int(threadIdx.x % 32) < p.leaders ? read_item<S>(base, item) : 0;
  return {p, __shfl_sync(~0u, index, 0)};
}

// Writes dK and dV of an item's 64 keys as codes, which are staged in dS like the sums below.
template <class S>
__device__ __forceinline__ void write_sums(const Params& p, Rounder& rounder,
                                           const float (&dk)[S::D / 2], const float (&dv)[S::D / 2],
                                           uint32_t base, int w, uint32_t store_at,
                                           const Ring<2>& item) {
  using L = Layout<S>;
  static_assert(L::ds_bytes == 2 * codes_bytes);
  const uint32_t dv_at = base + L::ds + w * L::ds_bytes, dk_at = dv_at + codes_bytes;
  named_sync(1, 256);
  stage_codes(p, rounder, dv, 1, dv_at, store_at);
  stage_codes(p, rounder, dk, p.scale, dk_at, store_at);
  named_sync(2 + w, 128);
  const KeyTile at = keys_of<S>(p, base, item);
  const int64_t row = int64_t(at.b) * p.T + at.tile * keys + 64 * w;
  write_codes(p, rounder, dv_at, row, (p.H + p.G + at.g) * 64);
  write_codes(p, rounder, dk_at, row, (p.H + at.g) * 64);
}

// Stores dK and dV of an item's 64 keys. They are staged in dS, which is free once both warp groups
// have computed dQ; where dS is too small for both, dK is staged in dQ's buffer.
template <class T, class S>
__device__ __forceinline__ void store_sums(const Params& p, const float (&dk)[S::D / 2],
                                           const float (&dv)[S::D / 2], uint32_t base, int w,
                                           uint32_t store_at, const Ring<2>& item, int dq_phase) {
  using L = Layout<S>;
  const Bars<S> bars{base + L::bars};
  constexpr int part = L::ds_bytes;  // per warp group, of the two dS buffers
  constexpr bool both = part >= 2 * 64 * S::D * 2;
  const uint32_t dv_at = base + L::ds + w * part;
  const uint32_t dk_at = both ? dv_at + 64 * S::D * 2 : base + L::dq + w * L::half_bytes;
  if constexpr (!both) barrier_wait(bars.dq_empty(w), dq_phase);
  named_sync(1, 256);
  stage_sum<T>(dv, 1, dv_at + store_at);
  stage_sum<T>(dk, p.scale, dk_at + store_at);
  async_fence();
  named_sync(2 + w, 128);
  if (threadIdx.x % 128 == 0) {
    const Walk<S> at(p, read_item<S>(base, item));
    const int k0 = at.tile * keys + 64 * w;
    for (int panel = 0; panel < S::D / 64; ++panel) {
      tma_store(p.out, dk_at + panel * 64 * 128, 0, k0, panel, p.H + at.g, at.b);
      tma_store(p.out, dv_at + panel * 64 * 128, 0, k0, panel, p.H + p.G + at.g, at.b);
    }
    store_commit();
  }
}

template <class T, class S>
__device__ void consume(const Params& p, uint32_t base, int w) {
  using L = Layout<S>;
  const Bars<S> bars{base + L::bars};
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const bool leader = lane < p.leaders;
  // This lane's row among 64, and its chunk, for stmatrix.
  const int row = 16 * warp + (lane / 8 % 2) * 8 + lane % 8;
  const uint32_t store_at = row * 128 + ((lane / 16 ^ lane % 8) << 4);
  const uint32_t half = base + L::dq + w * L::half_bytes;
  const float scale2 = p.scale * log2e;
  const int own_distance = 2 * (lane % 4) - (64 * w + 16 * warp + lane / 4);

  float s[S::M / 2], dk[S::D / 2], dv[S::D / 2];
  uint32_t v[4 * S::held];
  Ring<S::stages> ring;
  Ring<2> item;
  Rounder rounder;
  if constexpr (S::codes) rounder.start(p);
  uint32_t v_phase = 0, prior_phase = 0;
  int buffer = 0;  // of ds; also the phase of dq

  barrier_wait(bars.q_full(ring.stage), ring.phase);
  Step step = read_step<S>(base, ring);
  if (step.is(Step::none)) return;
  barrier_wait(bars.k_full(item.stage), item.phase);
  wgmma_fence();
  times_rows<T, S>(s, base + L::k + w * 64 * 128, base + L::q);
  wgmma_wait<0>();
  pin(s);

  Pairs pairs{.window = p.window};
  for (;;) {
    float dp[S::M / 2], dq[32];
    uint32_t packed[S::M / 4], dpacked[S::M / 4];
    const bool first = step.is(Step::first), ends = step.is(Step::ends);
    const uint32_t q_at = base + L::q + ring.stage * L::q_bytes;
    const uint32_t dy_at = q_at + (L::dy - L::q);
    const uint32_t stat = base + L::stat + ring.stage * L::stat_bytes + 8 * (lane % 4);
    const uint32_t ds_at = base + L::ds + buffer * L::ds_bytes;
    const bool masked = S::documents || step.distance < 64 * w + 63 ||
                        step.distance + S::M - 1 - 64 * w >= p.window;

    if (first) {
      barrier_wait(bars.v_full(), v_phase);
      v_phase ^= 1;
      load_rows_64(v, base + L::v + w * 64 * 128 + store_at);
      if (S::held == S::D / 16) {
        __syncwarp();
        if (leader) barrier_arrive(bars.v_empty());
      }
      if constexpr (S::documents) {
        const KeyTile at = keys_of<S>(p, base, item);
        for (int r = 0; r < 2; ++r) {
          const int key = at.tile * keys + 64 * w + 16 * warp + lane / 4 + 8 * r;
          pairs.document[r] = p.documents[int64_t(at.b) * p.T + min(key, p.T - 1)];
        }
      }
    }
    barrier_wait(bars.dy_full(ring.stage), ring.phase);
    wgmma_fence();
    times_rows<T, S>(dp, v, base + L::v + w * 64 * 128, dy_at);
    pairs.distance = step.distance + own_distance;
    if (masked)
      probabilities<T, S, true>(packed, s, stat, scale2, pairs);
    else
      probabilities<T, S, false>(packed, s, stat, scale2, pairs);
    wgmma_fence();
    add_product<T, S>(dv, packed, dy_at, !first);
    wgmma_wait<1>();
    pin(dp);
    if (S::held < S::D / 16 && ends) {
      __syncwarp();
      if (leader) barrier_arrive(bars.v_empty());
    }
    if (masked)
      slopes<T, S, true>(dpacked, packed, dp, stat);
    else
      slopes<T, S, false>(dpacked, packed, dp, stat);
    if (first) {  // wait until the previous item's sums have left shared memory
      if (thread == 0) store_wait_read<0>();
      named_sync(1, 256);
    }
    store_panels(ds_at + w * 64 * 128 + store_at, keys * 128, dpacked);
    async_fence();
    wgmma_fence();
    add_product<T, S>(dk, dpacked, q_at, !first);

    Ring<S::stages> next_ring = ring;
    Ring<2> next_item = item;
    next_ring.next();
    if (ends) next_item.next();
    const uint32_t k_at = base + L::k + item.stage * L::kv_bytes;
    const uint32_t next_k = base + L::k + next_item.stage * L::kv_bytes + w * 64 * 128;
    named_sync(1, 256);  // all of dS is written
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    __syncwarp();
    if (leader) barrier_arrive(bars.empty(ring.stage));
    wgmma_fence();
    dq_product<T, S>(dq, ds_at, k_at, w);
    // The scores of the next step. After the last step they are wasted: a branch around wgmma would
    // make the compiler serialise every wgmma.
    barrier_wait(bars.q_full(next_ring.stage), next_ring.phase);
    const Step next = read_step<S>(base, next_ring);
    if (ends && !next.is(Step::none)) barrier_wait(bars.k_full(next_item.stage), next_item.phase);
    wgmma_fence();
    times_rows<T, S>(s, next_k, base + L::q + next_ring.stage * L::q_bytes);
    wgmma_wait<1>();
    pin(dq);

    barrier_wait(bars.dq_empty(w), buffer ^ 1);
    if (step.is(Step::last)) {
      if (step.is(Step::prior)) {
        barrier_wait(bars.dq_prior(w), prior_phase);
        prior_phase ^= 1;
        add_prior(dq, half + thread * 16);
        named_sync(2 + w, 128);
      }
      if constexpr (S::codes) {
        stage_codes(p, rounder, dq, p.scale, half, store_at);
        named_sync(2 + w, 128);
        const KeyTile at = keys_of<S>(p, base, item);
        write_codes(p, rounder, half, int64_t(at.b) * p.T + at.tile * keys + step.distance + 64 * w,
                    (at.g * p.R + step.head()) * 64);
      } else {
        stage_sum<T>(dq, p.scale, half + store_at);
      }
    } else {
      stage_floats(dq, half + thread * 16);
    }
    async_fence();
    __syncwarp();
    if (leader) barrier_arrive(bars.dq_full(w));
    if (ends) {
      if constexpr (S::codes)
        write_sums<S>(p, rounder, dk, dv, base, w, store_at, item);
      else
        store_sums<T, S>(p, dk, dv, base, w, store_at, item, buffer);
      __syncwarp();
      if (leader) {
        barrier_arrive(bars.k_empty(item.stage));
        barrier_arrive(bars.item_empty(item.stage));
      }
    }
    wgmma_wait<0>();
    pin(s);
    if (next.is(Step::none)) break;
    step = next;
    ring = next_ring;
    item = next_item;
    buffer ^= 1;
  }
  if (thread == 0) store_wait<0>();
  if constexpr (S::codes) rounder.finish(p);
}

template <class T, class S>
__global__ void __launch_bounds__(384, 1) flash_bwd_kernel(const __grid_constant__ Params p) {
  using L = Layout<S>;
  extern __shared__ char memory[];
  if (S::codes && p.measure_only && !p.to.measures()) return;
  const uint32_t base = (shared_at(memory) + 1023) & ~1023u;
  const Bars<S> bars{base + L::bars};
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(bars.item_full(i), 1);
      barrier_init(bars.item_empty(i), 8 * p.leaders + 2);
      barrier_init(bars.k_full(i), 1);
      barrier_init(bars.k_empty(i), 8 * p.leaders);
      barrier_init(bars.dq_full(i), 4 * p.leaders);
      barrier_init(bars.dq_prior(i), 1);
      barrier_init(bars.dq_empty(i), 1);
    }
    barrier_init(bars.v_full(), 1);
    barrier_init(bars.v_empty(), 8 * p.leaders);
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(bars.q_full(s), 2);
      barrier_init(bars.dy_full(s), 1);
      barrier_init(bars.empty(s), 8 * p.leaders);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int group = threadIdx.x / 128;
  if (group == 2) {
    registers_down<24>();
    const int warp = threadIdx.x % 128 / 32;
    if (threadIdx.x % 32 != 0) return;
    if (warp == 0) produce<S>(p, base);
    if (warp == 1 || warp == 2) hand_on<S>(p, base, warp - 1);
  } else {
    registers_up<240>();
    consume<T, S>(p, base, group);
  }
}

}  // namespace hearth::cuda::flash_bwd
