// Flash attention backward with mma.sync: a block keeps dK and dV of a tile of keys in registers
// and iterates over the tiles of queries that see it. 10 * B * H * D * (visible pairs) FLOP. dQ of
// a tile of queries is summed in fp32 memory by one tile of keys after the other, from the diagonal
// down, each in its turn, so the order is fixed. The first stores its part, the last writes dq.
#pragma once

#include "cuda/attention/mma/flash_mma_bwd_pair.cuh"

namespace hearth::cuda {

// c = ds (queries, keys) times k (keys, head), this warp's part; over 16 * pieces keys.
template <class Tile>
__device__ void backward_queries(float (&c)[Tile::q_rows][Tile::q_columns][4],
                                 const BackwardShared<Tile>& m, int pieces, int warp, int lane) {
  const int row = warp % Tile::QM * Tile::q_rows * 2, column = warp / Tile::QM * Tile::q_columns;
#pragma unroll
  for (int j = 0; j < Tile::BN / 16; ++j) {
    if (j == pieces) break;
    uint32_t fs[Tile::q_rows][4];
#pragma unroll
    for (int r = 0; r < Tile::q_rows; ++r) m.ds.a_transposed(fs[r], j * 16, row + 2 * r, lane);
#pragma unroll
    for (int d = 0; d < Tile::q_columns / 2; ++d) {
      uint32_t fk[4];
      m.k.b_transposed(fk, j * 16, column + 2 * d, lane);
#pragma unroll
      for (int r = 0; r < Tile::q_rows; ++r) {
        multiply(c[r][2 * d], fs[r], fk[0], fk[1], typename Tile::Element());
        multiply(c[r][2 * d + 1], fs[r], fk[2], fk[3], typename Tile::Element());
      }
    }
  }
}

__device__ inline void wait_turn(const int* turn, int mine) {
  int now;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  while (now != mine);
}

__device__ inline void pass_turn(int* turn, int next) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

// Which tile of keys a block takes, by its place in the order in which blocks start. Within a head
// the last keys go first, since the other tiles wait for them. The last `side_by_side` blocks all
// run at once and may wait for each other in any order: among them the longest go first, which
// shortens the tail.
struct KeyBlock {
  int n, head;  // tile of keys; (b, g)

  __device__ KeyBlock(int order, int tiles, int heads, int side_by_side) {
    n = tiles - 1 - order % tiles, head = order / tiles;
    const int together = min(heads, max(1, side_by_side / tiles));  // heads
    const int low = min(tiles, side_by_side);                       // tiles per head among them
    const int place = order - (tiles * heads - together * low);
    if (place >= 0) n = place / together, head = heads - together + place % together;
  }
};

// A block's place in starting order: a block only waits for blocks that already run.
__device__ inline int take_ticket(int* ticket) {
  __shared__ int mine;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
  __syncthreads();
  return mine;
}

// Rounds 8-column fragments c, times `scale`, to `to` + row * stride.
template <class T, int Columns>
__device__ void store_rows(T* to, int64_t stride, int row, int limit, int first_column, int width,
                           const float (&c)[Columns][4], float scale, int lane) {
#pragma unroll
  for (int d = 0; d < Columns; ++d)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + half * 8 + lane / 4, at = first_column + d * 8;
      if (i < limit && at < width)
        *reinterpret_cast<uint32_t*>(to + i * stride + at + (lane & 3) * 2) =
            pack(c[d][half * 2] * scale, c[d][half * 2 + 1] * scale, T());
    }
}

// Adds this block's part of dQ to the sum of the blocks before it; the constructor loads that sum.
template <class Tile>
struct QuerySum {
  const FlashBackward& a;
  float4* sum;  // of this tile of queries, from this thread's first element
  bool first, last;
  float4 before[Tile::q_rows][Tile::q_columns];

  __device__ QuerySum(const FlashBackward& a, int64_t tile, bool first, bool last)
      : a(a),
        sum(reinterpret_cast<float4*>(a.dq) + tile * (Tile::BM * Tile::D / 4) + threadIdx.x),
        first(first),
        last(last) {
#pragma unroll
    for (int r = 0; r < Tile::q_rows; ++r)
#pragma unroll
      for (int d = 0; d < Tile::q_columns; ++d)
        before[r][d] =
            first ? float4{0, 0, 0, 0} : __ldcg(sum + (r * Tile::q_columns + d) * Tile::threads);
  }

  __device__ void add(const BackwardShared<Tile>& m, int b, int h, int first_query, int pieces,
                      int warp, int lane) const {
    using T = typename Tile::Element;
    float c[Tile::q_rows][Tile::q_columns][4] = {};
    backward_queries<Tile>(c, m, pieces, warp, lane);
    T* dq = static_cast<T*>(a.dqkv) + int64_t(b) * a.T * a.token + h * a.D;
#pragma unroll
    for (int r = 0; r < Tile::q_rows; ++r) {
#pragma unroll
      for (int d = 0; d < Tile::q_columns; ++d) {
        const float4 x = before[r][d];
        c[r][d][0] += x.x, c[r][d][1] += x.y, c[r][d][2] += x.z, c[r][d][3] += x.w;
        if (!last)
          __stcg(sum + (r * Tile::q_columns + d) * Tile::threads,
                 float4{c[r][d][0], c[r][d][1], c[r][d][2], c[r][d][3]});
      }
      if (last)
        store_rows(dq, a.token, first_query + (warp % Tile::QM * Tile::q_rows + r) * 16, a.T,
                   warp / Tile::QM * Tile::q_columns * 8, a.D, c[r], a.scale, lane);
    }
  }
};

// The tiles of queries that see one tile of keys, head by head.
template <class Tile>
struct BackwardWalk {
  const FlashBackward& a;
  int b, n, begin, end;  // tiles of queries
  int h, last_head, m;

  __device__ BackwardWalk(const FlashBackward& a, int b, int g, int n) : a(a), b(b), n(n) {
    constexpr int BM = Tile::BM, BN = Tile::BN;
    begin = n * (BN / BM), end = (a.T + BM - 1) / BM;
    if (a.window < a.T) end = min(end, (n * BN + BN - 2 + a.window) / BM + 1);
    h = g * (a.H / a.G), last_head = h + a.H / a.G - 1;
    m = begin - 1;
    next();
  }
  // First and last tile of keys that add to dQ of tile m, from the diagonal down.
  __device__ int first_keys() const { return m * Tile::BM / Tile::BN; }
  __device__ int last_keys() const {
    int last = a.window < a.T ? max(0, m * Tile::BM - a.window + 1) / Tile::BN : 0;
    if constexpr (Tile::General)
      if (a.first)
        last = max(last, a.first[int64_t(b) * flash_blocks(a.T) + m * Tile::BM / flash_block] *
                             flash_block / Tile::BN);
    return last;
  }
  __device__ bool more() const { return h <= last_head; }
  __device__ void next() {
    do {
      if (++m == end) m = begin, ++h;
    } while (Tile::General && more() && a.first && last_keys() > n);
  }
  __device__ void go_to(const BackwardWalk& w) { h = w.h, m = w.m; }
  __device__ int64_t tile() const {
    return (int64_t(b) * a.H + h) * ((a.T + Tile::BM - 1) / Tile::BM) + m;
  }
  __device__ bool masked() const {
    const int query = m * Tile::BM, key = n * Tile::BN;
    return key + Tile::BN - 1 > query || query + Tile::BM - 1 - key >= a.window;
  }
};

template <class Tile, class Shared>
__device__ void load_queries(const FlashBackward& a, const BackwardWalk<Tile>& at, const Shared& m,
                             int stage) {
  using T = typename Tile::Element;
  const int64_t y_token = int64_t(a.H) * a.V;
  const T* q = static_cast<const T*>(a.qkv) + at.b * a.T * a.token + at.h * a.D;
  const T* dy = static_cast<const T*>(a.dy) + at.b * a.T * y_token + at.h * a.V;
  const int first = at.m * Tile::BM;
  m.q_of(stage).template load<Tile::BM, Tile::threads>(q, a.token, first, a.T, a.D);
  m.dy_of(stage).template load<Tile::BM, Tile::threads>(dy, y_token, first, a.T, a.V);
  const int padded = flash_blocks(a.T) * flash_block;
  if (threadIdx.x < Tile::BM / 2)
    copy_async(m.rows_of(stage) + threadIdx.x * 16,
               a.rows + (int64_t(at.b) * a.H + at.h) * padded + first + threadIdx.x * 2, true);
}

// Everything of one step except dQ: scores, their gradients, and (Split 1) dK and dV.
template <class Tile>
__device__ void backward_pairs(float (&dk)[Tile::R][Tile::columns / 8][4],
                               float (&dv)[Tile::R][Tile::columns / 8][4], const FlashBackward& a,
                               const BackwardWalk<Tile>& at, const BackwardShared<Tile>& m,
                               int stage, int warp, int lane) {
  constexpr int R = Tile::R, BS = Tile::BS, share_of = Tile::BM / Tile::Split;
  const int key = warp / Tile::Split * R * 16, first = warp % Tile::Split * share_of;
  HeadBias head;
  if constexpr (Tile::General) head = HeadBias(a.slopes, a.bias, a.distances, at.h);
#pragma unroll
  for (int i = 0; i < share_of; i += BS) {
    const int query = first + i;
    const SharedTile<Tile::D> q{m.q_of(stage).at + query * Tile::D * 2};
    const SharedTile<Tile::D> dy{m.dy_of(stage).at + query * Tile::D * 2};
    uint32_t p[R][BS / 16][4] = {}, ds[R][BS / 16][4] = {};
    // All of these queries come before all of the warp's keys: only zeros are stored.
    const bool blind = at.n * Tile::BN + key >= at.m * Tile::BM + query + BS;
    if (!blind) {
      float s[R][BS / 8][4], dp[R][BS / 8][4];
      backward_scores<Tile>(s, m.k, key, q, lane);
      if constexpr (Tile::keys) backward_scores<Tile>(dp, m.v, key, dy, lane);
      const BackwardStep step{at.b, at.h, at.m * Tile::BM + query, at.n * Tile::BN + key + lane / 4,
                              head};
      const uint32_t rows = m.rows_of(stage) + query * 8;
      if (Tile::General || at.masked())
        backward_slopes<Tile, true>(p, ds, s, dp, rows, a, step, lane);
      else
        backward_slopes<Tile, false>(p, ds, s, dp, rows, a, step, lane);
    }
    if constexpr (Tile::keys) share<Tile>(m.ds, ds, key, query / 8, lane);
    if constexpr (Tile::Split == 2) {
      share<Tile>(m.p, p, key, query / 8, lane);
    } else if (!blind) {
#pragma unroll
      for (int n = 0; n < BS / 16; ++n) {
        uint32_t fp[R][4], fs[R][4];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int e = 0; e < 4; ++e) fp[r][e] = p[r][n][e], fs[r][e] = ds[r][n][e];
        if constexpr (Tile::values) backward_add<Tile>(dv, fp, dy, n * 16, 0, lane);
        if constexpr (Tile::keys) backward_add<Tile>(dk, fs, q, n * 16, 0, lane);
      }
    }
  }
}

template <class Tile>
__global__ __launch_bounds__(Tile::threads, Tile::Blocks) void backward_kernel(FlashBackward a) {
  using T = typename Tile::Element;
  constexpr int BM = Tile::BM, BN = Tile::BN, R = Tile::R, Split = Tile::Split;
  constexpr int columns = Tile::columns;
  extern __shared__ __align__(128) unsigned char shared[];
  const BackwardShared<Tile> m(shared_address(shared));
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  int order = int(blockIdx.x);
  if constexpr (Tile::keys) order = take_ticket(a.ticket);
  const KeyBlock mine(order, (a.T + BN - 1) / BN, a.B * a.G, a.side_by_side);
  const int n = mine.n, g = mine.head % a.G, b = mine.head / a.G;
  // Offsets of this block's key head and value head in a token's q | k | v.
  const int k_at = (a.H + g) * a.D, v_at = (a.H + a.G) * a.D + g * a.V;
  const T* qkv = static_cast<const T*>(a.qkv) + b * a.T * a.token;

  m.k.template load<BN, Tile::threads>(qkv + k_at, a.token, n * BN, a.T, a.D);
  if constexpr (Tile::keys)
    m.v.template load<BN, Tile::threads>(qkv + v_at, a.token, n * BN, a.T, a.V);
  BackwardWalk<Tile> at(a, b, g, n);
  load_queries<Tile>(a, at, m, 0);
  commit_copies();

  float dk[R][columns / 8][4] = {}, dv[R][columns / 8][4] = {};
  const int key = warp / Split * R * 16, column = warp % Split * columns;
  // The turn to pass on once this block's sums are visible. It is passed half a step later, when
  // the stores have completed: a fence that had to wait for them would stall the whole block.
  int* done = nullptr;
  int next_turn = 0;
  for (int stage = 0; at.more(); stage ^= Tile::Stages - 1) {
    wait_for_copies<0>();
    __syncthreads();
    const BackwardWalk<Tile> now = at;
    at.next();
    if (Tile::Stages == 2 && at.more()) load_queries<Tile>(a, at, m, stage ^ 1);
    commit_copies();
    backward_pairs<Tile>(dk, dv, a, now, m, stage, warp, lane);

    const int first = now.first_keys(), last = now.last_keys();
    if (Tile::keys && threadIdx.x == 0 && n != first) wait_turn(a.turns + now.tile(), first - n);
    if constexpr (Tile::keys || Split == 2 || Tile::Stages == 1) __syncthreads();
    if (Tile::Stages == 1 && at.more()) load_queries<Tile>(a, at, m, 0);
    commit_copies();
    if constexpr (Tile::keys) {
      const QuerySum<Tile> sum(a, now.tile(), n == first, n == last);
      if (threadIdx.x == 0 && done) pass_turn(done, next_turn);
      if constexpr (Split == 2) {
        backward_add_shared<Tile>(dv, m.p, key, m.dy_of(stage), column, lane);
        backward_add_shared<Tile>(dk, m.ds, key, m.q_of(stage), column, lane);
      }
      sum.add(m, b, now.h, now.m * BM, (now.m * BM + BM - 1 - n * BN) / 16 + 1, warp, lane);
      done = n == last ? nullptr : a.turns + now.tile(), next_turn = first - n + 1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && done) pass_turn(done, next_turn);

  T* out = static_cast<T*>(a.dqkv) + b * a.T * a.token;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = n * BN + key + r * 16;
    if constexpr (Tile::keys)
      store_rows(out + k_at, a.token, row, a.T, column, a.D, dk[r], a.scale, lane);
    if constexpr (Tile::values)
      store_rows(out + v_at, a.token, row, a.T, column, a.V, dv[r], 1.0f, lane);
  }
}

template <class Tile>
void launch_backward(const FlashBackward& a, CudaStream& stream) {
  static_assert(Tile::Split == 1 || (Tile::Stages == 2 && Tile::keys && Tile::values));
  const auto kernel = backward_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma_bwd");
  const int tiles = (a.T + Tile::BN - 1) / Tile::BN;
  kernel<<<unsigned(tiles * a.B * a.G), Tile::threads, Tile::shared, stream.handle>>>(a);
  check_launch("flash_mma_bwd");
}

template <class Sizes, class T, int D, bool General>
void backward_of(const FlashBackward& a, CudaStream& stream) {
  if constexpr (D / Sizes::Split * Sizes::R <= 128) {
    launch_backward<BackwardTile<Sizes, T, D, General, Pass::all>>(a, stream);
  } else {
    launch_backward<BackwardTile<Sizes, T, D, General, Pass::values>>(a, stream);
    launch_backward<BackwardTile<Sizes, T, D, General, Pass::keys>>(a, stream);
  }
}

template <class Sizes, int D>
constexpr int backward_shared = BackwardTile<Sizes, __half, D, false, Pass::keys>::shared;

template <class Sizes, int D>
void backward_by_dtype(const FlashBackward& a, CudaStream& stream) {
  if (a.dtype == DType::bf16 && a.general)
    backward_of<Sizes, __nv_bfloat16, D, true>(a, stream);
  else if (a.dtype == DType::bf16)
    backward_of<Sizes, __nv_bfloat16, D, false>(a, stream);
  else if (a.dtype == DType::f16 && a.general)
    backward_of<Sizes, __half, D, true>(a, stream);
  else if (a.dtype == DType::f16)
    backward_of<Sizes, __half, D, false>(a, stream);
  else
    refuse_dtype("flash_mma_bwd", a.dtype);
}

}  // namespace hearth::cuda
