// Attention over a paged cache. Each row's keys are cut into pieces of a fixed size, one block of
// threads each, whose results are then joined in order: bound by reading the cache once. Rows of a
// long prompt share their keys, and go through the tensor cores instead (flash_mma_paged). Nothing
// but device memory decides what a launch does, so one graph serves every batch of its size.
#include <climits>

#include "cuda/attention_kernels.h"
#include "cuda/flash_mma_paged.h"
#include "cuda/mma.cuh"

namespace hearth::cuda {
namespace {

constexpr int piece = 256;           // keys
constexpr int warps = 8, batch = 4;  // keys a thread has on their way at once
constexpr int block_tokens = int(cache_block);

struct Decode {
  const void *qkv, *cache;
  void* y;
  float* parts;  // (N * H, pieces, D + 2): values, largest score, sum of exponentials
  const float* slopes;
  const int32_t *positions, *sequences, *tables;
  int N, H, G, D, pieces, width, window;  // width: blocks of a table
  float scale, softcap;
  bool leaves_runs;  // rows of long runs are another kernel's
};

// Keys that row `at` sees, and the pieces they lie in.
struct Seen {
  int begin, end, first_piece, end_piece;
  __device__ Seen(int at, int window) {
    begin = at < window ? 0 : at - window + 1, end = at + 1;
    first_piece = begin / piece, end_piece = at < 0 ? 0 : at / piece + 1;
  }
  __device__ int pieces() const { return end_piece - first_piece; }
};

// Units of a token's k and v, as they lie in qkv, to their block of the cache.
template <class Unit>
__global__ void store_new(Unit* cache, const Unit* qkv, const int32_t* positions,
                          const int32_t* sequences, const int32_t* tables, int width, int before,
                          int heads, int head) {
  const int64_t row = blockIdx.x;
  const int at = positions[row], units = heads * head;
  if (at < 0) return;
  const int64_t block = tables[int64_t(sequences[row]) * width + at / block_tokens];
  for (int i = int(threadIdx.x); i < units; i += int(blockDim.x)) {
    const int64_t panel = block * heads + i / head;
    cache[(panel * block_tokens + at % block_tokens) * head + i % head] =
        qkv[row * (before + units) + before + i];
  }
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

template <class T>
__device__ void store_float(T* to, float v) {
  if constexpr (sizeof(T) == 4)
    *to = v;
  else if constexpr (std::is_same_v<T, __half>)
    *to = __float2half_rn(v);
  else
    *to = __float2bfloat16_rn(v);
}

// Lanes: threads that share a key, 8 columns each. Heads: of one row, sharing a key head.
template <class T, int Lanes, int Heads>
__global__ __launch_bounds__(warps * 32) void decode_piece(Decode a) {
  constexpr int groups = 32 / Lanes, stride = warps * groups;
  __shared__ float joined[warps][Heads][Lanes * 8 + 2];
  __shared__ int64_t blocks[piece / block_tokens];  // where the panel of k begins
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int d = lane % Lanes * 8, group = warp * groups + lane / Lanes;
  const int row = int(blockIdx.x) / a.G, g = int(blockIdx.x) % a.G, share = a.H / a.G;
  const int first_head = int(blockIdx.z) * Heads, heads = min(Heads, share - first_head);
  const int at = a.positions[row];
  const Seen seen(at, a.window);
  T* y = static_cast<T*>(a.y) + (int64_t(row) * a.H + g * share + first_head) * a.D;
  if (at < 0 && blockIdx.y == 0)
    for (int i = int(threadIdx.x); i < heads * a.D; i += warps * 32) store_float(y + i, 0.0f);
  if (int(blockIdx.y) < seen.first_piece || int(blockIdx.y) >= seen.end_piece) return;
  if (a.leaves_runs && block_in_long_run(a.sequences, a.positions, row, a.N)) return;

  const int first = int(blockIdx.y) * piece;
  const int begin = max(first, seen.begin), end = min(first + piece, seen.end);
  const int64_t panel = int64_t(block_tokens) * a.D;
  if (int(threadIdx.x) < piece / block_tokens) {
    const int key = first + int(threadIdx.x) * block_tokens;
    const int32_t* table = a.tables + int64_t(a.sequences[row]) * a.width;
    const bool used = key < end && key + block_tokens > begin;
    blocks[threadIdx.x] = used ? (int64_t(table[key / block_tokens]) * 2 * a.G + g) * panel : 0;
  }
  float q[Heads][8], slope[Heads];
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const int head = g * share + first_head + min(h, heads - 1);
    Eight<T> fq;
    fq.load(static_cast<const T*>(a.qkv) + (int64_t(row) * (a.H + 2 * a.G) + head) * a.D + d,
            a.D - d);
    fq.floats(q[h]);
    slope[h] = a.slopes ? a.slopes[head] : 0;
  }
  __syncthreads();

  Running state[Heads];
  for (int j = begin + group; j - group < end; j += stride * batch) {
    Eight<T> fk[batch], fv[batch];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = j + u * stride, in = key - first;
      const int wide = key < end ? a.D - d : 0;
      const T* k = static_cast<const T*>(a.cache);
      if (wide > 0) k += blocks[in / block_tokens] + int64_t(in % block_tokens) * a.D + d;
      fk[u].load(k, wide);
      fv[u].load(k + a.G * panel, wide);
    }
    float s[batch][Heads];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float x[8];
      fk[u].floats(x);
      const int key = j + u * stride;
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(q[h][i], x[i], sum);
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        sum *= a.scale;
        if (a.softcap > 0) sum = a.softcap * tanhf(sum / a.softcap);
        sum -= slope[h] * float(at - key);
        s[u][h] = key < end ? sum : -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      float top = state[h].top;
#pragma unroll
      for (int u = 0; u < batch; ++u) top = fmaxf(top, s[u][h]);
      state[h].fade_to(top);
    }
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float x[8];
      fv[u].floats(x);
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        const float p = s[u][h] == -INFINITY ? 0 : expf(s[u][h] - state[h].top);
        state[h].sum += p;
#pragma unroll
        for (int i = 0; i < 8; ++i) state[h].y[i] = fmaf(p, x[i], state[h].y[i]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
#pragma unroll
    for (int step = Lanes; step < 32; step *= 2) state[h].join(step);
    if (lane < Lanes)
#pragma unroll
      for (int i = 0; i < 8; ++i) joined[warp][h][d + i] = state[h].y[i];
    if (lane == 0)
      joined[warp][h][Lanes * 8] = state[h].top, joined[warp][h][Lanes * 8 + 1] = state[h].sum;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    if (h >= heads) break;
    float top = -INFINITY, sum = 0, factor[warps];
    for (int w = 0; w < warps; ++w) top = fmaxf(top, joined[w][h][Lanes * 8]);
    for (int w = 0; w < warps; ++w) {
      factor[w] = expf(joined[w][h][Lanes * 8] - top);
      sum = fmaf(joined[w][h][Lanes * 8 + 1], factor[w], sum);
    }
    const int64_t line = int64_t(row) * a.H + g * share + first_head + h;
    float* part = a.parts + (line * a.pieces + blockIdx.y) * (a.D + 2);
    for (int i = int(threadIdx.x); i < a.D; i += warps * 32) {
      float v = 0;
      for (int w = 0; w < warps; ++w) v = fmaf(joined[w][h][i], factor[w], v);
      if (seen.pieces() > 1)
        part[i] = v;
      else
        store_float(y + h * a.D + i, v / sum);
    }
    if (seen.pieces() > 1 && threadIdx.x == 0) part[a.D] = top, part[a.D + 1] = sum;
  }
}

// y of one head of one row (a block) from its pieces, in order.
template <class T>
__global__ void join_pieces(Decode a) {
  const int64_t line = blockIdx.x;
  const int row = int(line / a.H);
  const Seen seen(a.positions[row], a.window);
  if (seen.pieces() < 2) return;
  if (a.leaves_runs && block_in_long_run(a.sequences, a.positions, row, a.N)) return;
  const float* parts = a.parts + line * a.pieces * (a.D + 2);
  float top = -INFINITY, sum = 0;
  for (int n = seen.first_piece; n < seen.end_piece; ++n)
    top = fmaxf(top, parts[n * (a.D + 2) + a.D]);
  for (int n = seen.first_piece; n < seen.end_piece; ++n) {
    const float* part = parts + n * (a.D + 2);
    sum = fmaf(part[a.D + 1], expf(part[a.D] - top), sum);
  }
  for (int i = int(threadIdx.x); i < a.D; i += int(blockDim.x)) {
    float v = 0;
    for (int n = seen.first_piece; n < seen.end_piece; ++n) {
      const float* part = parts + n * (a.D + 2);
      v = fmaf(part[i], expf(part[a.D] - top), v);
    }
    store_float(static_cast<T*>(a.y) + line * a.D + i, v / sum);
  }
}

template <class T, int Lanes>
void launch_pieces(const Decode& a, CudaStream& stream) {
  const unsigned share = unsigned(a.H / a.G), x = unsigned(a.N * a.G), y = unsigned(a.pieces);
  if (share == 1)
    decode_piece<T, Lanes, 1><<<{x, y, 1}, warps * 32, 0, stream.handle>>>(a);
  else
    decode_piece<T, Lanes, 4><<<{x, y, (share + 3) / 4}, warps * 32, 0, stream.handle>>>(a);
  check_launch("attention_cached");
}

template <class T>
void decode(Decode a, CudaStream& stream) {
  if (a.pieces > 1)
    a.parts = static_cast<float*>(stream.scratch(int64_t(a.N) * a.H * a.pieces * (a.D + 2) * 4));
  if (a.D <= 32)
    launch_pieces<T, 4>(a, stream);
  else if (a.D <= 64)
    launch_pieces<T, 8>(a, stream);
  else if (a.D <= 128)
    launch_pieces<T, 16>(a, stream);
  else
    launch_pieces<T, 32>(a, stream);
  if (a.pieces == 1) return;
  join_pieces<T><<<unsigned(a.N * a.H), 64, 0, stream.handle>>>(a);
  check_launch("attention_cached");
}

template <class Unit>
void launch_store(const Decode& a, Tensor cache, Tensor qkv, CudaStream& stream) {
  const int64_t size = size_of(qkv.dtype);
  const int head = int(a.D * size / int64_t(sizeof(Unit))), units = 2 * a.G * head;
  store_new<<<unsigned(a.N), unsigned(std::min(256, (units + 31) / 32 * 32)), 0, stream.handle>>>(
      cache.as<Unit>(), qkv.as<const Unit>(), a.positions, a.sequences, a.tables, a.width,
      a.H * head, 2 * a.G, head);
  check_launch("attention_cached");
}

void long_runs(const Decode& a, DType dtype, CudaStream& stream) {
  const int64_t size = size_of(dtype), panel = int64_t(block_tokens) * a.D;
  FlashPaged p{};
  p.call.q = a.qkv, p.call.q_token = int64_t(a.H + 2 * a.G) * a.D;
  p.call.k = a.cache, p.call.v = static_cast<const char*>(a.cache) + a.G * panel * size;
  p.call.y = a.y, p.call.slopes = a.slopes;
  p.call.B = 1, p.call.T = a.N, p.call.H = a.H, p.call.G = a.G, p.call.D = a.D;
  p.call.window = a.window, p.call.scale = a.scale, p.call.softcap = a.softcap;
  p.call.dtype = dtype;
  p.positions = a.positions, p.sequences = a.sequences, p.tables = a.tables;
  p.width = a.width, p.block = 2 * a.G * panel, p.head = panel;
  by_head_size(a.D, [&](auto D) { flash_mma_paged<D>(p, stream); });
}

}  // namespace

void attention_cached(Stream& on_stream, Tensor y, Tensor cache, Tensor qkv, Tensor positions,
                      Tensor sequences, Tensor tables, Tensor slopes, const AttnSpec& spec) {
  CudaStream& stream = on(on_stream);
  if (y.dtype != qkv.dtype) refuse_dtypes("attention_cached", qkv.dtype, y.dtype);
  if (cache.dtype != qkv.dtype) refuse_dtypes("attention_cached", qkv.dtype, cache.dtype);
  check_head_size("attention_cached", qkv.dtype, spec);
  const int64_t tokens = tables.shape[1] * cache_block, N = qkv.shape[1];
  const Decode a{.qkv = qkv.data,
                 .cache = cache.data,
                 .y = y.data,
                 .parts = nullptr,
                 .slopes = slopes.as<const float>(),
                 .positions = positions.as<const int32_t>(),
                 .sequences = sequences.as<const int32_t>(),
                 .tables = tables.as<const int32_t>(),
                 .N = int(N),
                 .H = int(spec.heads),
                 .G = int(spec.kv_heads),
                 .D = int(spec.head_dim),
                 .pieces = int((tokens + piece - 1) / piece),
                 .width = int(tables.shape[1]),
                 .window = spec.window > 0 ? int(spec.window) : INT_MAX,
                 .scale = spec.scale,
                 .softcap = spec.softcap,
                 .leaves_runs = qkv.dtype != DType::f32 && N > most_rows_by_pieces};
  if (a.D * size_of(qkv.dtype) % 16 == 0)
    launch_store<uint4>(a, cache, qkv, stream);
  else
    launch_store<uint16_t>(a, cache, qkv, stream);
  if (a.leaves_runs) long_runs(a, qkv.dtype, stream);
  if (qkv.dtype == DType::f32)
    decode<float>(a, stream);
  else if (qkv.dtype == DType::bf16)
    decode<__nv_bfloat16>(a, stream);
  else
    decode<__half>(a, stream);
}

}  // namespace hearth::cuda
