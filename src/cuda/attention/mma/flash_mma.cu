// Attention with mma.sync: prepares the inputs of its kernels and launches them.
#include "cuda/attention/mma/flash_mma.h"

#include <algorithm>
#include <climits>

#include "cuda/attention/documents.cuh"
#include "cuda/attention/mma/flash_mma_score.cuh"
#include "cuda/device/mma.cuh"

namespace hearth::cuda {
namespace {

static_assert(flash_block == document_block);

// first (B, blocks): the first block of keys with a document that a block of queries may see.
__global__ void first_blocks(int32_t* first, const int2* ranges, int count, int blocks) {
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= count) return;
  const int2 mine = ranges[at];
  const int2* keys = ranges + at / blocks * blocks;
  int n = 0;
  while (keys[n].x > mine.y || keys[n].y < mine.x) ++n;  // stops at the block itself at the latest
  first[at] = n;
}

// rows (B, H, padded T): lse in base 2, and dy . y over heads of width D. Eight lanes per row;
// reads 4 * B * T * H * D bytes.
template <class T>
__global__ void row_sums(float2* rows, const T* dy, const T* y, const float* lse, int64_t count,
                         int T_, int padded, int H, int D) {
  const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 8;  // (b, t, h)
  const bool real = at < count;
  const int h = int(at % H), t = int(at / H % padded);
  const int64_t b = at / H / padded, from = ((b * T_ + t) * H + h) * D;
  float sum = 0;
  if (real && t < T_)
    for (int c = int(threadIdx.x) % 8 * 8; c < D; c += 64) {
      const uint4 u = *reinterpret_cast<const uint4*>(dy + from + c);
      const uint4 v = *reinterpret_cast<const uint4*>(y + from + c);
      const uint32_t us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 p = unpack(us[i], T()), q = unpack(vs[i], T());
        sum = fmaf(p.x, q.x, fmaf(p.y, q.y, sum));
      }
    }
  for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (real && threadIdx.x % 8 == 0) {
    const float scaled = t < T_ ? lse[(b * H + h) * T_ + t] * log2_e : 0.0f;
    rows[(b * H + h) * padded + t] = {scaled, sum};
  }
}

void find_first_blocks(int32_t* first, int2* ranges, const AttnCall& c, CudaStream& stream) {
  const int blocks = flash_blocks(c.T), count = c.B * blocks;
  find_document_ranges(ranges, c, stream);
  first_blocks<<<unsigned((count + 127) / 128), 128, 0, stream.handle>>>(first, ranges, count,
                                                                         blocks);
  check_launch("first_blocks");
}

// Parts of one scratch allocation, each aligned to 256 bytes.
struct Pieces {
  int64_t bytes = 0;
  int64_t take(int64_t n) {
    const int64_t at = bytes;
    bytes += (n + 255) / 256 * 256;
    return at;
  }
};

bool general(const AttnCall& c) {
  return c.slopes || c.bias || c.documents || c.softcap > 0 || c.dropout > 0;
}

int window_of(const AttnCall& c) { return c.window > 0 ? c.window : INT_MAX; }

template <class T>
void launch_row_sums(float2* rows, const AttnCall& c, CudaStream& stream) {
  const int padded = flash_blocks(c.T) * flash_block;
  const int64_t count = int64_t(c.B) * padded * c.H;
  row_sums<T><<<unsigned((count * 8 + 255) / 256), 256, 0, stream.handle>>>(
      rows, static_cast<const T*>(c.dy), static_cast<const T*>(c.y), c.lse, count, c.T, padded, c.H,
      c.V);
  check_launch("row_sums");
}

}  // namespace

void flash_mma_any(const FlashForward& a, CudaStream& stream) {
  by_head_size(std::max(a.D, a.V), [&](auto D) { flash_mma_forward<D>(a, stream); });
}

FlashForward packed_forward(const AttnCall& c) {
  const auto at = [&](int head) {
    return static_cast<const char*>(c.qkv) + int64_t(head) * c.D * size_of(c.dtype);
  };
  return {.q = at(0),
          .k = at(c.H),
          .v = at(c.H + c.G),
          .q_token = c.token,
          .q_batch = c.token * c.T,
          .kv_token = c.token,
          .kv_batch = c.token * c.T,
          .y = c.y,
          .lse = c.lse,
          .slopes = c.slopes,
          .bias = c.bias,
          .documents = c.documents,
          .first = nullptr,
          .scalars = c.scalars,
          .B = c.B,
          .T = c.T,
          .S = c.T,
          .H = c.H,
          .G = c.G,
          .D = c.D,
          .V = c.V,
          .distances = c.distances,
          .window = window_of(c),
          .scale = c.scale,
          .softcap = c.softcap,
          .dropout = c.dropout,
          .salt = c.salt,
          .general = general(c),
          .dtype = c.dtype};
}

void flash_mma(const AttnCall& c, CudaStream& stream) {
  FlashForward a = packed_forward(c);
  if (c.documents) {
    Pieces pieces;
    const int64_t blocks = int64_t(c.B) * flash_blocks(c.T);
    const int64_t first_at = pieces.take(blocks * 4), ranges_at = pieces.take(blocks * 8);
    char* memory = static_cast<char*>(stream.scratch(pieces.bytes));
    int32_t* first = reinterpret_cast<int32_t*>(memory + first_at);
    find_first_blocks(first, reinterpret_cast<int2*>(memory + ranges_at), c, stream);
    a.first = first;
  }
  flash_mma_any(a, stream);
}

void flash_mma_bwd(AttnCall& c, CudaStream& stream) {
  Pieces pieces;
  const int64_t blocks = flash_blocks(c.T), padded = blocks * flash_block;
  const int64_t heads = int64_t(c.B) * c.H, documents = c.documents ? c.B * blocks : 0;
  const int width = flash_padded(std::max(c.D, c.V));
  const int bias_tiles = int(ceil_div(c.T, flash_bias_tile(width)));
  // There is a turn counter for every 16 queries, the smallest tile; turns and ticket start at 0.
  const int64_t counters = (1 + heads * padded / 16) * 4;
  const int64_t counters_at = pieces.take(counters), rows_at = pieces.take(heads * padded * 8),
                dq_at = pieces.take(heads * padded * width * 4),
                bias_at = pieces.take(bias_part_bytes(c, bias_tiles)),
                first_at = pieces.take(documents * 4), ranges_at = pieces.take(documents * 8);
  char* memory = backward_scratch(c, stream, pieces.bytes);
  int* ticket = reinterpret_cast<int*>(memory + counters_at);
  float2* rows = reinterpret_cast<float2*>(memory + rows_at);
  if (c.dbias) c.bias_parts = reinterpret_cast<float*>(memory + bias_at);
  int32_t* first = c.documents ? reinterpret_cast<int32_t*>(memory + first_at) : nullptr;

  check(cudaMemsetAsync(ticket, 0, size_t(counters), stream.handle), "clearing turns");
  if (c.dtype == DType::bf16)
    launch_row_sums<__nv_bfloat16>(rows, c, stream);
  else
    launch_row_sums<__half>(rows, c, stream);
  if (first) find_first_blocks(first, reinterpret_cast<int2*>(memory + ranges_at), c, stream);
  const FlashBackward a{.qkv = c.qkv,
                        .dy = c.dy,
                        .dqkv = c.dqkv,
                        .rows = rows,
                        .dq = reinterpret_cast<float*>(memory + dq_at),
                        .turns = ticket + 1,
                        .ticket = ticket,
                        // half, in case kernels of another stream occupy some multiprocessors
                        .side_by_side = stream.card.processors / 2,
                        .slopes = c.slopes,
                        .bias = c.bias,
                        .bias_parts = c.bias_parts,
                        .documents = c.documents,
                        .first = first,
                        .scalars = c.scalars,
                        .B = c.B,
                        .T = c.T,
                        .H = c.H,
                        .G = c.G,
                        .D = c.D,
                        .V = c.V,
                        .token = c.token,
                        .distances = c.distances,
                        .window = window_of(c),
                        .scale = c.scale,
                        .softcap = c.softcap,
                        .dropout = c.dropout,
                        .salt = c.salt,
                        .general = general(c),
                        .dtype = c.dtype};
  by_head_size(std::max(c.D, c.V), [&](auto D) { flash_mma_backward<D>(a, stream); });
  if (!c.dbias) return;
  flash_mma_bias_backward(a, stream);
  add_bias_parts(c, bias_tiles, stream);
}

}  // namespace hearth::cuda
