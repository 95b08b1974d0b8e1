// Attention over a paged cache: which kernels a step takes. Few rows are decoded piece by piece
// (decode_split_kv), many by a block each (decode_rows); rows of a long prompt share their keys
// and go through flash_mma_paged. Nothing but device memory decides what a launch does, so one
// graph serves every batch of its size.
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

constexpr int most_rows_stored = 128;  // by the blocks that read them: no more than their threads

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

// Whether blocks of a row and all its keys are many enough to hide each other's waiting.
bool rows_fill(const Card& card, const Decode& a) {
  return decode_rows_takes(a.D) &&
         a.N * a.G * ceil_div(a.H / a.G, decode_rows_heads) >= 2 * card.processors;
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
  const int64_t size = size_of(qkv.dtype);
  const int head = int(a.D * size / int64_t(sizeof(Unit))), units = 2 * a.G * head;
  store_new<<<unsigned(a.N), unsigned(std::min(256, (units + 31) / 32 * 32)), 0, stream.handle>>>(
      cache.as<Unit>(), qkv.as<const Unit>(), a.positions, a.sequences, a.tables, a.width,
      a.H * head, 2 * a.G, head);
  check_launch("attention_cached");
}

FlashPaged paged_call(const Decode& a, DType dtype, bool fp8) {
  const int64_t size = fp8 ? 1 : size_of(dtype), panel = int64_t(block_tokens) * (a.D + fp8);
  FlashPaged p{};
  p.call.q = a.qkv, p.call.q_token = int64_t(a.H + 2 * a.G) * a.D;
  p.call.k = a.cache, p.call.v = static_cast<const char*>(a.cache) + a.G * panel * size;
  p.call.y = a.y, p.call.slopes = a.slopes;
  p.call.B = 1, p.call.T = a.N, p.call.H = a.H, p.call.G = a.G, p.call.D = a.D;
  p.call.window = a.window, p.call.scale = a.scale, p.call.softcap = a.softcap;
  p.call.dtype = dtype;
  p.positions = a.positions, p.sequences = a.sequences, p.tables = a.tables;
  p.width = a.width, p.block = 2 * a.G * panel, p.head = panel, p.fp8 = fp8;
  return p;
}

void long_runs(const Decode& a, DType dtype, bool fp8, CudaStream& stream) {
  by_head_size(a.D, [&](auto D) { flash_mma_paged<D>(paged_call(a, dtype, fp8), stream); });
}

// What is left, with the bits that training would have.
void other_rows_invariant(const Decode& a, DType dtype, CudaStream& stream) {
  by_head_size(
      a.D, [&](auto D) { flash_mma_rows<D>(paged_call(a, dtype, false), !a.leaves_runs, stream); });
}

}  // namespace

void attention_cached(Stream& on_stream, const AttentionCachedArgs& args) {
  const AttnSpec& spec = args.spec;
  CudaStream& stream = on(on_stream);
  if (args.y.dtype != args.qkv.dtype)
    refuse_dtypes("attention_cached", args.qkv.dtype, args.y.dtype);
  const bool fp8 = args.cache.dtype == DType::u8;
  if (!fp8 && args.cache.dtype != args.qkv.dtype)
    refuse_dtypes("attention_cached", args.qkv.dtype, args.cache.dtype);
  check_head_size("attention_cached", args.qkv.dtype, spec);
  const int64_t N = args.qkv.shape[1];
  const bool leaves_runs = args.qkv.dtype != DType::f32 && N > most_rows_by_pieces && !spec.apart;
  if (stream.invariant && (fp8 || args.qkv.dtype == DType::f32))  // the backend says so beforehand
    refuse_dtype("attention_cached", fp8 ? args.cache.dtype : args.qkv.dtype);
  const bool by_readers =
      !stream.invariant && (spec.apart || (N <= most_rows_stored && !leaves_runs));
  const Decode a{.qkv = args.qkv.data,
                 .cache = args.cache.data,
                 .y = args.y.data,
                 .new_cache = by_readers ? args.cache.data : nullptr,
                 .parts = nullptr,
                 .tickets = nullptr,
                 .slopes = args.slopes.as<const float>(),
                 .positions = args.positions.as<const int32_t>(),
                 .sequences = args.sequences.as<const int32_t>(),
                 .tables = args.tables.as<const int32_t>(),
                 .N = int(N),
                 .H = int(spec.heads),
                 .G = int(spec.kv_heads),
                 .D = int(spec.head_dim),
                 .piece = 0,
                 .pieces = 0,
                 .width = int(args.tables.shape[1]),
                 .window = spec.window > 0 ? int(spec.window) : INT_MAX,
                 .scale = spec.scale,
                 .softcap = spec.softcap,
                 .leaves_runs = leaves_runs,
                 .apart = spec.apart};
  const auto by_dtype = [&](const auto& f) {
    if (args.qkv.dtype == DType::f32)
      f(float());
    else if (args.qkv.dtype == DType::bf16)
      f(__nv_bfloat16());
    else
      f(__half());
  };
  // Otherwise each row's own keys are stored by the blocks that read them.
  if (!by_readers && fp8)
    by_dtype([&]<class T>(T) { launch_store_codes<T>(a, args.cache, args.qkv, stream); });
  else if (!by_readers && a.D * size_of(args.qkv.dtype) % 16 == 0)
    launch_store<uint4>(a, args.cache, args.qkv, stream);
  else if (!by_readers)
    launch_store<uint16_t>(a, args.cache, args.qkv, stream);
  if (a.leaves_runs) long_runs(a, args.qkv.dtype, fp8, stream);
  if (stream.invariant) return other_rows_invariant(a, args.qkv.dtype, stream);
  by_dtype([&]<class T>(T) { decode<T>(a, fp8, stream); });
}

}  // namespace hearth::cuda
