// Attention over a contiguous cache. Few queries (decoding): the keys are cut into pieces of a
// fixed size, one block each, whose results are then joined in order; bound by reading the cache
// once. Many queries (prefill): the kernels of training, which take positions too.
#include <climits>

#include "cuda/attention_kernels.h"
#include "cuda/flash_mma.h"
#include "cuda/flash_mma_score.cuh"
#include "cuda/mma.cuh"

namespace hearth::cuda {
namespace {

constexpr int piece = 256;           // keys
constexpr int most_rows = 16;        // queries of a group of heads up to which this is decoding
constexpr int warps = 8, batch = 4;  // keys a thread has on their way at once

struct Decode {
  const void *qkv, *cache;
  void* y;
  float* parts;  // (B * T * H, pieces, D + 2): values, largest score, sum of exponentials
  const float* slopes;
  const int32_t* positions;
  int B, T, S, H, G, D, pieces, window;
  float scale, softcap;
};

template <class Unit>
__global__ void store_new(Unit* cache, const Unit* qkv, const int32_t* positions, int T, int S,
                          int before, int units) {
  const int64_t bt = blockIdx.x, at = positions[bt];
  if (at < 0) return;
  for (int i = int(threadIdx.x); i < units; i += int(blockDim.x))
    cache[(bt / T * S + at) * units + i] = qkv[bt * (before + units) + before + i];
}

// Eight elements as they lie in memory, and as floats.
template <class T>
struct Eight {
  uint4 v[sizeof(T) / 2];

  __device__ void load(const T* from, int width) {
    if constexpr (sizeof(T) == 2) {
      v[0] = width >= 8 ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    } else {
      float* f = reinterpret_cast<float*>(v);
      if (width >= 8 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        v[0] = reinterpret_cast<const uint4*>(from)[0],
        v[1] = reinterpret_cast<const uint4*>(from)[1];
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) f[i] = i < width ? from[i] : 0.0f;
      }
    }
  }
  __device__ void floats(float (&f)[8]) const {
    if constexpr (sizeof(T) == 2) {
      const uint32_t words[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack(words[i], T());
        f[2 * i] = two.x, f[2 * i + 1] = two.y;
      }
    } else {
      const float* from = reinterpret_cast<const float*>(v);
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] = from[i];
    }
  }
};

// A query's running softmax over the keys of one lane group; eight columns of its values.
struct Running {
  float top = -INFINITY, sum = 0, y[8] = {};

  __device__ void fade_to(float now) {
    const float fade = expf(top - (now == -INFINITY ? 0 : now));
    top = now, sum *= fade;
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] *= fade;
  }
  // With the group of lanes `step` away.
  __device__ void join(int step) {
    fade_to(fmaxf(top, __shfl_xor_sync(~0u, top, step)));
    sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] += __shfl_xor_sync(~0u, y[i], step);
  }
};

struct DecodeRow {
  int position, head;
  int64_t at;  // (b, t, h)
  float slope;
};

template <class T>
__device__ void store_float(T* to, float v) {
  if constexpr (sizeof(T) == 4)
    *to = v;
  else if constexpr (std::is_same_v<T, __half>)
    *to = __float2half_rn(v);
  else
    *to = __float2bfloat16_rn(v);
}

// Lanes: threads that share a key, 8 columns each. Rows: queries of one block.
template <class T, int Lanes, int Rows>
__global__ __launch_bounds__(warps * 32) void decode_piece(Decode a) {
  constexpr int groups = 32 / Lanes, stride = warps * groups;
  __shared__ float joined[warps][Rows][Lanes * 8 + 2];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int d = lane % Lanes * 8, group = warp * groups + lane / Lanes;
  const int b = int(blockIdx.y) / a.G, g = int(blockIdx.y) % a.G, share = a.H / a.G;
  const T* k = static_cast<const T*>(a.cache) + (int64_t(b) * a.S * 2 * a.G + g) * a.D + d;
  const int64_t token = int64_t(2) * a.G * a.D;

  DecodeRow rows[Rows];
  float q[Rows][8];
  int most = -1;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int row = int(blockIdx.z) * Rows + r;
    const bool real = row < share * a.T;
    const int t = real ? row / share : 0, h = g * share + (real ? row % share : 0);
    rows[r] = {real ? a.positions[b * a.T + t] : -1, h, (int64_t(b) * a.T + t) * a.H + h,
               a.slopes ? a.slopes[h] : 0};
    if (!real) rows[r].at = -1;
    most = max(most, rows[r].position);
    Eight<T> fq;
    fq.load(static_cast<const T*>(a.qkv) + ((int64_t(b) * a.T + t) * (a.H + 2 * a.G) + h) * a.D + d,
            a.D - d);
    fq.floats(q[r]);
  }
  const int begin = int(blockIdx.x) * piece, end = min(begin + piece, most + 1);
  if (begin >= end && (a.pieces > 1 || begin > 0)) return;

  Running state[Rows];
  for (int j = begin + group; j - group < end; j += stride * batch) {
    Eight<T> fk[batch], fv[batch];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = j + u * stride;
      fk[u].load(k + key * token, key < end ? a.D - d : 0);
      fv[u].load(k + key * token + int64_t(a.G) * a.D, key < end ? a.D - d : 0);
    }
    float s[batch][Rows];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float x[8];
      fk[u].floats(x);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(q[r][i], x[i], sum);
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const int away = rows[r].position - (j + u * stride);
        sum *= a.scale;
        if (a.softcap > 0) sum = a.softcap * tanhf(sum / a.softcap);
        sum -= rows[r].slope * float(away);
        s[u][r] = away >= 0 && away < a.window ? sum : -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      float top = state[r].top;
#pragma unroll
      for (int u = 0; u < batch; ++u) top = fmaxf(top, s[u][r]);
      state[r].fade_to(top);
    }
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float x[8];
      fv[u].floats(x);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const float p = s[u][r] == -INFINITY ? 0 : expf(s[u][r] - state[r].top);
        state[r].sum += p;
#pragma unroll
        for (int i = 0; i < 8; ++i) state[r].y[i] = fmaf(p, x[i], state[r].y[i]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int step = Lanes; step < 32; step *= 2) state[r].join(step);
    if (lane < Lanes)
#pragma unroll
      for (int i = 0; i < 8; ++i) joined[warp][r][d + i] = state[r].y[i];
    if (lane == 0)
      joined[warp][r][Lanes * 8] = state[r].top, joined[warp][r][Lanes * 8 + 1] = state[r].sum;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (rows[r].at < 0) continue;
    float top = -INFINITY, sum = 0, factor[warps];
    for (int w = 0; w < warps; ++w) top = fmaxf(top, joined[w][r][Lanes * 8]);
    for (int w = 0; w < warps; ++w) {
      factor[w] = expf(joined[w][r][Lanes * 8] - (top == -INFINITY ? 0 : top));
      sum = fmaf(joined[w][r][Lanes * 8 + 1], factor[w], sum);
    }
    float* part = a.parts + (rows[r].at * a.pieces + blockIdx.x) * (a.D + 2);
    for (int i = int(threadIdx.x); i < a.D; i += warps * 32) {
      float y = 0;
      for (int w = 0; w < warps; ++w) y = fmaf(joined[w][r][i], factor[w], y);
      if (a.pieces > 1)
        part[i] = y;
      else
        store_float(static_cast<T*>(a.y) + rows[r].at * a.D + i, sum > 0 ? y / sum : 0.0f);
    }
    if (a.pieces > 1 && threadIdx.x == 0) part[a.D] = top, part[a.D + 1] = sum;
  }
}

// y of one query (a block) from its pieces, in order.
template <class T>
__global__ void join_pieces(Decode a) {
  const int64_t row = blockIdx.x;
  const int position = a.positions[row / a.H];
  const int begin = a.window < position ? (position - a.window + 1) / piece : 0;
  const int end = position < 0 ? 0 : position / piece + 1;
  const float* parts = a.parts + row * a.pieces * (a.D + 2);
  float top = -INFINITY, sum = 0;
  for (int n = begin; n < end; ++n) top = fmaxf(top, parts[n * (a.D + 2) + a.D]);
  for (int n = begin; n < end; ++n) {
    const float* part = parts + n * (a.D + 2);
    sum = fmaf(part[a.D + 1], expf(part[a.D] - top), sum);
  }
  for (int i = int(threadIdx.x); i < a.D; i += int(blockDim.x)) {
    float y = 0;
    for (int n = begin; n < end; ++n) {
      const float* part = parts + n * (a.D + 2);
      y = fmaf(part[i], expf(part[a.D] - top), y);
    }
    store_float(static_cast<T*>(a.y) + row * a.D + i, sum > 0 ? y / sum : 0.0f);
  }
}

template <class T, int Lanes>
void launch_pieces(const Decode& a, CudaStream& stream) {
  const unsigned rows = unsigned(a.H / a.G * a.T), x = unsigned(a.pieces), y = unsigned(a.B * a.G);
  if (rows == 1)
    decode_piece<T, Lanes, 1><<<{x, y, 1}, warps * 32, 0, stream.handle>>>(a);
  else
    decode_piece<T, Lanes, 4><<<{x, y, (rows + 3) / 4}, warps * 32, 0, stream.handle>>>(a);
  check_launch("attention_cached");
}

template <class T>
void decode(Decode a, CudaStream& stream) {
  if (a.pieces > 1)
    a.parts =
        static_cast<float*>(stream.scratch(int64_t(a.B) * a.T * a.H * a.pieces * (a.D + 2) * 4));
  if (a.D <= 32)
    launch_pieces<T, 4>(a, stream);
  else if (a.D <= 64)
    launch_pieces<T, 8>(a, stream);
  else if (a.D <= 128)
    launch_pieces<T, 16>(a, stream);
  else
    launch_pieces<T, 32>(a, stream);
  if (a.pieces == 1) return;
  join_pieces<T><<<unsigned(a.B * a.T * a.H), 64, 0, stream.handle>>>(a);
  check_launch("attention_cached");
}

template <class Unit>
void launch_store(Tensor cache, Tensor qkv, Tensor positions, int64_t before, int64_t bytes,
                  CudaStream& stream) {
  const int units = int(bytes / int64_t(sizeof(Unit)));
  store_new<<<unsigned(positions.numel()), unsigned(std::min(256, (units + 31) / 32 * 32)), 0,
              stream.handle>>>(cache.as<Unit>(), qkv.as<const Unit>(),
                               positions.as<const int32_t>(), int(qkv.shape[1]),
                               int(cache.shape[1]), int(before / int64_t(sizeof(Unit))), units);
  check_launch("attention_cached");
}

void prefill(Tensor y, Tensor cache, Tensor qkv, Tensor positions, Tensor slopes,
             const AttnSpec& spec, CudaStream& stream) {
  AttnCall c;
  c.qkv = qkv.data, c.y = y.data, c.slopes = slopes.as<const float>(), c.dtype = qkv.dtype;
  c.B = int(qkv.shape[0]), c.T = int(qkv.shape[1]);
  c.H = int(spec.heads), c.G = int(spec.kv_heads), c.D = int(spec.head_dim);
  c.window = int(spec.window), c.scale = spec.scale, c.softcap = spec.softcap;
  FlashForward a = packed_forward(c);
  const int64_t kv = int64_t(c.G) * c.D;
  a.k = cache.data, a.v = cache.data + kv * size_of(c.dtype);
  a.kv_token = 2 * kv, a.kv_batch = 2 * kv * cache.shape[1], a.S = int(cache.shape[1]);
  a.positions = positions.as<const int32_t>(), a.general = true;
  if (c.dtype == DType::f32)
    attention_f32_any(a, stream);
  else
    flash_mma_any(a, stream);
}

}  // namespace

void attention_cached(Stream& on_stream, Tensor y, Tensor cache, Tensor qkv, Tensor positions,
                      Tensor slopes, const AttnSpec& spec) {
  CudaStream& stream = on(on_stream);
  if (y.dtype != qkv.dtype) refuse_dtypes("attention_cached", qkv.dtype, y.dtype);
  if (cache.dtype != qkv.dtype) refuse_dtypes("attention_cached", qkv.dtype, cache.dtype);
  check_head_size("attention_cached", qkv.dtype, spec);
  const int64_t size = size_of(qkv.dtype), before = spec.heads * spec.head_dim * size,
                bytes = 2 * spec.kv_heads * spec.head_dim * size;
  if (before % 16 == 0 && bytes % 16 == 0)
    launch_store<uint4>(cache, qkv, positions, before, bytes, stream);
  else
    launch_store<uint16_t>(cache, qkv, positions, before, bytes, stream);

  if (spec.heads / spec.kv_heads * qkv.shape[1] > most_rows)
    return prefill(y, cache, qkv, positions, slopes, spec, stream);
  const Decode a{.qkv = qkv.data,
                 .cache = cache.data,
                 .y = y.data,
                 .parts = nullptr,
                 .slopes = slopes.as<const float>(),
                 .positions = positions.as<const int32_t>(),
                 .B = int(qkv.shape[0]),
                 .T = int(qkv.shape[1]),
                 .S = int(cache.shape[1]),
                 .H = int(spec.heads),
                 .G = int(spec.kv_heads),
                 .D = int(spec.head_dim),
                 .pieces = int((cache.shape[1] + piece - 1) / piece),
                 .window = spec.window > 0 ? int(spec.window) : INT_MAX,
                 .scale = spec.scale,
                 .softcap = spec.softcap};
  if (qkv.dtype == DType::f32)
    decode<float>(a, stream);
  else if (qkv.dtype == DType::bf16)
    decode<__nv_bfloat16>(a, stream);
  else
    decode<__half>(a, stream);
}

}  // namespace hearth::cuda
