// Flash attention backward for Hopper: the pass over dY and Y before the main kernel, and launches.
#include <algorithm>

#include "cuda/attention/documents.cuh"
#include "cuda/attention/hopper/flash_hopper_bwd_kernel.cuh"

namespace hearth::cuda {
namespace {

using namespace flash_bwd;

constexpr int stat_tokens = 32;  // per block of `row_stats`: 8 lanes each

struct StatParams {
  const void *y, *dy;
  const float* lse;          // (B, H, T)
  const int32_t* documents;  // (B, T)
  float* stat;               // Params::stat
  int* zeros;                // counters to clear
  int zero_count;
  float* sums;  // sums to clear; may be null
  int64_t sum_count;
  int T, H, padded;  // T rounded up to whole query tiles
};

template <class T>
__device__ __forceinline__ float dot8(const uint4& a, const uint4& b) {
  using T2 = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  float sum = 0;
  const T2 *x = reinterpret_cast<const T2*>(&a), *y = reinterpret_cast<const T2*>(&b);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 u, v;
    if constexpr (std::is_same_v<T, __half>) {
      u = __half22float2(x[i]);
      v = __half22float2(y[i]);
    } else {
      u = __bfloat1622float2(x[i]);
      v = __bfloat1622float2(y[i]);
    }
    sum = fmaf(u.y, v.y, fmaf(u.x, v.x, sum));
  }
  return sum;
}

// lse * log2(e) and delta = dy . y of each row, tile by tile. Rows beyond T get an infinite lse,
// which makes their probabilities 0. Reads 4 * B * T * H * D bytes.
template <class T, class S>
__global__ void __launch_bounds__(256) row_stats(const StatParams p) {
  constexpr int stats = Layout<S>::stats, chunks = S::D / 64;
  const int group = threadIdx.x / 8, lane = threadIdx.x % 8;
  const int t = blockIdx.y * stat_tokens + group, b = blockIdx.x;
  for (int i = (blockIdx.y * gridDim.x + b) * 256 + threadIdx.x; i < p.zero_count;
       i += gridDim.x * gridDim.y * 256)
    p.zeros[i] = 0;
  if (p.sums)
    for (int64_t i = (blockIdx.y * gridDim.x + b) * 256 + threadIdx.x; i < p.sum_count;
         i += gridDim.x * gridDim.y * 256)
      p.sums[i] = 0;
  const bool real = t < p.T;
  const int64_t row = int64_t(b) * p.T + (real ? t : 0);
  const uint4* y = static_cast<const uint4*>(p.y) + row * p.H * (S::D / 8) + lane;
  const uint4* dy = static_cast<const uint4*>(p.dy) + row * p.H * (S::D / 8) + lane;
#pragma unroll 4
  for (int h = 0; h < p.H; ++h) {
    float delta = 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int at = h * (S::D / 8) + 8 * c;
      delta += dot8<T>(y[at], dy[at]);
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
    if (lane > 1 || t >= p.padded) continue;
    const int64_t head = int64_t(b) * p.H + h;
    float* out = p.stat + (head * p.padded + t / S::M * S::M) * stats + t % S::M;
    if (lane == 0) {
      out[0] = real ? p.lse[head * p.T + t] * log2e : INFINITY;
      out[S::M] = real ? delta : 0;
    } else if constexpr (S::documents) {
      out[2 * S::M] = real ? __int_as_float(p.documents[row]) : 0;
    }
  }
}

// Fills the tables used to skip tiles of other documents. One block per sequence.
template <class S>
__global__ void __launch_bounds__(1024)
    document_bounds(int2* ranges, int* first, int* last, const __grid_constant__ Params p) {
  const int b = blockIdx.x, tiles = p.k_tiles * (keys / S::M);
  ranges += b * tiles;
  first += b * p.q_tiles;
  last += b * p.k_tiles;
  for (int tile = threadIdx.x / 32; tile < tiles; tile += 32) {
    const int2 range =
        document_range(p.documents + int64_t(b) * p.T, tile * S::M, min(p.T, tile * S::M + S::M));
    if (threadIdx.x % 32 == 0) ranges[tile] = range;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.q_tiles; i += 1024) {
    int tile = max(0, i * S::M - p.window + 1) / keys;
    while (!documents_meet<S>(p, b, i, tile)) ++tile;
    first[i] = tile;
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < p.k_tiles; tile += 1024) {
    int i = p.q_tiles - 1;
    while (first[i] > tile) --i;
    last[tile] = i;
  }
}

// Like head_tile_map, with boxes of one panel of 64 columns.
CUtensorMap head_panel_map(const void* x, DType dtype, int B, int T, int heads, int D, int rows) {
  const auto type =
      dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t head = cuuint64_t(D) * 2, token = head * cuuint64_t(heads);
  return tensor_map(
      {.data = x,
       .type = type,
       .dims = 5,
       .size = {64, cuuint64_t(T), cuuint64_t(D / 64), cuuint64_t(heads), cuuint64_t(B)},
       .stride = {token, 128, head, token * cuuint64_t(T)},
       .box = {64, cuuint32_t(rows), 1, 1, 1}});
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int rounds(int64_t n, int64_t by) { return int((n + by - 1) / by); }

// Parts of the scratch memory, as byte offsets.
struct Scratch {
  int64_t stat, dq, turn, ranges, first, last, bytes;
  int counters;  // turns, followed by next_item
};

// With codes a pass before the main one measures the scale; each has its own counters.
template <class S>
constexpr int passes = S::codes ? 2 : 1;

template <class S>
Scratch plan(const Params& p) {
  Scratch s{};
  const int64_t halves = int64_t(p.slots) * p.q_tiles * 2;
  s.counters = int(halves) + 1;
  s.dq = aligned(int64_t(p.B) * p.H * p.q_tiles * Layout<S>::stat_bytes);
  s.turn = s.dq + halves * Layout<S>::half_bytes;
  s.ranges = s.turn + aligned(passes<S> * s.counters * 4);
  s.first = s.ranges + (S::documents ? aligned(int64_t(p.B) * p.k_tiles * (keys / S::M) * 8) : 0);
  s.last = s.first + (S::documents ? aligned(int64_t(p.B) * p.q_tiles * 4) : 0);
  s.bytes = s.last + (S::documents ? aligned(int64_t(p.B) * p.k_tiles * 4) : 0);
  return s;
}

template <class S>
Params make_params(const AttnCall& c, const CudaStream& stream) {
  Params p{};
  p.B = c.B;
  p.T = c.T;
  p.H = c.H;
  p.G = c.G;
  p.R = c.H / c.G;
  const int heads = c.H + 2 * c.G;
  p.q = head_tile_map(c.qkv, c.dtype, c.B, c.T, heads, c.D, S::M);
  p.kv = head_tile_map(c.qkv, c.dtype, c.B, c.T, heads, c.D, keys);
  p.dy = head_tile_map(c.dy, c.dtype, c.B, c.T, c.H, c.D, S::M);
  p.documents = c.documents;
  p.q_tiles = rounds(c.T, S::M);
  p.k_tiles = rounds(c.T, keys);
  p.items = c.B * c.G * p.k_tiles;
  // There are dQ sums for twice the heads that blocks work on at a time, so that they stay in L2.
  const int groups = std::min(c.B * c.G, 2 * (stream.card.processors / p.k_tiles + 2));
  p.slots = groups * p.R;
  p.window = c.window > 0 ? std::min(c.window, INT_MAX / 2) : INT_MAX / 2;
  p.scale = c.scale;
  p.leaders = stream.racecheck ? 32 : 1;
  return p;
}

template <class T, class S>
void launch(AttnCall& c, CudaStream& stream) {
  Params p = make_params<S>(c, stream);
  const Scratch parts = plan<S>(p);
  char* memory = backward_scratch(c, stream, parts.bytes);
  if constexpr (S::codes)
    p.to = Fp8Target(*c.fp8, int64_t(c.B) * c.T);
  else
    p.out = head_panel_map(c.dqkv, c.dtype, c.B, c.T, c.H + 2 * c.G, c.D, 64);
  float* stat = reinterpret_cast<float*>(memory);
  int2* ranges = reinterpret_cast<int2*>(memory + parts.ranges);
  int* first = reinterpret_cast<int*>(memory + parts.first);
  int* last = reinterpret_cast<int*>(memory + parts.last);
  p.stat = stat;
  p.dq = reinterpret_cast<float*>(memory + parts.dq);
  p.turn = reinterpret_cast<int*>(memory + parts.turn);
  p.ranges = ranges;
  p.first_tile = first;
  p.last_query = last;

  const int padded = p.q_tiles * S::M;
  row_stats<T, S><<<dim3(c.B, rounds(padded, stat_tokens)), 256, 0, stream.handle>>>(
      {c.y, c.dy, c.lse, c.documents, stat, p.turn, passes<S> * parts.counters, p.to.sums,
       S::codes ? ceil_div(p.to.R, fp8_sum_rows) * p.to.C : 0, c.T, c.H, padded});
  check_launch("flash_hopper_bwd: row_stats");
  if constexpr (S::documents) {
    document_bounds<S><<<c.B, 1024, 0, stream.handle>>>(ranges, first, last, p);
    check_launch("flash_hopper_bwd: document_bounds");
  }
  const auto kernel = flash_bwd_kernel<T, S>;
  constexpr int bytes = Layout<S>::bytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "flash_hopper_bwd: shared memory");
  const int blocks = std::min(p.items, stream.card.processors);
  for (int pass = 0; pass < passes<S>; ++pass, p.turn += parts.counters) {
    p.next_item = p.turn + parts.counters - 1;
    p.measure_only = pass + 1 < passes<S>;
    kernel<<<blocks, Layout<S>::threads, bytes, stream.handle>>>(p);
    check_launch("flash_hopper_bwd");
  }
}

template <class T>
void by_shape(AttnCall& c, CudaStream& stream) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    if (c.fp8)
      return c.documents ? launch<T, Shape<64, true, true>>(c, stream)
                         : launch<T, Shape<64, false, true>>(c, stream);
  if (c.D == 64 && c.documents)
    launch<T, Shape<64, true>>(c, stream);
  else if (c.D == 64)
    launch<T, Shape<64, false>>(c, stream);
  else if (c.documents)
    launch<T, Shape<128, true>>(c, stream);
  else
    launch<T, Shape<128, false>>(c, stream);
}

}  // namespace

bool flash_hopper_bwd_takes(const AttnCall& c) {
  return (c.D == 64 || c.D == 128) && c.V == c.D &&
         (c.dtype == DType::bf16 || c.dtype == DType::f16) && c.softcap == 0 && c.dropout == 0 &&
         !c.slopes && !c.bias && c.H % c.G == 0;
}

bool flash_hopper_bwd_takes_fp8(const AttnCall& c, const Fp8Output& to) {
  return flash_hopper_bwd_takes(c) && c.dtype == DType::bf16 && c.D == 64 && !c.dqkv &&
         c.T % fp8_sum_rows == 0 && to.dtype() == DType::e5m2;
}

void flash_hopper_bwd(AttnCall& c, CudaStream& stream) {
  if (c.dtype == DType::f16)
    by_shape<__half>(c, stream);
  else
    by_shape<__nv_bfloat16>(c, stream);
}

}  // namespace hearth::cuda
