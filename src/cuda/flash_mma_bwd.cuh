// Flash attention backward with mma.sync: a block of keys, its dK and dV in registers, walks the
// blocks of queries that see it. 10 * B * H * D * (visible pairs) FLOP. dQ of a block of queries is
// summed in fp32 memory by one block of keys after the other, from the diagonal down: each waits
// for its turn, so the order of the sum is fixed. The first stores, the last writes dq itself.
#pragma once

#include <climits>

#include "cuda/flash_mma.h"
#include "cuda/flash_mma_score.cuh"
#include "cuda/mma.cuh"

namespace hearth::cuda {

// Which gradients a pass computes: heads beyond 128 need two, for want of registers.
enum class Pass { all, values, keys };  // values: dV; keys: dK and dQ

template <class T, int D_, int BM_, int BN_, int R_, int QM_, int Stages_, bool General_, Pass P>
struct BackwardTile {
  using Element = T;
  static constexpr int D = D_, BM = BM_, BN = BN_, Stages = Stages_;
  static constexpr bool General = General_;
  static constexpr bool keys = P != Pass::values, values = P != Pass::keys;
  static constexpr int R = R_;  // 16-row pieces of keys per warp
  static constexpr int warps = BN / (16 * R), threads = 32 * warps;
  // Warps over the rows and columns of dQ, and 16-row, 8-column pieces of one.
  static constexpr int QM = QM_, QD = warps / QM, q_rows = BM / (16 * QM), q_columns = D / QD / 8;
  static constexpr int q_bytes = SharedTile<D>::bytes(BM), k_bytes = SharedTile<D>::bytes(BN);
  static constexpr int shared = 2 * k_bytes + Stages * (2 * q_bytes + BM * 8) + BN * BM * 2;
};

// Where this block's memory lies.
template <class Tile>
struct BackwardShared {
  SharedTile<Tile::D> k, v, q, dy;  // q, dy: of stage 0
  SharedTile<Tile::BM> ds;          // (keys, queries)
  uint32_t rows;                    // (queries) of lse, delta

  __device__ explicit BackwardShared(uint32_t at) {
    k.at = at, v.at = k.at + Tile::k_bytes;
    q.at = v.at + Tile::k_bytes, dy.at = q.at + Tile::Stages * Tile::q_bytes;
    ds.at = dy.at + Tile::Stages * Tile::q_bytes, rows = ds.at + Tile::BN * Tile::BM * 2;
  }
  __device__ SharedTile<Tile::D> q_of(int stage) const { return {q.at + stage * Tile::q_bytes}; }
  __device__ SharedTile<Tile::D> dy_of(int stage) const { return {dy.at + stage * Tile::q_bytes}; }
  __device__ uint32_t rows_of(int stage) const { return rows + stage * Tile::BM * 8; }
};

// c[r][n] = rows of x (this warp's keys) times rows of y (queries), over the head.
template <class Tile>
__device__ void backward_scores(float (&c)[Tile::R][Tile::BM / 8][4], SharedTile<Tile::D> x,
                                SharedTile<Tile::D> y, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BM / 8; ++n) c[r][n][0] = c[r][n][1] = c[r][n][2] = c[r][n][3] = 0;
#pragma unroll
  for (int d = 0; d < Tile::D / 16; ++d) {
    uint32_t fx[Tile::R][4];
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) x.a(fx[r], (warp * Tile::R + r) * 16, 2 * d, lane);
#pragma unroll
    for (int n = 0; n < Tile::BM / 16; ++n) {
      uint32_t fy[4];
      y.b(fy, n * 16, 2 * d, lane);
#pragma unroll
      for (int r = 0; r < Tile::R; ++r) {
        multiply(c[r][2 * n], fx[r], fy[0], fy[1], typename Tile::Element());
        multiply(c[r][2 * n + 1], fx[r], fy[2], fy[3], typename Tile::Element());
      }
    }
  }
}

// sum[r][d] += p (keys, queries) times x (queries, head)
template <class Tile>
__device__ void backward_add(float (&sum)[Tile::R][Tile::D / 8][4],
                             const uint32_t (&p)[Tile::R][Tile::BM / 16][4], SharedTile<Tile::D> x,
                             int lane) {
#pragma unroll
  for (int n = 0; n < Tile::BM / 16; ++n)
#pragma unroll
    for (int d = 0; d < Tile::D / 16; ++d) {
      uint32_t fx[4];
      x.b_transposed(fx, n * 16, 2 * d, lane);
#pragma unroll
      for (int r = 0; r < Tile::R; ++r) {
        multiply(sum[r][2 * d], p[r][n], fx[0], fx[1], typename Tile::Element());
        multiply(sum[r][2 * d + 1], p[r][n], fx[2], fx[3], typename Tile::Element());
      }
    }
}

// What of a step the element-wise part needs.
struct BackwardStep {
  int b, h, first_query, first_key;  // first_key: of this thread's first row
  bool masked;
  float slope;
};

// From scores s and dp = dy . v: packed probabilities after dropout and gradients of q . k * scale.
template <class Tile, bool Masked>
__device__ void backward_slopes(uint32_t (&p)[Tile::R][Tile::BM / 16][4],
                                uint32_t (&ds)[Tile::R][Tile::BM / 16][4],
                                float (&s)[Tile::R][Tile::BM / 8][4],
                                float (&dp)[Tile::R][Tile::BM / 8][4], uint32_t row_sums,
                                const FlashBackward& a, const BackwardStep& step, int lane) {
  using T = typename Tile::Element;
  const float unit = Tile::General ? log2_e : a.scale * log2_e;
  const int32_t* documents = nullptr;
  if constexpr (Tile::General)
    if (a.documents) documents = a.documents + int64_t(step.b) * a.T;
#pragma unroll
  for (int n = 0; n < Tile::BM / 8; ++n) {
    float lse[2], delta[2];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(lse[0]), "=f"(delta[0]), "=f"(lse[1]), "=f"(delta[1])
                 : "r"(row_sums + (n * 8 + (lane & 3) * 2) * 8)
                 : "memory");
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = step.first_query + n * 8 + (lane & 3) * 2 + (e & 1);
        const int j = step.first_key + r * 16 + (e >> 1) * 8;
        float x = s[r][n][e], slope = 1, keep = 1;
        if constexpr (Tile::General) {
          x *= a.scale;
          if (a.softcap > 0) {
            const float t = tanh_of(x / a.softcap);
            x = a.softcap * t, slope = 1 - t * t;
          }
          x -= step.slope * float(i - j);
        }
        float prob = exp2_fast(fmaf(x, unit, -lse[e & 1]));
        if constexpr (Masked) {
          bool sees = i >= j && i - j < a.window;
          if constexpr (Tile::General)
            sees = sees && i < a.T && (!documents || documents[i] == documents[min(j, a.T - 1)]);
          if (!sees) prob = 0;
        }
        if constexpr (Tile::General)
          if (a.dropout > 0) {
            const Dropout dropout(a.scalars, a.salt, a.dropout);
            const uint64_t line = (uint64_t(step.b) * a.H + step.h) * a.T + uint64_t(i);
            keep = dropout.one(line * uint64_t(a.T) + uint64_t(j));
          }
        s[r][n][e] = prob * keep;
        dp[r][n][e] = prob * (dp[r][n][e] * keep - delta[e & 1]) * slope;
      }
      uint32_t* to = p[r][n / 2] + (n & 1) * 2;
      to[0] = pack(s[r][n][0], s[r][n][1], T()), to[1] = pack(s[r][n][2], s[r][n][3], T());
      to = ds[r][n / 2] + (n & 1) * 2;
      to[0] = pack(dp[r][n][0], dp[r][n][1], T()), to[1] = pack(dp[r][n][2], dp[r][n][3], T());
    }
  }
}

template <class Tile>
__device__ void share_slopes(SharedTile<Tile::BM> to,
                             const uint32_t (&ds)[Tile::R][Tile::BM / 16][4], int warp, int lane) {
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BM / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (warp * Tile::R + r) * 16 + half * 8 + lane / 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to.chunk(row, n) + (lane & 3) * 4),
                     "r"(ds[r][n / 2][(n & 1) * 2 + half])
                     : "memory");
      }
}

// c = ds (queries, keys) times k (keys, head), the part of this warp.
template <class Tile>
__device__ void backward_queries(float (&c)[Tile::q_rows][Tile::q_columns][4],
                                 const BackwardShared<Tile>& m, int warp, int lane) {
  const int row = warp % Tile::QM * Tile::q_rows * 2, column = warp / Tile::QM * Tile::q_columns;
#pragma unroll
  for (int j = 0; j < Tile::BN / 16; ++j) {
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

// A block's place in the order they began in: who waits for an earlier one waits for a running one.
__device__ inline int take_ticket(int* ticket) {
  __shared__ int mine;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
  __syncthreads();
  return mine;
}

// Rows of 8-column pieces c, times `scale`, to `to` + row * stride.
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

// Adds this block's share of dQ to the sum of those before it.
template <class Tile>
struct QuerySum {
  const FlashBackward& a;
  float4* sum;  // of this block of queries, from this thread's first element
  bool first, last;

  __device__ QuerySum(const FlashBackward& a, int64_t tile, bool first, bool last)
      : a(a),
        sum(reinterpret_cast<float4*>(a.dq) + tile * (Tile::BM * Tile::D / 4) + threadIdx.x),
        first(first),
        last(last) {}

  __device__ void add(const BackwardShared<Tile>& m, int b, int h, int first_query, int warp,
                      int lane) const {
    using T = typename Tile::Element;
    float4 before[Tile::q_rows][Tile::q_columns];
    float c[Tile::q_rows][Tile::q_columns][4];
#pragma unroll
    for (int r = 0; r < Tile::q_rows; ++r)
#pragma unroll
      for (int d = 0; d < Tile::q_columns; ++d) {
        before[r][d] =
            first ? float4{0, 0, 0, 0} : __ldcg(sum + (r * Tile::q_columns + d) * Tile::threads);
        c[r][d][0] = c[r][d][1] = c[r][d][2] = c[r][d][3] = 0;
      }
    backward_queries<Tile>(c, m, warp, lane);
    const int64_t token = int64_t(a.H + 2 * a.G) * a.D;
    T* dq = static_cast<T*>(a.dqkv) + int64_t(b) * a.T * token + h * a.D;
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
        store_rows(dq, token, first_query + (warp % Tile::QM * Tile::q_rows + r) * 16, a.T,
                   warp / Tile::QM * Tile::q_columns * 8, a.D, c[r], a.scale, lane);
    }
  }
};

// Blocks of queries that meet one block of keys, head after head.
template <class Tile>
struct BackwardWalk {
  const FlashBackward& a;
  int b, n, begin, end;  // blocks of queries
  int h, last_head, m;

  __device__ BackwardWalk(const FlashBackward& a, int b, int g, int n) : a(a), b(b), n(n) {
    constexpr int BM = Tile::BM, BN = Tile::BN;
    begin = n * (BN / BM), end = (a.T + BM - 1) / BM;
    if (a.window < a.T) end = min(end, (n * BN + BN - 2 + a.window) / BM + 1);
    h = g * (a.H / a.G), last_head = h + a.H / a.G - 1;
    m = begin - 1;
    next();
  }
  // First and last block of keys to add to dQ: from the diagonal down to here.
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
  __device__ int64_t tile() const {
    return (int64_t(b) * a.H + h) * ((a.T + Tile::BM - 1) / Tile::BM) + m;
  }
  __device__ bool masked() const {
    const int query = m * Tile::BM, key = n * Tile::BN;
    return key + Tile::BN - 1 > query || query + Tile::BM - 1 - key >= a.window;
  }
};

template <class Tile>
__device__ void load_queries(const FlashBackward& a, const BackwardWalk<Tile>& at,
                             const BackwardShared<Tile>& m, int stage) {
  using T = typename Tile::Element;
  const int64_t token = int64_t(a.H + 2 * a.G) * a.D, y_token = int64_t(a.H) * a.D;
  const T* q = static_cast<const T*>(a.qkv) + at.b * a.T * token + at.h * a.D;
  const T* dy = static_cast<const T*>(a.dy) + at.b * a.T * y_token + at.h * a.D;
  const int first = at.m * Tile::BM;
  m.q_of(stage).template load<Tile::BM, Tile::threads>(q, token, first, a.T, a.D);
  m.dy_of(stage).template load<Tile::BM, Tile::threads>(dy, y_token, first, a.T, a.D);
  const int padded = flash_blocks(a.T) * flash_block;
  if (threadIdx.x < Tile::BM / 2)
    copy_async(m.rows_of(stage) + threadIdx.x * 16,
               a.rows + (int64_t(at.b) * a.H + at.h) * padded + first + threadIdx.x * 2, true);
}

template <class Tile, int Blocks>
__global__ __launch_bounds__(Tile::threads, Blocks) void backward_kernel(FlashBackward a) {
  using T = typename Tile::Element;
  constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, R = Tile::R;
  extern __shared__ __align__(128) unsigned char shared[];
  const BackwardShared<Tile> m(shared_address(shared));
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int tiles = (a.T + BN - 1) / BN;
  // The block nearest the end first: it is the one the others of its head wait for.
  int order = int(blockIdx.x);
  if constexpr (Tile::keys) order = take_ticket(a.ticket);
  const int n = tiles - 1 - order % tiles, g = order / tiles % a.G, b = order / (tiles * a.G);
  const int64_t token = int64_t(a.H + 2 * a.G) * a.D;
  const T* pk = static_cast<const T*>(a.qkv) + b * a.T * token + (a.H + g) * a.D;

  m.k.template load<BN, Tile::threads>(pk, token, n * BN, a.T, a.D);
  if constexpr (Tile::keys)
    m.v.template load<BN, Tile::threads>(pk + a.G * a.D, token, n * BN, a.T, a.D);
  BackwardWalk<Tile> at(a, b, g, n);
  load_queries<Tile>(a, at, m, 0);
  commit_copies();

  float dk[R][D / 8][4] = {}, dv[R][D / 8][4] = {};
  int* done = nullptr;  // whose turn ends when this block's sums are seen by all
  int done_value = 0;
  for (int stage = 0; at.more(); stage ^= Tile::Stages - 1) {
    wait_copies<0>();
    __syncthreads();
    if (threadIdx.x == 0 && done) pass_turn(done, done_value);
    const BackwardWalk<Tile> now = at;
    at.next();
    if (Tile::Stages == 2 && at.more()) load_queries<Tile>(a, at, m, stage ^ 1);
    commit_copies();

    const auto q = m.q_of(stage), dy = m.dy_of(stage);
    uint32_t p[R][BM / 16][4], ds[R][BM / 16][4];
    {
      float s[R][BM / 8][4], dp[R][BM / 8][4];
      backward_scores<Tile>(s, m.k, q, warp, lane);
      if constexpr (Tile::keys) backward_scores<Tile>(dp, m.v, dy, warp, lane);
      BackwardStep step{b, now.h, now.m * BM, n * BN + warp * R * 16 + lane / 4, true, 0};
      if constexpr (Tile::General)
        if (a.slopes) step.slope = a.slopes[now.h];
      if (Tile::General || now.masked())
        backward_slopes<Tile, true>(p, ds, s, dp, m.rows_of(stage), a, step, lane);
      else
        backward_slopes<Tile, false>(p, ds, s, dp, m.rows_of(stage), a, step, lane);
    }
    if constexpr (Tile::keys) share_slopes<Tile>(m.ds, ds, warp, lane);
    if constexpr (Tile::values) backward_add<Tile>(dv, p, dy, lane);
    if constexpr (Tile::keys) {
      backward_add<Tile>(dk, ds, q, lane);
      const int first = now.first_keys(), last = now.last_keys();
      if (threadIdx.x == 0 && n != first) wait_turn(a.turns + now.tile(), first - n);
      __syncthreads();
      if (Tile::Stages == 1 && at.more()) load_queries<Tile>(a, at, m, 0);
      commit_copies();
      QuerySum<Tile>(a, now.tile(), n == first, n == last).add(m, b, now.h, now.m * BM, warp, lane);
      done = n == last ? nullptr : a.turns + now.tile(), done_value = first - n + 1;
    } else if constexpr (Tile::Stages == 1) {
      __syncthreads();
      if (at.more()) load_queries<Tile>(a, at, m, 0);
      commit_copies();
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && done) pass_turn(done, done_value);

  T* out = static_cast<T*>(a.dqkv) + b * a.T * token + (a.H + g) * a.D;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = n * BN + (warp * R + r) * 16;
    if constexpr (Tile::keys) store_rows(out, token, row, a.T, 0, a.D, dk[r], a.scale, lane);
    if constexpr (Tile::values)
      store_rows(out + a.G * a.D, token, row, a.T, 0, a.D, dv[r], 1.0f, lane);
  }
}

template <class Tile, int Blocks>
void launch_backward(const FlashBackward& a, CudaStream& stream) {
  const auto kernel = backward_kernel<Tile, Blocks>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma_bwd");
  const int tiles = (a.T + Tile::BN - 1) / Tile::BN;
  kernel<<<unsigned(tiles * a.B * a.G), Tile::threads, Tile::shared, stream.handle>>>(a);
  check_launch("flash_mma_bwd");
}

// Tile sizes: queries, keys, pieces of keys per warp, warps over rows of dQ, stages of queries.
template <int BM, int BN, int R, int QM, int Stages, int Blocks>
struct BackwardSizes {
  template <class T, int D, bool General>
  static void launch(const FlashBackward& a, CudaStream& stream) {
    if constexpr (D <= 128) {
      launch_backward<BackwardTile<T, D, BM, BN, R, QM, Stages, General, Pass::all>, Blocks>(
          a, stream);
    } else {
      launch_backward<BackwardTile<T, D, BM, BN, R, QM, Stages, General, Pass::values>, Blocks>(
          a, stream);
      launch_backward<BackwardTile<T, D, BM, BN, R, QM, Stages, General, Pass::keys>, Blocks>(
          a, stream);
    }
  }
  template <int D>
  static constexpr int shared =
      BackwardTile<__half, D, BM, BN, R, QM, Stages, false, Pass::keys>::shared;
};

template <class Sizes, int D>
void backward_by_dtype(const FlashBackward& a, CudaStream& stream) {
  if (a.dtype == DType::bf16 && a.general)
    Sizes::template launch<__nv_bfloat16, D, true>(a, stream);
  else if (a.dtype == DType::bf16)
    Sizes::template launch<__nv_bfloat16, D, false>(a, stream);
  else if (a.dtype == DType::f16 && a.general)
    Sizes::template launch<__half, D, true>(a, stream);
  else if (a.dtype == DType::f16)
    Sizes::template launch<__half, D, false>(a, stream);
  else
    refuse_dtype("flash_mma_bwd", a.dtype);
}

}  // namespace hearth::cuda
