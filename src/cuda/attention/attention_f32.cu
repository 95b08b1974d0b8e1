// Attention in fp32: tiles of 32 queries and keys in shared memory, 256 threads as 16 x 16. Forward
// 4, backward 14 * B * H * D * (visible pairs) FLOP, where D is the wider of the heads of k and v;
// the other is padded with zeros. dK and dV are computed in one kernel and dQ in another, so that
// no sum depends on the order in which blocks run.
#include <algorithm>
#include <climits>

#include "cuda/attention/distance_sums.cuh"
#include "cuda/attention/mma/flash_mma.h"
#include "cuda/attention/mma/flash_mma_score.cuh"

namespace hearth::cuda {
namespace {

constexpr int threads = 256, side = 16;

// Rows of up to D floats in shared memory; the padding spreads a column over the banks.
template <int D>
struct Rows {
  static constexpr int stride = D + 4;
  float* at;

  // Rows [first, first + N) of a matrix with `limit` rows of `width` floats, zeros beyond.
  template <int N>
  __device__ void load(const float* from, int64_t token, int first, int limit, int width) const {
    for (int i = int(threadIdx.x); i < N * D; i += threads) {
      const int row = i / D, c = i % D;
      at[row * stride + c] =
          first + row < limit && c < width ? from[(first + row) * token + c] : 0.0f;
    }
  }
  __device__ float4 four(int row, int c) const {
    return *reinterpret_cast<const float4*>(at + row * stride + c);
  }
};

__device__ inline float dot(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

__device__ inline void add_scaled(float4& sum, float p, float4 x) {
  sum.x = fmaf(p, x.x, sum.x), sum.y = fmaf(p, x.y, sum.y);
  sum.z = fmaf(p, x.z, sum.z), sum.w = fmaf(p, x.w, sum.w);
}

// s[a][c] = row y + 16 a of q times row x + 16 c of k.
template <int D, int M>
__device__ void products(float (&s)[M][M], Rows<D> q, Rows<D> k, int y, int x) {
  for (int a = 0; a < M; ++a)
    for (int c = 0; c < M; ++c) s[a][c] = 0;
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    float4 fq[M], fk[M];
#pragma unroll
    for (int a = 0; a < M; ++a) fq[a] = q.four(y + side * a, d), fk[a] = k.four(x + side * a, d);
#pragma unroll
    for (int a = 0; a < M; ++a)
#pragma unroll
      for (int c = 0; c < M; ++c) s[a][c] = dot(fq[a], fk[c], s[a][c]);
  }
}

// sum[a] += sum over j of p(y + 16 a, j) * row j of v, columns 4 x + 64 c.
template <int D, int M, class P>
__device__ void add_rows(float4 (&sum)[M][D / 64], P p, Rows<D> v, int y, int x) {
#pragma unroll 4
  for (int j = 0; j < M * side; ++j)
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      const float4 fv = v.four(j, 4 * x + 64 * c);
#pragma unroll
      for (int a = 0; a < M; ++a) add_scaled(sum[a][c], p(y + side * a, j), fv);
    }
}

// A score with softcap, and ALiBi or a bias, applied, and the slope of the softcap there.
struct Scored {
  float x, slope;
};

__device__ inline Scored score_of(float s, float scale, float softcap, const HeadBias& head,
                                  int away) {
  Scored r{s * scale, 1};
  if (softcap > 0) {
    const float t = tanhf(r.x / softcap);
    r = {softcap * t, 1 - t * t};
  }
  r.x -= head.slope * float(away);
  if (head.bias) r.x += head.at(away);
  return r;
}

template <int D>
__global__ __launch_bounds__(threads) void forward_f32(FlashForward a) {
  constexpr int M = 2, BT = M * side;
  extern __shared__ __align__(16) float memory[];
  const Rows<D> q{memory}, kv{q.at + BT * Rows<D>::stride};
  float* p = kv.at + BT * Rows<D>::stride;  // (BT, BT + 1)
  const int x = int(threadIdx.x) % side, y = int(threadIdx.x) / side;
  const int tiles = (a.T + BT - 1) / BT;
  const int tile = tiles - 1 - int(blockIdx.x) % tiles, head = int(blockIdx.x) / tiles;
  const int b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
  const float* pk = static_cast<const float*>(a.k) + b * a.kv_batch + g * a.D;
  const float* pv = static_cast<const float*>(a.v) + b * a.kv_batch + g * a.V;
  const HeadBias head_bias(a.slopes, a.bias, a.distances, h);
  const int32_t* documents = a.documents ? a.documents + int64_t(b) * a.T : nullptr;
  const Dropout dropout(a.scalars, a.salt, a.dropout);
  q.template load<BT>(static_cast<const float*>(a.q) + b * a.q_batch + h * a.D, a.q_token,
                      tile * BT, a.T, a.D);

  const int least = tile * BT, most = min(tile * BT + BT, a.T) - 1;
  int position[M];
  float top[M], total[M];
  float4 sum[M][D / 64] = {};
  for (int r = 0; r < M; ++r) {
    const int i = tile * BT + y + side * r;
    position[r] = i >= a.T ? -1 : i;
    top[r] = -INFINITY, total[r] = 0;
  }
  const int begin = a.window < most ? max(0, least - a.window + 1) / BT : 0;
  for (int n = begin; n <= most / BT; ++n) {
    __syncthreads();
    kv.template load<BT>(pk, a.kv_token, n * BT, a.S, a.D);
    __syncthreads();
    float s[M][M];
    products<D, M>(s, q, kv, y, x);
#pragma unroll
    for (int r = 0; r < M; ++r) {
      const float before = top[r];
#pragma unroll
      for (int c = 0; c < M; ++c) {
        const int j = n * BT + x + side * c, away = position[r] - j;
        bool sees = away >= 0 && away < a.window;
        if (documents && sees) sees = documents[position[r]] == documents[j];
        s[r][c] = sees ? score_of(s[r][c], a.scale, a.softcap, head_bias, away).x : -INFINITY;
        top[r] = fmaxf(top[r], s[r][c]);
      }
      for (int step = 1; step < side; step *= 2)
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], step));
      const float base = top[r] == -INFINITY ? 0 : top[r], fade = expf(before - base);
      total[r] *= fade;
#pragma unroll
      for (int c = 0; c < M; ++c) {
        const int i = tile * BT + y + side * r, j = n * BT + x + side * c;
        float prob = expf(s[r][c] - base);
        total[r] += prob;
        if (a.dropout > 0)
          prob *= dropout.one(((uint64_t(b) * a.H + h) * a.T + uint64_t(i)) * a.T + uint64_t(j));
        p[(y + side * r) * (BT + 1) + x + side * c] = prob;
      }
#pragma unroll
      for (int c = 0; c < D / 64; ++c)
        sum[r][c].x *= fade, sum[r][c].y *= fade, sum[r][c].z *= fade, sum[r][c].w *= fade;
    }
    __syncthreads();
    kv.template load<BT>(pv, a.kv_token, n * BT, a.S, a.V);
    __syncthreads();
    add_rows<D, M>(
        sum, [&](int i, int j) { return p[i * (BT + 1) + j]; }, kv, y, x);
  }
  for (int r = 0; r < M; ++r) {
    for (int step = 1; step < side; step *= 2) total[r] += __shfl_xor_sync(~0u, total[r], step);
    const int i = tile * BT + y + side * r;
    if (i >= a.T) continue;
    const float inverse = total[r] > 0 ? 1 / total[r] : 0;
    float* out = static_cast<float*>(a.y) + ((int64_t(b) * a.T + i) * a.H + h) * a.V;
    for (int c = 0; c < D / 64; ++c) {
      const float4 v = sum[r][c];
      const float values[4] = {v.x, v.y, v.z, v.w};
      for (int e = 0; e < 4; ++e)
        if (4 * x + 64 * c + e < a.V) out[4 * x + 64 * c + e] = values[e] * inverse;
    }
    if (a.lse && x == 0) a.lse[(int64_t(b) * a.H + h) * a.T + i] = top[r] + logf(total[r]);
  }
}

// delta (B, H, T) = dy . y. One warp per row.
__global__ void row_deltas(AttnCall c) {
  const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;  // (b, t, h)
  if (at >= int64_t(c.B) * c.T * c.H) return;
  const float *dy = static_cast<const float*>(c.dy) + at * c.V,
              *y = static_cast<const float*>(c.y) + at * c.V;
  float sum = 0;
  for (int d = int(threadIdx.x) % 32; d < c.V; d += 32) sum = fmaf(dy[d], y[d], sum);
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0)
    c.delta[(at / c.H / c.T * c.H + at % c.H) * c.T + at / c.H % c.T] = sum;
}

// One tile of queries with one tile of keys, both in shared memory: probabilities after dropout
// (or, for the bias, the gradients of the scores after the softcap) and gradients of q . k * scale,
// as (queries, keys).
template <int D, int M>
struct Pair {
  static constexpr int BT = M * side, line = BT + 1;
  static constexpr int bytes = (4 * BT * Rows<D>::stride + 2 * BT * line) * 4;
  Rows<D> q, dy, k, v;
  float *p, *ds;

  __device__ explicit Pair(float* at) {
    constexpr int size = BT * Rows<D>::stride;
    q.at = at, dy.at = at + size, k.at = at + 2 * size, v.at = at + 3 * size;
    p = at + 4 * size, ds = p + BT * line;
  }
  __device__ void slopes(const AttnCall& c, int b, int h, int first_query, int first_key,
                         bool for_bias = false) const {
    const int x = int(threadIdx.x) % side, y = int(threadIdx.x) / side;
    float s[M][M], dp[M][M];
    products<D, M>(s, q, k, y, x);
    products<D, M>(dp, dy, v, y, x);
    const Dropout dropout(c.scalars, c.salt, c.dropout);
    const int32_t* documents = c.documents ? c.documents + int64_t(b) * c.T : nullptr;
    const HeadBias head(c.slopes, c.bias, c.distances, h);
    for (int r = 0; r < M; ++r)
      for (int e = 0; e < M; ++e) {
        const int i = first_query + y + side * r, j = first_key + x + side * e, away = i - j;
        bool sees = away >= 0 && i < c.T && (c.window == 0 || away < c.window);
        if (documents && sees) sees = documents[i] == documents[j];
        const int at = (y + side * r) * line + x + side * e;
        p[at] = ds[at] = 0;
        if (!sees) continue;
        const int64_t row = (int64_t(b) * c.H + h) * c.T + i;
        const Scored scored = score_of(s[r][e], c.scale, c.softcap, head, away);
        const float prob = expf(scored.x - c.lse[row]);
        const float keep =
            c.dropout > 0 ? dropout.one(uint64_t(row) * uint64_t(c.T) + uint64_t(j)) : 1;
        const float dscore = prob * (dp[r][e] * keep - c.delta[row]);
        p[at] = for_bias ? dscore : prob * keep;
        ds[at] = dscore * scored.slope;
      }
  }
};

template <int D, int M>
__device__ void store_sums(float* to, int64_t token, int first, int limit, int width,
                           const float4 (&sum)[M][D / 64], float scale) {
  const int x = int(threadIdx.x) % side, y = int(threadIdx.x) / side;
  for (int r = 0; r < M; ++r)
    for (int c = 0; c < D / 64; ++c) {
      const int i = first + y + side * r;
      const float values[4] = {sum[r][c].x, sum[r][c].y, sum[r][c].z, sum[r][c].w};
      for (int e = 0; e < 4; ++e)
        if (i < limit && 4 * x + 64 * c + e < width)
          to[i * token + 4 * x + 64 * c + e] = values[e] * scale;
    }
}

// Pointers for one head.
struct Heads {
  int64_t token, y_token;
  const float *q, *dy, *k, *v;
  float* out;  // dqkv of this sequence

  __device__ Heads(const AttnCall& c, int b, int h) {
    token = c.token, y_token = int64_t(c.H) * c.V;
    const float* packed = static_cast<const float*>(c.qkv) + b * c.T * token;
    const int g = h / (c.H / c.G);
    q = packed + h * c.D, k = packed + (c.H + g) * c.D;
    v = packed + (c.H + c.G) * c.D + g * c.V;
    dy = static_cast<const float*>(c.dy) + b * c.T * y_token + h * c.V;
    out = static_cast<float*>(c.dqkv) + b * c.T * token;
  }
};

template <int D, int M>
__global__ __launch_bounds__(threads) void keys_bwd_f32(AttnCall c) {
  constexpr int BT = M * side;
  extern __shared__ __align__(16) float memory[];
  const Pair<D, M> m(memory);
  const int x = int(threadIdx.x) % side, y = int(threadIdx.x) / side;
  const int tiles = (c.T + BT - 1) / BT, n = int(blockIdx.x) % tiles;
  const int g = int(blockIdx.x) / tiles % c.G, b = int(blockIdx.x) / tiles / c.G;
  const int group = c.H / c.G;
  const Heads own(c, b, g * group);
  m.k.template load<BT>(own.k, own.token, n * BT, c.T, c.D);
  m.v.template load<BT>(own.v, own.token, n * BT, c.T, c.V);
  const int end = c.window ? min(tiles, (n * BT + BT - 2 + c.window) / BT + 1) : tiles;
  float4 dk[M][D / 64] = {}, dv[M][D / 64] = {};
  for (int h = g * group; h < (g + 1) * group; ++h)
    for (int i = n; i < end; ++i) {
      const Heads head(c, b, h);
      __syncthreads();
      m.q.template load<BT>(head.q, head.token, i * BT, c.T, c.D);
      m.dy.template load<BT>(head.dy, head.y_token, i * BT, c.T, c.V);
      __syncthreads();
      m.slopes(c, b, h, i * BT, n * BT);
      __syncthreads();
      add_rows<D, M>(
          dv, [&](int j, int q) { return m.p[q * m.line + j]; }, m.dy, y, x);
      add_rows<D, M>(
          dk, [&](int j, int q) { return m.ds[q * m.line + j]; }, m.q, y, x);
    }
  store_sums<D, M>(own.out + (c.H + g) * c.D, own.token, n * BT, c.T, c.D, dk, c.scale);
  store_sums<D, M>(own.out + (c.H + c.G) * c.D + g * c.V, own.token, n * BT, c.T, c.V, dv, 1);
}

// dQ, and the part of a tile of queries in the gradient of the bias, if the call has bias_parts.
template <int D, int M>
__global__ __launch_bounds__(threads) void queries_bwd_f32(AttnCall c) {
  constexpr int BT = M * side;
  extern __shared__ __align__(16) float memory[];
  const Pair<D, M> m(memory);
  const int x = int(threadIdx.x) % side, y = int(threadIdx.x) / side;
  const int tiles = (c.T + BT - 1) / BT, tile = tiles - 1 - int(blockIdx.x) % tiles;
  const int h = int(blockIdx.x) / tiles % c.H, b = int(blockIdx.x) / tiles / c.H;
  const Heads head(c, b, h);
  m.q.template load<BT>(head.q, head.token, tile * BT, c.T, c.D);
  m.dy.template load<BT>(head.dy, head.y_token, tile * BT, c.T, c.V);
  DistanceSums sums(memory + Pair<D, M>::bytes / 4, c.bias_parts ? c.distances : 0);
  float4 dq[M][D / 64] = {};
  const int begin = c.window ? max(0, tile * BT - c.window + 1) / BT : 0;
  for (int n = begin; n <= tile; ++n) {
    __syncthreads();
    m.k.template load<BT>(head.k, head.token, n * BT, c.T, c.D);
    m.v.template load<BT>(head.v, head.token, n * BT, c.T, c.V);
    __syncthreads();
    m.slopes(c, b, h, tile * BT, n * BT, c.bias_parts);
    __syncthreads();
    if (c.bias_parts)
      sums.add<BT, BT>((tile - n) * BT, [&](int i, int j) { return m.p[i * m.line + j]; });
    add_rows<D, M>(
        dq, [&](int i, int j) { return m.ds[i * m.line + j]; }, m.k, y, x);
  }
  store_sums<D, M>(head.out + h * c.D, head.token, tile * BT, c.T, c.D, dq, c.scale);
  if (!c.bias_parts) return;
  __syncthreads();
  static_assert(BT * Pair<D, M>::line >= threads);
  sums.store(c.bias_parts + ((int64_t(b) * c.H + h) * tiles + tile) * c.distances, m.p);
}

template <class Kernel, class Args>
void launch(Kernel kernel, int64_t blocks, int bytes, const Args& args, const char* name,
            CudaStream& stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  kernel<<<unsigned(blocks), threads, size_t(bytes), stream.handle>>>(args);
  check_launch(name);
}

template <int D>
void forward(const FlashForward& a, CudaStream& stream) {
  constexpr int BT = 2 * side;
  launch(forward_f32<D>, int64_t((a.T + BT - 1) / BT) * a.B * a.H,
         (2 * BT * Rows<D>::stride + BT * (BT + 1)) * 4, a, "attention_f32", stream);
}

// M: rows per thread. With heads of 256, four tiles of 32 rows would not fit in shared memory.
template <int D, int M>
void backward(AttnCall& c, CudaStream& stream) {
  const int64_t tiles = (c.T + M * side - 1) / (M * side);
  const int64_t part_bytes = bias_part_bytes(c, int(tiles));
  if (c.dbias) c.bias_parts = static_cast<float*>(stream.scratch(part_bytes));
  launch(keys_bwd_f32<D, M>, tiles * c.B * c.G, Pair<D, M>::bytes, c, "attention_f32_bwd", stream);
  const int distances = c.dbias ? c.distances : 0;
  launch(queries_bwd_f32<D, M>, tiles * c.B * c.H, Pair<D, M>::bytes + distances * 4, c,
         "attention_f32_bwd", stream);
  if (c.dbias) add_bias_parts(c, int(tiles), stream);
}

}  // namespace

void attention_f32_any(const FlashForward& a, CudaStream& stream) {
  const int width = std::max(a.D, a.V);
  if (width <= 64)
    forward<64>(a, stream);
  else if (width <= 128)
    forward<128>(a, stream);
  else
    forward<256>(a, stream);
}

void attention_f32(const AttnCall& c, CudaStream& stream) {
  attention_f32_any(packed_forward(c), stream);
}

void attention_f32_bwd(AttnCall& c, CudaStream& stream) {
  const int64_t rows = int64_t(c.B) * c.T * c.H;
  row_deltas<<<unsigned((rows * 32 + 255) / 256), 256, 0, stream.handle>>>(c);
  check_launch("row_deltas");
  const int width = std::max(c.D, c.V);
  if (width <= 64)
    backward<64, 2>(c, stream);
  else if (width <= 128)
    backward<128, 2>(c, stream);
  else
    backward<256, 1>(c, stream);
}

}  // namespace hearth::cuda
