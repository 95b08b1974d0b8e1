// Flash attention backward with two groups of four warps, for heads whose dK and dV fill the
// registers of a multiprocessor: one group keeps dV, the other dK. Between two barriers a warp
// computes the scores of one tile of queries and, for the previous tile, its part of dV or dK and
// of dQ. The groups do this in opposite order, so that exponentials of one overlap products of the
// other. Supports causal masking and a window only.
#pragma once

#include "cuda/attention/mma/flash_mma_bwd.cuh"

namespace hearth::cuda {

template <class T, int D_>
struct GroupedTile {
  using Element = T;
  static constexpr bool General = false;
  static constexpr int D = D_, BM = 64, BN = 128, threads = 256;
  static constexpr int R = 2, BS = 32;  // a warp computes scores of 16 R keys and BS queries
  static constexpr int slots = 3;       // tiles of queries: in products, in scores, and loading
  static constexpr int q_bytes = SharedTile<D>::bytes(BM), k_bytes = SharedTile<D>::bytes(BN);
  static constexpr int p_bytes = SharedTile<BM>::bytes(BN);
  static constexpr int shared = 2 * k_bytes + slots * (2 * q_bytes + BM * 8) + 4 * p_bytes;
  static constexpr int needs = shared + 128;  // including the ticket
};

template <class Tile>
struct GroupedShared {
  SharedTile<Tile::D> k, v, q, dy;  // q, dy: of slot 0
  SharedTile<Tile::BM> ds, p;       // (keys, queries), of even steps
  uint32_t rows;                    // (queries) of lse, delta

  __device__ explicit GroupedShared(uint32_t at) {
    k.at = at, v.at = k.at + Tile::k_bytes;
    q.at = v.at + Tile::k_bytes, dy.at = q.at + Tile::slots * Tile::q_bytes;
    ds.at = dy.at + Tile::slots * Tile::q_bytes, p.at = ds.at + 2 * Tile::p_bytes;
    rows = p.at + 2 * Tile::p_bytes;
  }
  __device__ SharedTile<Tile::D> q_of(int slot) const { return {q.at + slot * Tile::q_bytes}; }
  __device__ SharedTile<Tile::D> dy_of(int slot) const { return {dy.at + slot * Tile::q_bytes}; }
  __device__ SharedTile<Tile::BM> ds_of(int odd) const { return {ds.at + odd * Tile::p_bytes}; }
  __device__ SharedTile<Tile::BM> p_of(int odd) const { return {p.at + odd * Tile::p_bytes}; }
  __device__ uint32_t rows_of(int slot) const { return rows + slot * Tile::BM * 8; }
};

// c += the 32 x 32 product of Steps pairs of fragments, or of half of them. fetch(x, y, i) loads
// pair i while the products before it run; ptxas does not schedule this by itself.
template <class T, int Steps, class Fetch>
__device__ void multiply_ahead(float (&c)[2][4][4], bool half, Fetch&& fetch) {
  uint32_t x[2][2][4], y[2][2][4];
  fetch(x[0], y[0], 0);
#pragma unroll
  for (int i = 0; i < Steps; ++i) {
    if (i == Steps / 2 && half) break;
    if (i + 1 < Steps) fetch(x[(i + 1) & 1], y[(i + 1) & 1], i + 1);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        multiply(c[r][n], x[i & 1][r], y[i & 1][n / 2][n % 2 * 2], y[i & 1][n / 2][n % 2 * 2 + 1],
                 T());
  }
}

// c = 32 rows of x from `row` (keys) times 32 rows of y from `column` (queries), over the head.
template <class Tile>
__device__ void grouped_scores(float (&c)[2][4][4], SharedTile<Tile::D> x, int row,
                               SharedTile<Tile::D> y, int column, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n) c[r][n][0] = c[r][n][1] = c[r][n][2] = c[r][n][3] = 0;
  multiply_ahead<typename Tile::Element, Tile::D / 16>(
      c, false, [&](uint32_t(&fx)[2][4], uint32_t(&fy)[2][4], int d) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          x.a(fx[r], row + r * 16, 2 * d, lane);
          y.b(fy[r], column + r * 16, 2 * d, lane);
        }
      });
}

// Probabilities from scores, in place. Computed before dy . v, whose products hide the latency.
template <class Tile>
__device__ void grouped_probabilities(float (&s)[2][4][4], uint32_t row_sums,
                                      const FlashBackward& a, int first_query, int first_key,
                                      bool masked, int lane) {
  const float unit = a.scale * log2_e;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float lse[2], delta[2];
    load_row_sums(lse, delta, row_sums + (n * 8 + (lane & 3) * 2) * 8);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[r][n][e] = exp2_fast(fmaf(s[r][n][e], unit, -lse[e & 1]));
  }
  if (!masked) return;
  const int first_away = first_query + (lane & 3) * 2 - first_key - lane / 4;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int away = first_away + n * 8 + (e & 1) - r * 16 - (e >> 1) * 8;
        if (away < 0 || away >= a.window) s[r][n][e] = 0;
      }
}

// From dp = dy . v to the gradients of q . k * scale, in place.
__device__ inline void grouped_slopes(float (&dp)[2][4][4], const float (&prob)[2][4][4],
                                      uint32_t row_sums, int lane) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float lse[2], delta[2];
    load_row_sums(lse, delta, row_sums + (n * 8 + (lane & 3) * 2) * 8);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[r][n][e] = prob[r][n][e] * (dp[r][n][e] - delta[e & 1]);
  }
}

template <class Tile>
__device__ void share_rounded(SharedTile<Tile::BM> to, const float (&c)[2][4][4], int key,
                              int query, int lane) {
  uint32_t p[2][2][4];
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 2; ++n)
      accumulators_to_a<typename Tile::Element>(p[r][n], c[r][2 * n], c[r][2 * n + 1]);
  share<Tile>(to, p, key, query / 8, lane);
}

// Scores of one step and their gradients, to shared memory: 32 keys by 32 queries per warp.
template <class Tile>
__device__ void grouped_pairs(const FlashBackward& a, const BackwardWalk<Tile>& at,
                              const GroupedShared<Tile>& m, int slot, int odd, int warp, int lane) {
  // The keys that the first tile of queries cannot see all belong to one group.
  const int key = ((warp >> 2) * 2 + (warp & 1)) * 32, query = (warp >> 1 & 1) * 32;
  const int first_query = at.m * Tile::BM + query, first_key = at.n * Tile::BN + key;
  const uint32_t rows = m.rows_of(slot) + query * 8;
  if (first_query + 31 < first_key) {
    const float zero[2][4][4] = {};
    share_rounded<Tile>(m.p_of(odd), zero, key, query, lane);
    share_rounded<Tile>(m.ds_of(odd), zero, key, query, lane);
    return;
  }
  float s[2][4][4], dp[2][4][4];
  grouped_scores<Tile>(s, m.k, key, m.q_of(slot), query, lane);
  grouped_probabilities<Tile>(s, rows, a, first_query, first_key, at.masked(), lane);
  grouped_scores<Tile>(dp, m.v, key, m.dy_of(slot), query, lane);
  share_rounded<Tile>(m.p_of(odd), s, key, query, lane);
  grouped_slopes(dp, s, rows, lane);
  share_rounded<Tile>(m.ds_of(odd), dp, key, query, lane);
}

// sum += p (64 keys from `key`, all queries) times x (queries, half of the head from `column`).
template <class Tile>
__device__ void grouped_sums(float (&sum)[4][Tile::D / 16][4], SharedTile<Tile::BM> p, int key,
                             SharedTile<Tile::D> x, int column, int lane) {
  constexpr int parts = Tile::D / 32, steps = Tile::BM / 16 * parts;
  static_assert(parts == 4);  // each part also loads one of the next four fragments of p
  uint32_t fp[2][4][4], fx[2][4];
#pragma unroll
  for (int r = 0; r < 4; ++r) p.a(fp[0][r], key + r * 16, 0, lane);
  x.b_transposed(fx[0], 0, column / 8, lane);
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    const int n = i / parts, d = i % parts, next = i + 1;
    if (next < steps)
      x.b_transposed(fx[next & 1], next / parts * 16, column / 8 + 2 * (next % parts), lane);
    if (n + 1 < Tile::BM / 16) p.a(fp[(n + 1) & 1][d], key + d * 16, 2 * (n + 1), lane);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      multiply(sum[r][2 * d], fp[n & 1][r], fx[i & 1][0], fx[i & 1][1], typename Tile::Element());
      multiply(sum[r][2 * d + 1], fp[n & 1][r], fx[i & 1][2], fx[i & 1][3],
               typename Tile::Element());
    }
  }
}

// This step's part of dQ, 32 queries by 32 columns per warp: the first tile of keys stores it,
// later ones add to the sum in memory, and the last rounds the total to its place in dqkv.
template <class Tile>
__device__ void grouped_queries(const FlashBackward& a, const BackwardWalk<Tile>& at,
                                const GroupedShared<Tile>& m, int odd, int warp, int lane) {
  using T = typename Tile::Element;
  const int row = warp % 2 * 32, column = warp / 2 * 32;
  const bool first = at.n == at.first_keys(), last = at.n == at.last_keys();
  float4* sum =
      reinterpret_cast<float4*>(a.dq) + at.tile() * (Tile::BM * Tile::D / 4) + threadIdx.x;
  float before[2][4][4] = {}, c[2][4][4] = {};
  if (last && !first)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 x = __ldcg(sum + i * Tile::threads);
      float(&to)[4] = before[i / 4][i % 4];
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
  // The first of the two tiles of queries on the diagonal sees only half of the keys.
  const bool half = at.m * Tile::BM == at.n * Tile::BN;
  multiply_ahead<T, Tile::BN / 16>(c, half, [&](uint32_t(&fs)[2][4], uint32_t(&fk)[2][4], int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m.ds_of(odd).a_transposed(fs[r], j * 16, row / 8 + 2 * r, lane);
      m.k.b_transposed(fk[r], j * 16, column / 8 + 2 * r, lane);
    }
  });
  if (!last) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (first)
        __stcg(sum + i * Tile::threads, *reinterpret_cast<const float4*>(c[i / 4][i % 4]));
      else
        add_in_memory(sum + i * Tile::threads, c[i / 4][i % 4]);
    return;
  }
  T* dq = static_cast<T*>(a.dqkv) + int64_t(at.b) * a.T * a.token + at.h * a.D;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int d = 0; d < 4; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[r][d][e] += before[r][d][e];
    store_rows(dq, a.token, at.m * Tile::BM + row + r * 16, a.T, column, a.D, c[r], a.scale, lane);
  }
}

// Writes 64 rows of half a head, times `scale`, to `to` + row * stride. Goes through this warp's
// own shared memory, so that 16-byte stores fill whole cache lines.
template <class T, int Pieces>
__device__ void store_through(T* to, int64_t stride, int rows, int width,
                              const float (&c)[4][Pieces][4], float scale,
                              SharedTile<Pieces * 8> by, int lane) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int d = 0; d < Pieces; ++d)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(by.chunk(r * 16 + half * 8 + lane / 4, d) +
                                                     (lane & 3) * 4),
                     "r"(pack(c[r][d][half * 2] * scale, c[r][d][half * 2 + 1] * scale, T()))
                     : "memory");
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 64 * Pieces; i += 32) {
    const int row = i / Pieces, chunk = i % Pieces;
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(by.chunk(row, chunk))
                 : "memory");
    if (row < rows && chunk * 8 < width)
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) = v;
  }
}

template <class Tile>
__global__ __launch_bounds__(Tile::threads, 1) void grouped_backward_kernel(FlashBackward a) {
  using T = typename Tile::Element;
  constexpr int BM = Tile::BM, BN = Tile::BN;
  extern __shared__ __align__(128) unsigned char shared[];
  const GroupedShared<Tile> m(shared_address(shared));
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = int(threadIdx.x) % 32;
  const bool keeps_k = warp >= 4;  // between two barriers it runs products first, then scores
  const KeyBlock mine(take_ticket(a.ticket), (a.T + BN - 1) / BN, a.B * a.G, a.side_by_side);
  const int n = mine.n, g = mine.head % a.G, b = mine.head / a.G;
  // Offsets of this block's key head and value head in a token's q | k | v.
  const int k_at = (a.H + g) * a.D, v_at = (a.H + a.G) * a.D + g * a.V;
  const T* qkv = static_cast<const T*>(a.qkv) + b * a.T * a.token;

  BackwardWalk<Tile> now(a, b, g, n), next = now, before = now;
  m.k.template load<BN, Tile::threads>(qkv + k_at, a.token, n * BN, a.T, a.D);
  m.v.template load<BN, Tile::threads>(qkv + v_at, a.token, n * BN, a.T, a.V);
  load_queries<Tile>(a, now, m, 0);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  next.next();
  if (next.more()) load_queries<Tile>(a, next, m, 1);
  commit_copies();

  float sum[4][Tile::D / 16][4] = {};  // of dV or dK
  const int key = (warp & 1) * 64, column = (warp >> 1 & 1) * (Tile::D / 2);
  int* done = nullptr;  // the turn to pass on once this block's sums are visible
  int next_turn = 0;
  for (int step = 0, slot = 0, slot_before = 0;; ++step) {
    const bool more = now.more();
    BackwardWalk<Tile> following = next;
    following.next();
    // The point where scores of this step and products of the previous one are done, and the next
    // queries have arrived.
    const auto meet = [&] {
      wait_for_copies<0>();
      asm volatile("bar.sync 1, %0;" ::"n"(Tile::threads) : "memory");
      if (following.more()) load_queries<Tile>(a, following, m, slot == 0 ? 2 : slot - 1);
      commit_copies();
    };
    if (more) {
      const int first = now.first_keys();
      if (threadIdx.x == 160 && n != first) wait_turn(a.turns + now.tile(), first - n);
      __syncwarp();
      grouped_pairs<Tile>(a, now, m, slot, step & 1, warp, lane);
      if (keeps_k) meet();
    }
    if (keeps_k ? more : step > 0) {
      BackwardWalk<Tile> at = now;
      if (!keeps_k) at.go_to(before);
      const int from = keeps_k ? slot : slot_before, odd = (step ^ !keeps_k) & 1;
      // The additions of two steps ago have completed; a fence that waited would stall the block.
      if (threadIdx.x == 0 && step > 1 && done) pass_turn(done, next_turn);
      __syncwarp();
      if (at.m * BM + BM > n * BN + key)
        grouped_sums<Tile>(sum, keeps_k ? m.ds_of(odd) : m.p_of(odd), key,
                           keeps_k ? m.q_of(from) : m.dy_of(from), column, lane);
      grouped_queries<Tile>(a, at, m, odd, warp, lane);
      done = n == at.last_keys() ? nullptr : a.turns + at.tile();
      next_turn = at.first_keys() - n + 1;
    }
    if (!more) break;
    if (!keeps_k) meet();
    slot_before = slot, slot = slot == 2 ? 0 : slot + 1;
    before.go_to(now), now.go_to(next), next.go_to(following);
  }
  __syncthreads();
  if (threadIdx.x == 0 && done) pass_turn(done, next_turn);

  const int first_row = n * BN + key;
  T* out = static_cast<T*>(a.dqkv) + (int64_t(b) * a.T + first_row) * a.token +
           (keeps_k ? k_at : v_at) + column;
  store_through(out, a.token, a.T - first_row, (keeps_k ? a.D : a.V) - column, sum,
                keeps_k ? a.scale : 1.0f, SharedTile<Tile::D / 2>{m.k.at + warp * 64 * Tile::D},
                lane);
}

template <class Tile>
void launch_grouped_backward(const FlashBackward& a, CudaStream& stream) {
  const auto kernel = grouped_backward_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma_bwd");
  const int tiles = (a.T + Tile::BN - 1) / Tile::BN;
  kernel<<<unsigned(tiles * a.B * a.G), Tile::threads, Tile::shared, stream.handle>>>(a);
  check_launch("flash_mma_bwd");
}

}  // namespace hearth::cuda
