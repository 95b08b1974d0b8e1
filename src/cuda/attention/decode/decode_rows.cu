// Decoding of many rows over a 16-bit paged cache, on the tensor cores. A block of a few warps
// handles a row and a KV head; a warp multiplies sixteen keys at a time by up to eight queries. A
// warp reads only what it has copied itself, two batches ahead, so warps synchronise only at the
// end. A block is mostly bound by a chain of latencies (position, table, keys), so high occupancy
// helps: if there are more blocks than run at once, they have two warps each instead of four.
#include "cuda/attention/decode/decode_rows.h"

#include <climits>

#include "cuda/attention/decode/decode_row.cuh"
#include "cuda/device/device.cuh"

namespace hearth::cuda {
namespace {

constexpr int row_keys = 16;  // keys per warp and batch
constexpr int row_heads = decode_rows_heads;
constexpr int row_slots = 2;  // batches in flight

// A warp's keys and values, loaded through its part of shared memory.
template <class T, int D>
struct WarpKeys {
  static constexpr int tile = SharedTile<D>::bytes(row_keys), slot = 2 * tile;
  static constexpr int bytes = row_slots * slot;
  const Keys<T>& keys;
  uint32_t at;
  int end, blocks;  // end of the keys; blocks in the table

  __device__ SharedTile<D> key_tile(int turn) const {
    return {at + uint32_t(turn % row_slots * slot)};
  }
  __device__ SharedTile<D> value_tile(int turn) const {
    return {at + uint32_t(turn % row_slots * slot + tile)};
  }
  // Prefetches keys and values of the cache beyond those in flight into L2, in blocks from key j
  // on: while the previous kernel still runs, memory is idle.
  __device__ void ask_ahead(int j, int most_blocks) const {
#if __CUDA_ARCH__ >= 900
    const int lane = int(threadIdx.x) % 32, block = j / block_tokens + lane / 2;
    const int count = min(keys.first_fresh - block * block_tokens, block_tokens);
    if (lane >= 2 * most_blocks || count <= 0) return;
    const T* from = keys.cache + keys.table[block] * keys.block + (lane % 2 ? keys.to_v : 0);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(count * D * 2)
                 : "memory");
#endif
  }
  // Loads sixteen keys from j on: of the cache (with zeros beyond the end), of this step, or both.
  template <bool old, bool fresh>
  __device__ void load(int turn, int j) const {
    constexpr int chunks = D / 8,
                  step = 32 / chunks;  // rows of the tile that a warp copies at once
    const int first = int(threadIdx.x) % 32 / chunks, column = int(threadIdx.x) % chunks;
    // Reads the table even where there is no key, so as not to wait for the row's position.
    const int64_t block = old ? keys.table[min(j / block_tokens, blocks - 1)] : 0;
    const T* cached = keys.cache + block * keys.block + (j % block_tokens + first) * D + column * 8;
    const T* own = keys.fresh + (j + first) * keys.fresh_row + column * 8;
#pragma unroll
    for (int row = 0; row < row_keys; row += step) {
      const int key = j + row + first;
      const bool real = key < end, of_step = key >= keys.first_fresh && real;
      if (!(of_step ? fresh : old)) continue;
      const T* k = of_step ? own + row * keys.fresh_row : cached + row * D;
      const T* v = k + (of_step ? keys.fresh_v : keys.to_v);
      copy_async(key_tile(turn).chunk(row + first, column), k, real);
      copy_async(value_tile(turn).chunk(row + first, column), real ? v : k, real);
    }
  }
};

// Transposes an 8 x 8 matrix of 16-bit values: a result becomes a factor of the next product.
__device__ uint32_t turned_over(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Eight queries, each with its online softmax and values. Keys and columns of values are the rows
// of the products; a thread holds two of the queries.
template <class T, int D>
struct WarpQueries {
  uint32_t q[D / 16][2];
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, slope[2] = {};
  const float* bias[2] = {};  // by distance
  float y[D / 16][4] = {};

  static __device__ int row() { return int(threadIdx.x) % 32 / 4; }
  static __device__ int head() { return int(threadIdx.x) % 4 * 2; }

  // `first`: the first of the heads.
  __device__ void read(const T* queries, int heads, const Decode& a, int first) {
    const bool real = row() < heads;
    const auto* from = reinterpret_cast<const uint32_t*>(queries + row() * D + head());
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
      q[i][0] = real ? from[8 * i] : 0, q[i][1] = real ? from[8 * i + 4] : 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (head() + e >= heads) continue;
      if (a.slopes) slope[e] = a.slopes[first + head() + e];
      bias[e] = a.bias_of(first + head() + e);
    }
  }

  __device__ void multiply_keys(float (&s)[4], const SharedTile<D>& k) const {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      uint32_t a[4];
      k.a(a, 0, 2 * i, int(threadIdx.x) % 32);
      multiply(s, a, q[i][0], q[i][1], T());
    }
  }

  // Online softmax over sixteen keys from j on: scores become probabilities in place.
  __device__ void weigh(float (&s)[4], const Decode& a, int at, int j, int begin, int end) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float now = top[e];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = j + 8 * half + row();
        float x = s[2 * half + e] * a.scale;
        if (a.softcap > 0) x = a.softcap * tanhf(x / a.softcap);
        x -= slope[e] * float(at - key);
        x += bias_at(bias[e], a.distances, at - key);
        s[2 * half + e] = key >= begin && key < end ? x : -INFINITY;
        now = fmaxf(now, s[2 * half + e]);
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) now = fmaxf(now, __shfl_xor_sync(~0u, now, step));
      const float from = now == -INFINITY ? 0 : now, fade = expf(top[e] - from);
      top[e] = now, sum[e] *= fade;
#pragma unroll
      for (int t = 0; t < D / 16; ++t) y[t][e] *= fade, y[t][2 + e] *= fade;
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[e] += s[2 * half + e] = expf(s[2 * half + e] - from);
    }
  }

  __device__ void add_values(const float (&p)[4], const SharedTile<D>& v) {
    const uint32_t b[2] = {turned_over(pack(p[0], p[1], T())), turned_over(pack(p[2], p[3], T()))};
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      uint32_t a[4];
      v.a_transposed(a, 0, 2 * t, int(threadIdx.x) % 32);
      multiply(y[t], a, b[0], b[1], T());
    }
  }

  // Writes values, largest score and sum of exponentials of each head, for the other warps.
  __device__ void write(float (*joined)[D + 2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], step);
      float* to = joined[head() + e];
#pragma unroll
      for (int t = 0; t < D / 16; ++t)
        to[16 * t + row()] = y[t][e], to[16 * t + 8 + row()] = y[t][2 + e];
      if (row() == 0) to[D] = top[e], to[D + 1] = sum[e];
    }
  }
};

// A warp's result for each head: values, largest score, sum of exponentials.
template <int D>
using Joined = float[row_heads][D + 2];

template <class T, int D, int Warps>
__device__ void join_row(const Joined<D>* joined, int heads, T* y) {
  for (int i = int(threadIdx.x); i < heads * D; i += Warps * 32) {
    const int h = i / D;
    float top = -INFINITY, sum = 0, v = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) top = fmaxf(top, joined[w][h][D]);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const float factor = expf(joined[w][h][D] - top);
      sum = fmaf(joined[w][h][D + 1], factor, sum);
      v = fmaf(joined[w][h][i % D], factor, v);
    }
    store_float(y + i, v / sum);
  }
}

template <class T, int D, int Warps>
__global__ void __launch_bounds__(Warps * 32, (D == 64 ? 24 : 12) / Warps) decode_row(Decode a) {
  constexpr int threads = Warps * 32, batch_keys = Warps * row_keys;
  static_assert(threads >= most_rows_by_pieces);  // keys_of_row counts rows by threads
  extern __shared__ uint4 row_memory[];
  const int warp = int(threadIdx.x) / 32;
  const int row = int(blockIdx.x) / a.G, g = int(blockIdx.x) % a.G, share = a.H / a.G;
  const int first_head = int(blockIdx.z) * row_heads, heads = min(row_heads, share - first_head);
  let_next_start();
  // Positions, sequences and tables come from the host, so reading them needs no wait.
  const int at = a.positions[row], sequence = a.sequence_of(row);
  const Seen seen(at, a.window, a.piece);
  T* y = static_cast<T*>(a.y) + (int64_t(row) * a.H + g * share + first_head) * D;
  if (!block_has_row<threads>(a, seen, row, heads, y)) return;

  const Keys<T> keys = keys_of_row<T, T>(a, row, g, at, sequence);
  const WarpKeys<T, D> under_way{
      keys, shared_address(row_memory) + uint32_t(warp * WarpKeys<T, D>::bytes), seen.end, a.width};
  const int first = a.window == INT_MAX ? 0 : seen.begin / batch_keys * batch_keys;
  const int from = first + warp * row_keys;
  if (!a.new_cache) wait_for_previous();  // the previous kernel has stored this step's keys
#pragma unroll
  for (int n = 0; n < row_slots; ++n) {
    under_way.template load<true, false>(n, from + n * batch_keys);
    commit_copies();
  }
  // Not with many blocks: prefetched lines would be evicted before they are used.
  if (Warps == 4 && warp == 0) under_way.ask_ahead(first + row_slots * batch_keys, 2);
  wait_for_previous();
  const T* own = a.own_of<T>(row);
  const int head = g * share + first_head;
  WarpQueries<T, D> queries;
  queries.read(own + head * D, heads, a, head);
  const bool late = min(seen.end, from + row_slots * batch_keys) > keys.first_fresh;
#pragma unroll
  for (int n = 0; late && n < row_slots; ++n)
    under_way.template load<false, true>(n, from + n * batch_keys);
  commit_copies();
  if (a.new_cache && blockIdx.z == 0)
    store_own<threads>(a, own + (a.H + g) * D, keys.fresh_v, keys.table[at / block_tokens], g, at);

  for (int j = from, turn = 0; j < seen.end; j += batch_keys, ++turn) {
    // If the first batches contain keys of this step, those were copied last.
    if (turn == 0 && !late)
      wait_for_copies<row_slots>();
    else if (turn == 0)
      wait_for_copies<0>();
    else
      wait_for_copies<1>();
    __syncwarp();
    float s[4] = {};
    queries.multiply_keys(s, under_way.key_tile(turn));
    queries.weigh(s, a, at, j, seen.begin, seen.end);
    queries.add_values(s, under_way.value_tile(turn));
    __syncwarp();
    under_way.template load<true, true>(turn, j + row_slots * batch_keys);
    commit_copies();
  }
  wait_for_copies<0>();
  __syncthreads();  // all warps are done with the tiles
  auto* joined = reinterpret_cast<Joined<D>*>(row_memory);
  queries.write(joined[warp]);
  __syncthreads();
  join_row<T, D, Warps>(joined, heads, y);
}

template <class T, int D, int Warps>
void launch_rows(const Decode& a, dim3 blocks, CudaStream& stream) {
  constexpr int shared = std::max(Warps * WarpKeys<T, D>::bytes, int(Warps * sizeof(Joined<D>)));
  launch_dependent(stream, decode_row<T, D, Warps>,
                   DependentLaunch{.blocks = blocks, .threads = Warps * 32, .shared = shared}, a);
  check_launch("attention_cached");
}

template <class T, int D>
void launch_rows(const Decode& a, CudaStream& stream) {
  const dim3 blocks(unsigned(a.N * a.G), 1, unsigned(ceil_div(a.H / a.G, row_heads)));
  // As many blocks as run at once with four warps each.
  const int64_t at_once = int64_t(stream.card.processors) * (D == 64 ? 6 : 3);
  if (int64_t(blocks.x) * blocks.z > at_once)
    launch_rows<T, D, 2>(a, blocks, stream);
  else
    launch_rows<T, D, 4>(a, blocks, stream);
}

}  // namespace

template <class T>
void decode_rows(const Decode& a, CudaStream& stream) {
  a.D == 64 ? launch_rows<T, 64>(a, stream) : launch_rows<T, 128>(a, stream);
}

template void decode_rows<__nv_bfloat16>(const Decode&, CudaStream&);
template void decode_rows<__half>(const Decode&, CudaStream&);

}  // namespace hearth::cuda
