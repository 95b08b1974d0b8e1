// Attention over cached latents, in three kernels. latent_queries multiplies each query by the
// matrix that computes keys. latent_splits attends over a split of the keys: a block has one row,
// one split and up to eight heads, one per warp, which share the latents that the block loads.
// latent_values adds the splits in their order and multiplies by the matrix that computes values.
// Splits have a fixed size, so a row's bits depend on its own keys only. Sums are in fp32.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int split_keys = 256;  // keys of a split
constexpr int tile_keys = 32;    // keys in shared memory, one per lane
constexpr int split_warps = 8;
constexpr int most_per_lane = int(most_absorbed) / 32;

struct LatentCall {
  void* y;
  const void *cache, *q, *w;
  const int32_t *positions, *sequences, *tables;
  float* queries;  // (N, H, L + R), scaled
  float* parts;    // (N, H, splits, L + 2): sum of latents, largest score, sum of exponentials
  int N, H, L, R, nope, v, width, splits, window;
  float scale;

  __device__ int head() const { return nope + R; }
  __device__ int row() const { return L + R; }
  __device__ int first_key(int at) const { return window && at >= window ? at - window + 1 : 0; }
  __device__ float* part(int n, int h, int split) const {
    return parts + ((int64_t(n) * H + h) * splits + split) * (L + 2);
  }
};

template <class T>
__device__ float element(const T* p) {
  return get(load<1>(p), 0);
}

template <class T>
__global__ void __launch_bounds__(128) latent_queries(LatentCall a) {
  const int n = int(blockIdx.x), h = int(blockIdx.y);
  if (a.positions[n] < 0) return;
  const T* q = static_cast<const T*>(a.q) + (int64_t(n) * a.H + h) * a.head();
  const T* w = static_cast<const T*>(a.w) + int64_t(h) * (a.nope + a.v) * a.L;
  float* out = a.queries + (int64_t(n) * a.H + h) * a.row();
  for (int l = int(threadIdx.x); l < a.row(); l += 128) {
    float total = 0;
    if (l < a.L)
      for (int i = 0; i < a.nope; ++i)
        total = fmaf(element(q + i), element(w + int64_t(i) * a.L + l), total);
    else
      total = element(q + a.nope + l - a.L);
    out[l] = total * a.scale;
  }
}

// The row of key j in shared memory: odd in words, so that lanes read different banks.
template <class T>
__host__ __device__ int tile_stride(int row) {
  constexpr int per_word = 4 / int(sizeof(T));
  return (row / per_word | 1) * per_word + (row % per_word ? 2 * per_word : 0);
}

template <class T>
__global__ void __launch_bounds__(split_warps * 32) latent_splits(LatentCall a) {
  extern __shared__ uint4 shared_memory[];
  const int n = int(blockIdx.x), split = int(blockIdx.y), warp = int(threadIdx.x) / 32;
  const int lane = int(threadIdx.x) % 32, h = int(blockIdx.z) * split_warps + warp;
  const int at = a.positions[n], begin = max(split * split_keys, a.first_key(at));
  const int end = min((split + 1) * split_keys, at + 1);
  if (begin >= end) return;  // for all threads of the block alike
  const int row = a.row(), stride = tile_stride<T>(row);
  T* tile = reinterpret_cast<T*>(shared_memory);
  float* query = reinterpret_cast<float*>(tile + int64_t(tile_keys) * stride) + warp * row;
  const bool has_head = h < a.H;
  for (int d = lane; d < row && has_head; d += 32)
    query[d] = a.queries[(int64_t(n) * a.H + h) * row + d];
  const int32_t* table = a.tables + int64_t(a.sequences[n]) * a.width;
  float top = -INFINITY, sum = 0, latent[most_per_lane] = {};
  for (int first = begin; first < end; first += tile_keys) {
    const int count = min(tile_keys, end - first);
    __syncthreads();  // the previous tile has been read
    for (int i = int(threadIdx.x); i < count * row; i += split_warps * 32) {
      const int key = first + i / row, d = i % row;
      const int64_t from = int64_t(table[key / cache_block]) * cache_block + key % cache_block;
      tile[i / row * stride + d] = static_cast<const T*>(a.cache)[from * row + d];
    }
    __syncthreads();
    if (!has_head) continue;
    float score = -INFINITY;
    if (lane < count) {
      score = 0;
      for (int d = 0; d < row; ++d)
        score = fmaf(query[d], element(tile + lane * stride + d), score);
    }
    const float now = fmaxf(top, warp_max(score)), fade = expf(top - now);
    const float p = expf(score - now);
    top = now, sum = fmaf(sum, fade, warp_sum(p));
#pragma unroll
    for (int i = 0; i < most_per_lane; ++i) latent[i] *= fade;
    for (int j = 0; j < count; ++j) {
      const float weight = __shfl_sync(~0u, p, j);
#pragma unroll
      for (int i = 0; i < most_per_lane; ++i)
        if (lane + 32 * i < a.L)
          latent[i] = fmaf(weight, element(tile + j * stride + lane + 32 * i), latent[i]);
    }
  }
  if (!has_head) return;
  float* part = a.part(n, h, split);
#pragma unroll
  for (int i = 0; i < most_per_lane; ++i)
    if (lane + 32 * i < a.L) part[lane + 32 * i] = latent[i];
  if (lane == 0) part[a.L] = top, part[a.L + 1] = sum;
}

template <class T>
__global__ void __launch_bounds__(128) latent_values(LatentCall a) {
  __shared__ float latent[most_absorbed];
  const int n = int(blockIdx.x), h = int(blockIdx.y), at = a.positions[n];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  T* y = static_cast<T*>(a.y) + (int64_t(n) * a.H + h) * a.v;
  if (at < 0) {
    const float zero[1] = {0};
    for (int i = int(threadIdx.x); i < a.v; i += 128) store_rounded(y + i, zero);
    return;
  }
  const int first = a.first_key(at) / split_keys, last = at / split_keys;
  float top = -INFINITY, sum = 0;
  for (int s = first; s <= last; ++s) top = fmaxf(top, a.part(n, h, s)[a.L]);
  for (int s = first; s <= last; ++s)
    sum = fmaf(a.part(n, h, s)[a.L + 1], expf(a.part(n, h, s)[a.L] - top), sum);
  for (int l = int(threadIdx.x); l < a.L; l += 128) {
    float total = 0;
    for (int s = first; s <= last; ++s)
      total = fmaf(a.part(n, h, s)[l], expf(a.part(n, h, s)[a.L] - top), total);
    latent[l] = total / sum;
  }
  __syncthreads();
  const T* w = static_cast<const T*>(a.w) + (int64_t(h) * (a.nope + a.v) + a.nope) * a.L;
  for (int i = warp; i < a.v; i += 4) {
    float total = 0;
    for (int l = lane; l < a.L; l += 32)
      total = fmaf(element(w + int64_t(i) * a.L + l), latent[l], total);
    const float out[1] = {warp_sum(total)};
    if (lane == 0) store_rounded(y + i, out);
  }
}

template <class T>
void launch_latent(LatentCall a, CudaStream& s) {
  const int bytes = tile_keys * tile_stride<T>(a.L + a.R) * int(sizeof(T)) +
                    split_warps * (a.L + a.R) * int(sizeof(float));
  check(cudaFuncSetAttribute(latent_splits<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "asking for shared memory");
  const dim3 heads(unsigned(a.N), unsigned(a.H));
  const dim3 splits(unsigned(a.N), unsigned(a.splits), unsigned(ceil_div(a.H, split_warps)));
  latent_queries<T><<<heads, 128, 0, s.handle>>>(a);
  latent_splits<T><<<splits, split_warps * 32, size_t(bytes), s.handle>>>(a);
  latent_values<T><<<heads, 128, 0, s.handle>>>(a);
  check_launch("attention_latent");
}

}  // namespace

void attention_latent(Stream& stream, const AttentionLatentArgs& args) {
  const LatentSpec& spec = args.spec;
  expect_dtypes("attention_latent", args.y.dtype, args.cache, args.q, args.w);
  CudaStream& s = on(stream);
  const int64_t N = args.y.shape[1], L = args.w.cols(), W = args.tables.cols();
  const int64_t splits = ceil_div((args.depth ? args.depth : W) * cache_block, split_keys);
  if (N == 0) return;
  const int64_t queries = round_up(N * spec.heads * (L + spec.rope), 64);
  float* memory = static_cast<float*>(
      s.scratch((queries + N * spec.heads * splits * (L + 2)) * int64_t(sizeof(float))));
  const LatentCall a{.y = args.y.data,
                     .cache = args.cache.data,
                     .q = args.q.data,
                     .w = args.w.data,
                     .positions = as<int32_t>(args.positions),
                     .sequences = as<int32_t>(args.sequences),
                     .tables = as<int32_t>(args.tables),
                     .queries = memory,
                     .parts = memory + queries,
                     .N = int(N),
                     .H = int(spec.heads),
                     .L = int(L),
                     .R = int(spec.rope),
                     .nope = int(spec.nope),
                     .v = int(spec.v),
                     .width = int(W),
                     .splits = int(splits),
                     .window = int(args.attn.window),
                     .scale = args.attn.scale};
  by_dtype("attention_latent", args.y, [&]<class T>(T*) { launch_latent<T>(a, s); });
}

}  // namespace hearth::cuda
