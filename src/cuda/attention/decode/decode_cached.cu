// Attention over a paged cache: chooses the kernels of a step. Few rows use split-KV
// (decode_split_kv), many rows one block each (decode_rows); the rows of a long prompt share their
// keys and use flash_mma_paged. If heads of v are not as wide as those of k, only flash_mma's
// kernels run, or decode_f32 below in fp32. What a launch does depends only on device memory, so
// one graph serves every batch of its size.
#include <algorithm>
#include <climits>

#include "cuda/attention/attention_kernels.h"
#include "cuda/attention/decode/decode_keys_fp8.cuh"
#include "cuda/attention/decode/decode_row.cuh"
#include "cuda/attention/decode/decode_rows.h"
#include "cuda/attention/decode/decode_split_kv.h"
#include "cuda/attention/mma/flash_mma_paged.h"
#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"

namespace hearth::cuda {
namespace {

constexpr int most_rows_stored = 128;  // rows that reading blocks store: at most their threads

// Copies a token's k and v from qkv, where they follow `before` units of q, to their block of the
// cache: heads of k of `k_head` units each, then as many of v of `v_head`.
template <class Unit>
__global__ void store_new(Unit* cache, const Unit* qkv, const int32_t* positions,
                          const int32_t* sequences, const int32_t* tables, int width, int before,
                          int heads, int k_head, int v_head) {
  const int64_t row = blockIdx.x;
  const int at = positions[row], keys = heads * k_head, units = keys + heads * v_head;
  const int64_t block = tables[int64_t(sequences[row]) * width + max(at, 0) / block_tokens];
  let_next_start();
  wait_for_previous();
  if (at < 0) return;
  for (int i = int(threadIdx.x); i < units; i += int(blockDim.x)) {
    const bool of_v = i >= keys;
    const int own = of_v ? i - keys : i, head = of_v ? v_head : k_head;
    Unit* panel = cache + (block * units + (of_v ? keys : 0) + own / head * head) * block_tokens;
    panel[at % block_tokens * head + own % head] = qkv[row * (before + units) + before + i];
  }
}

// Decoding in fp32 with heads of k and v of different widths, which no other kernel supports. One
// warp per row and query head iterates over the keys in order. All keys must already be stored.
__global__ void decode_f32(Decode a) {
  constexpr int most = 256 / 32;  // columns of v per lane
  const int lane = int(threadIdx.x), row = int(blockIdx.x), h = int(blockIdx.y);
  const int g = h / (a.H / a.G), at = a.positions[row];
  const int64_t k_panel = int64_t(block_tokens) * a.D, v_panel = int64_t(block_tokens) * a.V;
  const int64_t block = a.G * (k_panel + v_panel), token = int64_t(a.H + a.G) * a.D + a.G * a.V;
  const float* q = static_cast<const float*>(a.qkv) + row * token + h * a.D;
  const float* cache = static_cast<const float*>(a.cache);
  const int32_t* table = a.tables + int64_t(a.sequence_of(row)) * a.width;
  float top = -INFINITY, sum = 0, y[most] = {};
  for (int j = at < a.window ? 0 : at - a.window + 1; j <= at; ++j) {
    const float* from = cache + table[j / block_tokens] * block;
    const float* k = from + g * k_panel + j % block_tokens * a.D;
    const float* v = from + a.G * k_panel + g * v_panel + j % block_tokens * a.V;
    float s = 0;
    for (int d = lane; d < a.D; d += 32) s = fmaf(q[d], k[d], s);
    for (int step = 1; step < 32; step *= 2) s += __shfl_xor_sync(~0u, s, step);
    s *= a.scale;
    if (a.softcap > 0) s = a.softcap * tanhf(s / a.softcap);
    if (a.slopes) s -= a.slopes[h] * float(at - j);
    s += bias_at(a.bias_of(h), a.distances, at - j);
    const float now = fmaxf(top, s), fade = expf(top - now), p = expf(s - now);
    top = now, sum = fmaf(sum, fade, p);
#pragma unroll
    for (int i = 0; i < most; ++i)
      if (lane + 32 * i < a.V) y[i] = fmaf(p, v[lane + 32 * i], y[i] * fade);
  }
  float* out = static_cast<float*>(a.y) + (int64_t(row) * a.H + h) * a.V;
#pragma unroll
  for (int i = 0; i < most; ++i)
    if (lane + 32 * i < a.V) out[lane + 32 * i] = at < 0 ? 0 : y[i] / sum;
}

// Whether one block per row, over all its keys, makes enough blocks to hide latency.
bool rows_fill(const Card& card, const Decode& a) {
  return decode_rows_takes(a.D) &&
         a.N * a.G * ceil_div(a.H / a.G, decode_rows_heads) >= card.enough_blocks();
}

template <class T>
void decode(Decode a, bool fp8, CudaStream& stream) {
  if (fp8) return decode_pieces<T, uint8_t>(a, stream);
  if constexpr (sizeof(T) == 2)
    if (rows_fill(stream.card, a)) {
      a.piece = a.width * block_tokens, a.pieces = 1;
      return decode_rows<T>(a, stream);
    }
  decode_pieces<T, T>(a, stream);
}

template <class T>
void launch_store_codes(const Decode& a, Tensor cache, Tensor qkv, CudaStream& stream) {
  by_lanes(a.D, [&](auto lanes) {
    store_new_codes<T, lanes><<<unsigned(a.N), 128, 0, stream.handle>>>(
        cache.as<uint8_t>(), qkv.as<const T>(), a.positions, a.sequences, a.tables, a.width, a.H,
        2 * a.G, a.D);
  });
  check_launch("attention_cached");
}

template <class Unit>
void launch_store(const Decode& a, Tensor cache, Tensor qkv, CudaStream& stream) {
  const auto units_of = [&](int64_t width) {
    return int(width * size_of(qkv.dtype) / int64_t(sizeof(Unit)));
  };
  const int k = units_of(a.D), v = units_of(a.V), units = a.G * (k + v);
  launch_dependent(stream, store_new<Unit>, unsigned(a.N),
                   unsigned(std::min(256, (units + 31) / 32 * 32)), cache.as<Unit>(),
                   qkv.as<const Unit>(), a.positions, a.sequences, a.tables, a.width, a.H * k, a.G,
                   k, v);
  check_launch("attention_cached");
}

FlashPaged paged_call(const Decode& a, DType dtype, bool fp8) {
  const int64_t size = fp8 ? 1 : size_of(dtype);
  FlashPaged p{};
  p.k_head = int64_t(block_tokens) * (a.D + fp8), p.v_head = int64_t(block_tokens) * (a.V + fp8);
  p.call.q = a.qkv, p.call.q_token = int64_t(a.H + a.G) * a.D + a.G * a.V;
  p.call.k = a.cache, p.call.v = static_cast<const char*>(a.cache) + a.G * p.k_head * size;
  p.call.y = a.y, p.call.slopes = a.slopes;
  p.call.bias = a.bias, p.call.distances = a.distances;
  p.call.B = 1, p.call.T = a.N, p.call.H = a.H, p.call.G = a.G;
  p.call.D = a.D, p.call.V = a.V;
  p.call.window = a.window, p.call.scale = a.scale, p.call.softcap = a.softcap;
  p.call.dtype = dtype;
  p.positions = a.positions, p.sequences = a.sequences, p.tables = a.tables;
  p.width = a.width, p.block = a.G * (p.k_head + p.v_head), p.fp8 = fp8;
  return p;
}

void long_runs(const Decode& a, DType dtype, bool fp8, CudaStream& stream) {
  by_head_size(std::max(a.D, a.V),
               [&](auto D) { flash_mma_paged<D>(paged_call(a, dtype, fp8), stream); });
}

// The remaining rows, with the bits of training.
void other_rows_invariant(const Decode& a, DType dtype, CudaStream& stream) {
  by_head_size(std::max(a.D, a.V), [&](auto D) {
    flash_mma_rows<D>(paged_call(a, dtype, false), !a.leaves_runs, stream);
  });
}

void other_rows_f32(const Decode& a, CudaStream& stream) {
  decode_f32<<<dim3(unsigned(a.N), unsigned(a.H)), 32, 0, stream.handle>>>(a);
  check_launch("attention_cached");
}

}  // namespace

void attention_cached(Stream& on_stream, const AttentionCachedArgs& args) {
  const AttnSpec& spec = args.spec;
  CudaStream& stream = on(on_stream);
  const Tensor qkv = packed_qkv_of(args);
  const DType dtype = qkv.dtype;
  if (args.y.dtype != dtype) refuse_dtypes("attention_cached", dtype, args.y.dtype);
  const bool fp8 = args.cache.dtype == DType::u8;
  if (!fp8 && args.cache.dtype != dtype) refuse_dtypes("attention_cached", dtype, args.cache.dtype);
  const int64_t N = args.y.shape[1], D = args.q.layout.width, V = args.v.layout.width;
  check_head_size("attention_cached", dtype, D, V);
  const bool leaves_runs = dtype != DType::f32 && N > most_rows_by_pieces && !spec.apart;
  // The backend refuses these beforehand: Backend::refuses_cache.
  if ((stream.invariant || D != V) && fp8) refuse_dtype("attention_cached", args.cache.dtype);
  if (stream.invariant && dtype == DType::f32) refuse_dtype("attention_cached", dtype);
  const bool by_readers =
      !stream.invariant && D == V && (spec.apart || (N <= most_rows_stored && !leaves_runs));
  const Decode a{.qkv = qkv.data,
                 .cache = args.cache.data,
                 .y = args.y.data,
                 .new_cache = by_readers ? args.cache.data : nullptr,
                 .slopes = args.slopes.as<const float>(),
                 .bias = args.bias.as<const float>(),
                 .positions = args.positions.as<const int32_t>(),
                 .sequences = args.sequences.as<const int32_t>(),
                 .tables = args.tables.as<const int32_t>(),
                 .N = int(N),
                 .H = int(args.q.layout.heads),
                 .G = int(args.k.layout.heads),
                 .D = int(D),
                 .piece = 0,
                 .pieces = 0,
                 .width = int(args.tables.shape[1]),
                 .window = spec.window > 0 ? int(spec.window) : INT_MAX,
                 .depth = int(args.depth ? args.depth : args.tables.shape[1]),
                 .V = int(V),
                 .distances = args.bias ? int(args.bias.cols()) : 0,
                 .scale = spec.scale,
                 .softcap = spec.softcap,
                 .leaves_runs = leaves_runs,
                 .apart = spec.apart};
  const auto by_dtype = [&](const auto& f) {
    if (dtype == DType::f32)
      f(float());
    else if (dtype == DType::bf16)
      f(__nv_bfloat16());
    else
      f(__half());
  };
  // If by_readers, the blocks that read a row also store its own keys.
  if (!by_readers && fp8)
    by_dtype([&]<class T>(T) { launch_store_codes<T>(a, args.cache, qkv, stream); });
  else if (!by_readers && D * size_of(dtype) % 16 == 0 && V * size_of(dtype) % 16 == 0)
    launch_store<uint4>(a, args.cache, qkv, stream);
  else if (!by_readers)
    launch_store<uint16_t>(a, args.cache, qkv, stream);
  if (a.leaves_runs) long_runs(a, dtype, fp8, stream);
  if (D != V && dtype == DType::f32) return other_rows_f32(a, stream);
  if (stream.invariant || D != V) return other_rows_invariant(a, dtype, stream);
  by_dtype([&]<class T>(T) { decode<T>(a, fp8, stream); });
}

}  // namespace hearth::cuda
