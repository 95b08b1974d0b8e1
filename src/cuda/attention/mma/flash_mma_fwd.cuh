// Flash attention forward with mma.sync: a block holds a tile of queries and iterates over tiles of
// keys from the diagonal down. 4 * B * H * D * (visible pairs) FLOP. Heads of q and k, or of v, may
// be narrower than D.
#pragma once

#include <climits>

#include "cuda/attention/mma/flash_mma.h"
#include "cuda/attention/mma/flash_mma_score.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda {

// Stages: buffers for keys and values. Held: the queries stay in registers. Biased: the call may
// have a bias. Halves: 1 if only the first 8 rows of each 16-row fragment hold queries.
template <class T, int D_, int BM_, int BN_, int Stages_, bool Held_, bool General_, int Warps_ = 4,
          bool Biased_ = General_, int Halves_ = 2>
struct ForwardTile {
  using Element = T;
  static constexpr int D = D_, BM = BM_, BN = BN_, Stages = Stages_;
  static constexpr bool Held = Held_, General = General_, Biased = Biased_;
  static constexpr int warps = Warps_, threads = 32 * warps, halves = Halves_;
  static constexpr int R = BM / (16 * warps);  // 16-row fragments per warp
  static constexpr int k_bytes = SharedTile<D>::bytes(BN);
  static constexpr int shared = SharedTile<D>::bytes(BM) + 2 * Stages * k_bytes;
};

// The rows of this thread: for each 16-row fragment, row lane / 4 and the row 8 further.
template <class Tile>
struct ForwardRows {
  float top[Tile::R][2], sum[Tile::R][2];
  int first;                 // index of the first row
  int position[Tile::R][2];  // position among the keys; only in a general kernel
  int document[Tile::R][2];

  __device__ int at(int r, int half) const {
    return Tile::General ? position[r][half] : first + r * 16 + half * 8;
  }
};

// Which keys a tile of queries sees.
struct ForwardSpan {
  int least, most;  // smallest and largest position of its queries
  int begin, end;   // tiles of keys
};

template <class Tile>
__device__ ForwardSpan forward_span(const FlashForward& a, int b, int first_query) {
  constexpr int BM = Tile::BM, BN = Tile::BN;
  ForwardSpan s;
  s.least = first_query, s.most = min(first_query + BM, a.T) - 1;
  s.end = s.most / BN + 1;
  s.begin = a.window == INT_MAX ? 0 : max(0, s.least - a.window + 1) / BN;
  if constexpr (Tile::General) {
    if (a.first) {
      int from = INT_MAX;
      for (int i = first_query / flash_block; i * flash_block <= s.most; ++i)
        from = min(from, a.first[int64_t(b) * flash_blocks(a.T) + i]);
      s.begin = max(s.begin, from * flash_block / BN);
    }
  }
  return s;
}

// The queries of a warp as MMA operands, if registers hold them.
template <class Tile>
struct HeldQueries {
  uint32_t q[Tile::Held ? Tile::D / 16 : 1][Tile::R][4];

  __device__ void load(SharedTile<Tile::D> from, int warp, int lane) {
    if constexpr (Tile::Held)
#pragma unroll
      for (int d = 0; d < Tile::D / 16; ++d)
#pragma unroll
        for (int r = 0; r < Tile::R; ++r) from.a(q[d][r], (warp * Tile::R + r) * 16, 2 * d, lane);
  }
};

// Scores of a warp's rows with one tile of keys.
template <class Tile>
__device__ void forward_scores(float (&s)[Tile::R][Tile::BN / 8][4], HeldQueries<Tile>& held,
                               SharedTile<Tile::D> q, SharedTile<Tile::D> k, int warp, int lane) {
  constexpr int R = Tile::R;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BN / 8; ++n) s[r][n][0] = s[r][n][1] = s[r][n][2] = s[r][n][3] = 0;
#pragma unroll
  for (int d = 0; d < Tile::D / 16; ++d) {
    auto& fq = held.q[Tile::Held ? d : 0];
    if constexpr (!Tile::Held)
#pragma unroll
      for (int r = 0; r < R; ++r) q.a(fq[r], (warp * R + r) * 16, 2 * d, lane);
#pragma unroll
    for (int n = 0; n < Tile::BN / 16; ++n) {
      uint32_t fk[4];
      k.b(fk, n * 16, 2 * d, lane);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply(s[r][2 * n], fq[r], fk[0], fk[1], typename Tile::Element());
        multiply(s[r][2 * n + 1], fq[r], fk[2], fk[3], typename Tile::Element());
      }
    }
  }
}

// Whether scores leave forward_shape() already scaled.
__device__ inline bool shapes_scores(const FlashForward& a) {
  return a.slopes || a.bias || a.softcap > 0;
}

template <class Tile>
__device__ void forward_bias(float (&s)[Tile::R][Tile::BN / 8][4], const ForwardRows<Tile>& rows,
                             const HeadBias& head, float scale, int first_key, int lane) {
  const float last = head.at(head.last);
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int half = 0; half < Tile::halves; ++half) {
      const int away = rows.at(r, half) - first_key - (lane & 3) * 2;
      const bool far = away - (Tile::BN - 7) >= head.last;  // even the nearest of these keys
#pragma unroll
      for (int n = 0; n < Tile::BN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[r][n][half * 2 + c];
          x = fmaf(x, scale, far ? last : head.at(away - (n * 8 + c)));
        }
    }
}

// Softcap, and ALiBi or a bias.
template <class Tile>
__device__ void forward_shape(float (&s)[Tile::R][Tile::BN / 8][4], const ForwardRows<Tile>& rows,
                              const FlashForward& a, int first_key, const HeadBias& head,
                              int lane) {
  const Softcap softcap(a.softcap, a.scale);
  if (softcap.on()) {
#pragma unroll
    for (int r = 0; r < Tile::R; ++r)
#pragma unroll
      for (int n = 0; n < Tile::BN / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2 * Tile::halves; ++e) s[r][n][e] = softcap.apply(s[r][n][e]);
  }
  const float scale = softcap.on() ? 1 : a.scale;
  if constexpr (Tile::Biased)
    if (a.bias) return forward_bias<Tile>(s, rows, head, scale, first_key, lane);
  if (!a.slopes) return;
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int half = 0; half < Tile::halves; ++half) {
      const float away = float(rows.at(r, half) - first_key - (lane & 3) * 2);
#pragma unroll
      for (int n = 0; n < Tile::BN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[r][n][half * 2 + c];
          x = fmaf(x, scale, -head.slope * (away - float(n * 8 + c)));
        }
    }
}

template <class Tile>
__device__ void forward_mask(float (&s)[Tile::R][Tile::BN / 8][4], const ForwardRows<Tile>& rows,
                             const FlashForward& a, int first_key, const int32_t* documents,
                             int lane) {
#pragma unroll
  for (int n = 0; n < Tile::BN / 8; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = first_key + n * 8 + (lane & 3) * 2 + c;
      int document = 0;
      if constexpr (Tile::General)
        if (documents) document = documents[min(key, a.T - 1)];
#pragma unroll
      for (int r = 0; r < Tile::R; ++r)
#pragma unroll
        for (int half = 0; half < Tile::halves; ++half) {
          const int away = rows.at(r, half) - key;
          bool sees = away >= 0 && away < a.window;
          if constexpr (Tile::General)
            sees = sees && (!documents || document == rows.document[r][half]);
          if (!sees) s[r][n][half * 2 + c] = -INFINITY;
        }
    }
}

// Online softmax: scores become probabilities relative to the running maximum; y is rescaled where
// the maximum grew.
template <class Tile>
__device__ void forward_softmax(float (&s)[Tile::R][Tile::BN / 8][4],
                                float (&y)[Tile::R][Tile::D / 8][4], ForwardRows<Tile>& rows,
                                float unit) {
  float fade[Tile::R][2];
  bool grew = false;
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int half = 0; half < Tile::halves; ++half) {
      const float before = rows.top[r][half];
      float top = before;
#pragma unroll
      for (int n = 0; n < Tile::BN / 8; ++n)
        top = fmaxf(top, fmaxf(s[r][n][half * 2], s[r][n][half * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * unit;
      // Exactly 1 where the maximum did not grow, so that tiles without a visible key change no bit
      // of a row, wherever they come.
      fade[r][half] = top == before ? 1.0f : exp2_fast(fmaf(before, unit, -base));
      grew = grew || top > before;
      float total = 0;
#pragma unroll
      for (int n = 0; n < Tile::BN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float p = exp2_fast(fmaf(s[r][n][half * 2 + c], unit, -base));
          s[r][n][half * 2 + c] = p;
          total += p;
        }
      rows.top[r][half] = top;
      rows.sum[r][half] = fmaf(rows.sum[r][half], fade[r][half], total);
    }
  if (!__any_sync(~0u, grew)) return;
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int d = 0; d < Tile::D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 2 * Tile::halves; ++e) y[r][d][e] *= fade[r][e >> 1];
}

template <class Tile>
__device__ void forward_drop(float (&s)[Tile::R][Tile::BN / 8][4], const Dropout& dropout,
                             uint64_t line, int T, int first_key, int lane) {
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int n = 0; n < Tile::BN / 8; ++n) {
      float keep[4];
      dropout.accumulator(keep, line + r * 16 + lane / 4, T, first_key + n * 8, lane);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[r][n][e] *= keep[e];
    }
}

// y += p v
template <class Tile>
__device__ void forward_values(float (&y)[Tile::R][Tile::D / 8][4],
                               const float (&p)[Tile::R][Tile::BN / 8][4], SharedTile<Tile::D> v,
                               int lane) {
  constexpr int R = Tile::R;
#pragma unroll
  for (int n = 0; n < Tile::BN / 16; ++n) {
    uint32_t fp[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      accumulators_to_a<typename Tile::Element>(fp[r], p[r][2 * n], p[r][2 * n + 1]);
      if constexpr (Tile::halves == 1) fp[r][1] = fp[r][3] = 0;
    }
#pragma unroll
    for (int d = 0; d < Tile::D / 16; ++d) {
      uint32_t fv[4];
      v.b_transposed(fv, n * 16, 2 * d, lane);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply(y[r][2 * d], fp[r], fv[0], fv[1], typename Tile::Element());
        multiply(y[r][2 * d + 1], fp[r], fv[2], fv[3], typename Tile::Element());
      }
    }
  }
}

// Divides by the sums, writes y through the warp's own rows of shared memory, and writes lse.
template <class Tile>
__device__ void forward_store(const FlashForward& a, float (&y)[Tile::R][Tile::D / 8][4],
                              ForwardRows<Tile>& rows, SharedTile<Tile::D> q, int b, int h,
                              int first_row, int warp, int lane, float unit) {
  using T = typename Tile::Element;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < Tile::R; ++r)
#pragma unroll
    for (int half = 0; half < Tile::halves; ++half) {
      float total = rows.sum[r][half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float inverse = total > 0 ? 1 / total : 0.0f;
      const int row = (warp * Tile::R + r) * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int d = 0; d < Tile::D / 8; ++d) {
        const uint32_t v = pack(y[r][d][half * 2] * inverse, y[r][d][half * 2 + 1] * inverse, T());
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(q.chunk(row, d) + (lane & 3) * 4), "r"(v)
                     : "memory");
      }
      const int i = first_row - warp * Tile::R * 16 + row;
      if (a.lse && (lane & 3) == 0 && i < a.T)
        a.lse[(int64_t(b) * a.H + h) * a.T + i] = rows.top[r][half] * (unit * ln_2) + __logf(total);
    }
  __syncwarp();
  constexpr int chunks = Tile::D / 8;
  T* out = static_cast<T*>(a.y) + (int64_t(b) * a.T * a.H + h) * a.V;
#pragma unroll
  for (int at = lane; at < Tile::R * 16 * chunks; at += 32) {
    const int row = at / chunks, c = at % chunks, i = first_row + row;
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(q.chunk(warp * Tile::R * 16 + row, c))
                 : "memory");
    if (i < a.T && c * 8 < a.V) *reinterpret_cast<uint4*>(out + int64_t(i) * a.H * a.V + c * 8) = v;
  }
}

template <class Tile, int Blocks>
__global__ __launch_bounds__(Tile::threads, Blocks) void forward_kernel(FlashForward a) {
  using T = typename Tile::Element;
  constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, R = Tile::R;
  extern __shared__ __align__(128) unsigned char shared[];
  const SharedTile<D> q{shared_address(shared)}, keys{q.at + SharedTile<D>::bytes(BM)},
      values{keys.at + Tile::Stages * Tile::k_bytes};
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  // Heads of one group are adjacent; within a head the tiles with the most keys go first.
  const int tiles = (a.T + BM - 1) / BM;
  const int tile = tiles - 1 - int(blockIdx.x) % tiles, head = int(blockIdx.x) / tiles;
  const int b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
  const T* pq = static_cast<const T*>(a.q) + b * a.q_batch + h * a.D;
  const T* pk = static_cast<const T*>(a.k) + b * a.kv_batch + g * a.D;
  const T* pv = static_cast<const T*>(a.v) + b * a.kv_batch + g * a.V;
  const int first_row = tile * BM + warp * R * 16;

  q.template load<BM, Tile::threads>(pq, a.q_token, tile * BM, a.T, a.D);
  const ForwardSpan span = forward_span<Tile>(a, b, tile * BM);
  if (span.end > span.begin) {
    keys.template load<BN, Tile::threads>(pk, a.kv_token, (span.end - 1) * BN, a.S, a.D);
    if (Tile::Stages == 2)
      values.template load<BN, Tile::threads>(pv, a.kv_token, (span.end - 1) * BN, a.S, a.V);
  }
  commit_copies();

  ForwardRows<Tile> rows;
  rows.first = first_row + lane / 4;
  const int32_t* documents = nullptr;
  float unit = a.scale * log2_e;
  HeadBias head_bias;
  if constexpr (Tile::General) {
    if (shapes_scores(a)) unit = log2_e;
    head_bias = HeadBias(a.slopes, a.bias, a.distances, h);
    if (a.documents) documents = a.documents + int64_t(b) * a.T;
  }
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_row + r * 16 + half * 8 + lane / 4;
      rows.top[r][half] = -INFINITY, rows.sum[r][half] = 0;
      if constexpr (Tile::General) {
        rows.position[r][half] = i;
        rows.document[r][half] = documents ? documents[min(i, a.T - 1)] : 0;
      }
    }
  float y[R][D / 8][4] = {};

  HeldQueries<Tile> held;
  const int last = span.end - 1;
  for (int n = last, stage = 0; n >= span.begin; --n, stage ^= Tile::Stages - 1) {
    const SharedTile<D> k{keys.at + stage * Tile::k_bytes}, v{values.at + stage * Tile::k_bytes};
    const SharedTile<D> next_k{keys.at + (stage ^ 1) * Tile::k_bytes};
    const SharedTile<D> next_v{values.at + (stage ^ 1) * Tile::k_bytes};
    wait_for_copies<0>();
    __syncthreads();
    if constexpr (Tile::Stages == 1) {
      v.template load<BN, Tile::threads>(pv, a.kv_token, n * BN, a.S, a.V);
    } else if (n > span.begin) {
      next_k.template load<BN, Tile::threads>(pk, a.kv_token, (n - 1) * BN, a.S, a.D);
      next_v.template load<BN, Tile::threads>(pv, a.kv_token, (n - 1) * BN, a.S, a.V);
    }
    commit_copies();
    if (Tile::Held && n == last) held.load(q, warp, lane);
    // All of the warp's queries come before these keys: it only helps with the loads.
    const bool blind = !Tile::General && n * BN >= first_row + R * 16;
    float s[R][BN / 8][4];
    if (!blind) forward_scores<Tile>(s, held, q, k, warp, lane);
    if constexpr (Tile::Stages == 1) {
      // One buffer each: v arrives during q . k, the next k during the rest.
      wait_for_copies<0>();
      __syncthreads();
      if (n > span.begin)
        k.template load<BN, Tile::threads>(pk, a.kv_token, (n - 1) * BN, a.S, a.D);
      commit_copies();
    }
    if (blind) continue;
    if constexpr (Tile::General) forward_shape<Tile>(s, rows, a, n * BN, head_bias, lane);
    // Keys need masking only at the diagonal, at the far end of the window, or with documents.
    if (documents || n * BN + BN - 1 > span.least || span.most - n * BN >= a.window)
      forward_mask<Tile>(s, rows, a, n * BN, documents, lane);
    forward_softmax<Tile>(s, y, rows, unit);
    if constexpr (Tile::General)
      if (a.dropout > 0)
        forward_drop<Tile>(s, Dropout(a.scalars, a.salt, a.dropout),
                           (uint64_t(b) * a.H + h) * a.T + first_row, a.T, n * BN, lane);
    forward_values<Tile>(y, s, v, lane);
  }
  forward_store<Tile>(a, y, rows, q, b, h, first_row, warp, lane, unit);
}

template <class Tile, int Blocks>
void launch_forward(const FlashForward& a, CudaStream& stream) {
  const auto kernel = forward_kernel<Tile, Blocks>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma");
  const int tiles = (a.T + Tile::BM - 1) / Tile::BM;
  kernel<<<unsigned(tiles * a.B * a.H), Tile::threads, Tile::shared, stream.handle>>>(a);
  check_launch("flash_mma");
}

// Sizes of the plain kernel: queries, stages, whether queries are held, blocks per SM.
template <int D, int BM, int Stages, bool Held, int Blocks, class T>
void forward_of(const FlashForward& a, CudaStream& stream) {
  if (a.general)
    launch_forward<ForwardTile<T, D, BM, 64, 1, false, true>, 1>(a, stream);
  else
    launch_forward<ForwardTile<T, D, BM, 64, Stages, Held, false>, Blocks>(a, stream);
}

template <int D, int BM, int Stages, bool Held, int Blocks>
void forward_by_dtype(const FlashForward& a, CudaStream& stream) {
  if (a.dtype == DType::bf16)
    forward_of<D, BM, Stages, Held, Blocks, __nv_bfloat16>(a, stream);
  else if (a.dtype == DType::f16)
    forward_of<D, BM, Stages, Held, Blocks, __half>(a, stream);
  else
    refuse_dtype("flash_mma", a.dtype);
}

}  // namespace hearth::cuda
