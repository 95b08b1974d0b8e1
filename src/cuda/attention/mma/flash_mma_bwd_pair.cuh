// One tile of keys with one tile of queries in flash attention backward: tile sizes, shared memory,
// and a warp's part of the scores and their gradients.
#pragma once

#include "cuda/attention/mma/flash_mma.h"
#include "cuda/attention/mma/flash_mma_score.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda {

// Which gradients a pass computes: large heads need two passes, for lack of registers.
enum class Pass { all, values, keys };  // values: dV; keys: dK and dQ

// A tile has BM queries and BN keys. A warp has 16 * R keys and processes BS queries at a time.
// With Split 2, two warps share keys: each has half of the queries for the scores and half of the
// columns of dK and dV, and probabilities go through shared memory.
template <int BM_, int BS_, int BN_, int R_, int Split_, int QM_, int Stages_, int Blocks_>
struct BackwardSizes {
  static constexpr int BM = BM_, BS = BS_, BN = BN_, R = R_, Split = Split_, QM = QM_;
  static constexpr int Stages = Stages_, Blocks = Blocks_;
};

template <class Sizes, class T, int D_, bool General_, Pass P>
struct BackwardTile : Sizes {
  using Element = T;
  static constexpr int D = D_, BM = Sizes::BM, BN = Sizes::BN, Split = Sizes::Split;
  static constexpr bool General = General_;
  static constexpr bool before_softcap = true;  // gradients of scores before the softcap
  static constexpr bool keys = P != Pass::values, values = P != Pass::keys;
  static constexpr int warps = BN / (16 * Sizes::R) * Split, threads = 32 * warps;
  static constexpr int columns = D / Split;  // of dK and dV per warp
  // QM warps over the rows of dQ, the others over its columns, in 16-row, 8-column fragments.
  static constexpr int q_rows = BM / (16 * Sizes::QM), q_columns = D * Sizes::QM / warps / 8;
  static constexpr int q_bytes = SharedTile<D>::bytes(BM), k_bytes = SharedTile<D>::bytes(BN);
  static constexpr int p_bytes = SharedTile<BM>::bytes(BN);
  static constexpr int shared =
      2 * k_bytes + Sizes::Stages * (2 * q_bytes + BM * 8) + Split * p_bytes;
};

// Layout of a block's shared memory.
template <class Tile>
struct BackwardShared {
  SharedTile<Tile::D> k, v, q, dy;  // q, dy: of stage 0
  SharedTile<Tile::BM> ds, p;       // (keys, queries); p only with Split 2
  uint32_t rows;                    // (queries) of lse, delta

  __device__ explicit BackwardShared(uint32_t at) {
    k.at = at, v.at = k.at + Tile::k_bytes;
    q.at = v.at + Tile::k_bytes, dy.at = q.at + Tile::Stages * Tile::q_bytes;
    ds.at = dy.at + Tile::Stages * Tile::q_bytes;
    p.at = ds.at + (Tile::Split - 1) * Tile::p_bytes, rows = p.at + Tile::p_bytes;
  }
  __device__ SharedTile<Tile::D> q_of(int stage) const { return {q.at + stage * Tile::q_bytes}; }
  __device__ SharedTile<Tile::D> dy_of(int stage) const { return {dy.at + stage * Tile::q_bytes}; }
  __device__ uint32_t rows_of(int stage) const { return rows + stage * Tile::BM * 8; }
};

// c[r][n] = 16 R rows of x from `row` (keys) times the first BS rows of y (queries), over the head.
template <class Tile>
__device__ void backward_scores(float (&c)[Tile::R][Tile::BS / 8][4], SharedTile<Tile::D> x,
                                int row, SharedTile<Tile::D> y, int lane) {
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BS / 8; ++n) c[r][n][0] = c[r][n][1] = c[r][n][2] = c[r][n][3] = 0;
#pragma unroll
  for (int d = 0; d < Tile::D / 16; ++d) {
    uint32_t fx[Tile::R][4];
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) x.a(fx[r], row + r * 16, 2 * d, lane);
#pragma unroll
    for (int n = 0; n < Tile::BS / 16; ++n) {
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

// sum[r][d] += p (keys, 16 queries) times rows of x (16 queries from `row`), columns from `column`.
template <class Tile>
__device__ void backward_add(float (&sum)[Tile::R][Tile::columns / 8][4],
                             const uint32_t (&p)[Tile::R][4], SharedTile<Tile::D> x, int row,
                             int column, int lane) {
#pragma unroll
  for (int d = 0; d < Tile::columns / 16; ++d) {
    uint32_t fx[4];
    x.b_transposed(fx, row, column / 8 + 2 * d, lane);
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) {
      multiply(sum[r][2 * d], p[r], fx[0], fx[1], typename Tile::Element());
      multiply(sum[r][2 * d + 1], p[r], fx[2], fx[3], typename Tile::Element());
    }
  }
}

// The same over all queries, with p of this warp's keys in shared memory.
template <class Tile>
__device__ void backward_add_shared(float (&sum)[Tile::R][Tile::columns / 8][4],
                                    SharedTile<Tile::BM> p, int key, SharedTile<Tile::D> x,
                                    int column, int lane) {
#pragma unroll
  for (int n = 0; n < Tile::BM / 16; ++n) {
    uint32_t fp[Tile::R][4];
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) p.a(fp[r], key + r * 16, 2 * n, lane);
    backward_add<Tile>(sum, fp, x, n * 16, column, lane);
  }
}

// Inputs of the elementwise part of a step.
struct BackwardStep {
  int b, h, first_query, first_key;  // first_key: of this thread's first row
  HeadBias head;
};

// Scaled scores of one accumulator with softcap, and ALiBi or a bias, and the softcap's slope.
// `away`: its first query minus its first key.
__device__ inline void shape_scores(float (&s)[4], float (&slope)[4], const FlashBackward& a,
                                    const HeadBias& head, int away) {
  const Softcap softcap(a.softcap, a.scale);
#pragma unroll
  for (int e = 0; e < 4; ++e) slope[e] = 1;
  if (softcap.on()) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = softcap.apply(s[e], slope[e]);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] *= a.scale;
  }
  if (a.slopes)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] -= head.slope * float(away + (e & 1) - (e >> 1) * 8);
  if (a.bias)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] += head.at(away + (e & 1) - (e >> 1) * 8);
}

// lse and delta of two neighbouring queries.
__device__ inline void load_row_sums(float (&lse)[2], float (&delta)[2], uint32_t at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(lse[0]), "=f"(delta[0]), "=f"(lse[1]), "=f"(delta[1])
               : "r"(at)
               : "memory");
}

// From s and dp = dy . v: packed probabilities after dropout, and gradients of q . k * scale.
template <class Tile, bool Masked>
__device__ void backward_slopes(uint32_t (&p)[Tile::R][Tile::BS / 16][4],
                                uint32_t (&ds)[Tile::R][Tile::BS / 16][4],
                                float (&s)[Tile::R][Tile::BS / 8][4],
                                float (&dp)[Tile::R][Tile::BS / 8][4], uint32_t row_sums,
                                const FlashBackward& a, const BackwardStep& step, int lane) {
  using T = typename Tile::Element;
  const float unit = Tile::General ? log2_e : a.scale * log2_e;
  const Dropout dropout(a.scalars, a.salt, Tile::General ? a.dropout : 0);
  const int query = step.first_query + (lane & 3) * 2;
  const int32_t* documents = nullptr;
  int key_document[Tile::R][2];
  if constexpr (Tile::General)
    if (a.documents) {
      documents = a.documents + int64_t(step.b) * a.T;
#pragma unroll
      for (int r = 0; r < Tile::R; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          key_document[r][half] = documents[min(step.first_key + r * 16 + half * 8, a.T - 1)];
    }
#pragma unroll
  for (int n = 0; n < Tile::BS / 8; ++n) {
    float lse[2], delta[2];
    load_row_sums(lse, delta, row_sums + (n * 8 + (lane & 3) * 2) * 8);
    int document[2] = {0, 0};
    if (Tile::General && documents)
#pragma unroll
      for (int c = 0; c < 2; ++c) document[c] = documents[min(query + n * 8 + c, a.T - 1)];
#pragma unroll
    for (int r = 0; r < Tile::R; ++r) {
      float keep[4], slope[4];
      const bool drop = Tile::General && a.dropout > 0;
      if constexpr (Tile::General) {
        shape_scores(s[r][n], slope, a, step.head, query - step.first_key + n * 8 - r * 16);
        if (drop)
          dropout.transposed(keep,
                             (uint64_t(step.b) * a.H + step.h) * a.T + step.first_query + n * 8,
                             a.T, step.first_key - lane / 4 + r * 16, lane);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float prob = exp2_fast(fmaf(s[r][n][e], unit, -lse[e & 1])), dprob = dp[r][n][e];
        if constexpr (Masked) {
          const int away = query + n * 8 + (e & 1) - (step.first_key + r * 16 + (e >> 1) * 8);
          bool sees = away >= 0 && away < a.window;
          if constexpr (Tile::General)
            sees = sees && (!documents || document[e & 1] == key_document[r][e >> 1]);
          if (!sees) prob = 0;
        }
        s[r][n][e] = drop ? prob * keep[e] : prob;
        if (drop) dprob *= keep[e];
        dp[r][n][e] = prob * (dprob - delta[e & 1]);
        if constexpr (Tile::General && Tile::before_softcap) dp[r][n][e] *= slope[e];
      }
      uint32_t* to = p[r][n / 2] + (n & 1) * 2;
      to[0] = pack(s[r][n][0], s[r][n][1], T()), to[1] = pack(s[r][n][2], s[r][n][3], T());
      to = ds[r][n / 2] + (n & 1) * 2;
      to[0] = pack(dp[r][n][0], dp[r][n][1], T()), to[1] = pack(dp[r][n][2], dp[r][n][3], T());
    }
  }
}

// Stores packed accumulators to rows from `row` (keys) on, chunks from `c` (queries) on.
template <class Tile>
__device__ void share(SharedTile<Tile::BM> to, const uint32_t (&p)[Tile::R][Tile::BS / 16][4],
                      int row, int c, int lane) {
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BS / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                         to.chunk(row + r * 16 + half * 8 + lane / 4, c + n) + (lane & 3) * 4),
                     "r"(p[r][n / 2][(n & 1) * 2 + half])
                     : "memory");
}

}  // namespace hearth::cuda
