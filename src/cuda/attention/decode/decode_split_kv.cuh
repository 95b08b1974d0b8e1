// Split-KV decoding over a paged cache. A thread block handles a row and a KV head or, where that
// makes few blocks, a split of the row's keys of fixed size; the block that finishes last combines
// the results in order. Bound by reading the cache once, which begins before the queries are ready.
#pragma once

#include "cuda/attention/decode/decode_keys_fp8.cuh"
#include "cuda/attention/decode/decode_row.cuh"
#include "cuda/attention/decode/decode_split_kv.h"

namespace hearth::cuda {

constexpr int short_piece = 512;  // keys

// Online softmax of one query over the keys of a lane group, with eight columns of its values.
struct Running {
  float top = -INFINITY, sum = 0, y[8] = {};

  __device__ void fade_to(float now) {
    const float fade = expf(top - (now == -INFINITY ? 0 : now));
    top = now, sum *= fade;
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] *= fade;
  }
  // Combines with the group of lanes `step` away.
  __device__ void join(int step) {
    fade_to(fmaxf(top, __shfl_xor_sync(~0u, top, step)));
    sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] += __shfl_xor_sync(~0u, y[i], step);
  }
};

// Stores the row's own k and v in fp8, by the first two groups of lanes.
template <int Lanes, class T>
__device__ void store_own_codes(const Decode& a, const T* k, int64_t to_v, int64_t block, int g,
                                int at) {
  const int half = int(threadIdx.x) / Lanes, d = int(threadIdx.x) % Lanes * 8;
  if (half > 1) return;
  uint8_t* panel = static_cast<uint8_t*>(a.new_cache) +
                   (block * 2 * a.G + half * a.G + g) * block_tokens * (a.D + 1);
  store_codes<Lanes>(panel, k + half * to_v, at % block_tokens, d, a.D);
}

// Combines the splits of one row's heads into y, in order, by the whole block.
template <int Threads, class T>
__device__ void join_pieces(const Decode& a, const Seen& seen, int64_t line, int heads, T* y) {
  for (int i = int(threadIdx.x); i < heads * a.D; i += Threads) {
    const float* parts = a.parts + (line + i / a.D) * a.pieces * (a.D + 2);
    const auto part = [&](int n, int at) { return __ldcg(parts + n * (a.D + 2) + at); };
    float top = -INFINITY, sum = 0, v = 0;
    for (int n = seen.first_piece; n < seen.end_piece; ++n) top = fmaxf(top, part(n, a.D));
    for (int n = seen.first_piece; n < seen.end_piece; ++n) {
      const float weight = expf(part(n, a.D) - top);
      sum = fmaf(part(n, a.D + 1), weight, sum);
      v = fmaf(part(n, i % a.D), weight, v);
    }
    store_float(y + i, v / sum);
  }
}

// Whether the batches of a kernel go through shared memory.
template <class T>
constexpr bool through_shared(int lanes, int warps) {
  return warps == 4 && sizeof(T) == 2 && 32 / lanes * warps * batch <= block_tokens;
}

// C: the element type of the cache, T or bytes (fp8). Lanes: threads that share a key, 8 columns
// each. Heads: query heads of one row that share a KV head.
template <class T, class C, int Lanes, int Heads, int warps>
__global__ __launch_bounds__(warps * 32,
                             through_shared<T>(Lanes, warps) ? 6 : 1) void decode_piece(Decode a) {
  constexpr int threads = warps * 32;
  constexpr int groups = 32 / Lanes, stride = warps * groups;
  __shared__ float joined[warps][Heads][Lanes * 8 + 2];
  __shared__ bool last;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int d = lane % Lanes * 8, group = warp * groups + lane / Lanes;
  const int row = int(blockIdx.x) / a.G, g = int(blockIdx.x) % a.G, share = a.H / a.G;
  const int first_head = int(blockIdx.z) * Heads, heads = min(Heads, share - first_head);
  let_next_start();
  // Positions, sequences and tables come from the host, so reading them needs no wait.
  const int at = a.positions[row], sequence = a.sequence_of(row);
  const Seen seen(at, a.window, a.piece);
  T* y = static_cast<T*>(a.y) + (int64_t(row) * a.H + g * share + first_head) * a.D;
  if (!block_has_row<threads>(a, seen, row, heads, y)) return;

  const int first = int(blockIdx.y) * a.piece;
  const int begin = max(first, seen.begin), end = min(first + a.piece, seen.end);
  constexpr bool fp8 = std::is_same_v<C, uint8_t>;
  const int32_t* table = a.tables + int64_t(sequence) * a.width;
  const Keys<T, C> keys = keys_of_row<T, C>(a, row, g, at, sequence);
  const T* own = a.own_of<T>(row);
  using Shared =
      std::conditional_t<fp8, Fp8InShared<T, stride, threads, Lanes>, InShared<T, stride, threads>>;
  using Registers =
      std::conditional_t<fp8, Fp8InRegisters<T, stride, Lanes>, InRegisters<T, stride>>;
  using Batch = std::conditional_t<through_shared<T>(Lanes, warps), Shared, Registers>;
  __shared__ uint4 memory[Batch::size > 0 ? Batch::size : 1];
  Batch under_way(memory);
  const int from = begin / Batch::whole * Batch::whole;
  if (!a.new_cache) wait_for_previous();  // the previous kernel has stored this step's keys
  const int first_key = group * Batch::apart;
  under_way.begin(keys, from + first_key, end, d);
  wait_for_previous();

  float q[Heads][8], slope[Heads];
  const float* bias[Heads];
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const int head = g * share + first_head + min(h, heads - 1);
    Eight<T> fq;
    fq.load(own + head * a.D + d, a.D - d);
    fq.floats(q[h]);
    slope[h] = a.slopes ? a.slopes[head] : 0;
    bias[h] = a.bias_of(head);
  }

  if (a.new_cache && blockIdx.z == 0 && at < first + a.piece)
    if constexpr (fp8)
      store_own_codes<Lanes>(a, own + (a.H + g) * a.D, keys.fresh_v, table[at / block_tokens], g,
                             at);
    else
      store_own<threads>(a, own + (a.H + g) * a.D, keys.fresh_v, table[at / block_tokens], g, at);

  Running state[Heads];
  for (int j = from + first_key, turn = 0; j - first_key < end; j += stride * batch, ++turn) {
    under_way.wait(keys, turn, j, end, d);
    float s[batch][Heads];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float x[8];
      under_way.key(x, turn, u);
      const int key = j + u * Batch::step;
      const float scale = a.scale * under_way.key_unit(u);
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(q[h][i], x[i], sum);
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        sum *= scale;
        if (a.softcap > 0) sum = a.softcap * tanhf(sum / a.softcap);
        sum -= slope[h] * float(at - key);
        sum += bias_at(bias[h], a.distances, at - key);
        s[u][h] = key >= begin && key < end ? sum : -INFINITY;
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
      under_way.value(x, turn, u);
      const float unit = under_way.value_unit(u);
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        const float p = s[u][h] == -INFINITY ? 0 : expf(s[u][h] - state[h].top);
        state[h].sum += p;
#pragma unroll
        for (int i = 0; i < 8; ++i) state[h].y[i] = fmaf(p * unit, x[i], state[h].y[i]);
      }
    }
    under_way.next(keys, turn, j, end, d);
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
  const int64_t line = int64_t(row) * a.H + g * share + first_head;
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    if (h >= heads) break;
    float top = -INFINITY, sum = 0, factor[warps];
    for (int w = 0; w < warps; ++w) top = fmaxf(top, joined[w][h][Lanes * 8]);
    for (int w = 0; w < warps; ++w) {
      factor[w] = expf(joined[w][h][Lanes * 8] - top);
      sum = fmaf(joined[w][h][Lanes * 8 + 1], factor[w], sum);
    }
    float* part = a.parts + ((line + h) * a.pieces + blockIdx.y) * (a.D + 2);
    for (int i = int(threadIdx.x); i < a.D; i += threads) {
      float v = 0;
      for (int w = 0; w < warps; ++w) v = fmaf(joined[w][h][i], factor[w], v);
      if (seen.pieces() > 1)
        part[i] = v;
      else
        store_float(y + h * a.D + i, v / sum);
    }
    if (seen.pieces() > 1 && threadIdx.x == 0) part[a.D] = top, part[a.D + 1] = sum;
  }
  if (seen.pieces() == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* ticket = a.tickets + blockIdx.x + gridDim.x * blockIdx.z;
    last = atomicAdd(ticket, 1) + 1 == uint32_t(seen.pieces());
    if (last) *ticket = 0;  // reset for the next launch
    __threadfence();
  }
  __syncthreads();
  if (last) join_pieces<threads>(a, seen, line, heads, y);
}

template <class T, class C, int Lanes>
void launch_pieces(Decode a, CudaStream& stream) {
  const unsigned share = unsigned(a.H / a.G), x = unsigned(a.N * a.G);
  const unsigned z = share == 1 ? 1 : (share + 3) / 4;
  const int tokens = a.depth * block_tokens;
  const bool many = int64_t(x) * z >= stream.card.enough_blocks();
  a.piece = many ? tokens : short_piece;
  a.pieces = (tokens + a.piece - 1) / a.piece;
  if (a.pieces > 1) {
    a.parts = static_cast<float*>(stream.scratch(int64_t(a.N) * a.H * a.pieces * (a.D + 2) * 4));
    a.tickets = static_cast<uint32_t*>(stream.zeros(int64_t(x) * z * 4));
  }
  const dim3 blocks{x, unsigned(a.pieces), z};
  // Many blocks hide each other's latency; few blocks should be large.
  constexpr int large = Lanes < 32 ? 16 : 8;
  if (share == 1 && !many)
    launch_dependent(stream, decode_piece<T, C, Lanes, 1, large>, blocks, large * 32, a);
  else if (share == 1)
    launch_dependent(stream, decode_piece<T, C, Lanes, 1, 4>, blocks, 128, a);
  else
    launch_dependent(stream, decode_piece<T, C, Lanes, 4, 8>, blocks, 256, a);
  check_launch("attention_cached");
}

template <class T, class C>
void decode_pieces(const Decode& a, CudaStream& stream) {
  by_lanes(a.D, [&](auto lanes) { launch_pieces<T, C, lanes>(a, stream); });
}

}  // namespace hearth::cuda
