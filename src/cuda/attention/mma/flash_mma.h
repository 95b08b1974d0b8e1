// Launch arguments of the mma.sync attention kernels (and of the f32 forward kernel). One .cu file
// per padded head size and direction instantiates them, so that they compile in parallel.
#pragma once

#include "cuda/attention/attention.h"

namespace hearth::cuda {

struct FlashForward {
  // q (.., T, H, D), k (.., S, G, D), v (.., S, G, V) with the strides below, in elements
  const void *q, *k, *v;
  int64_t q_token, q_batch;  // from one token to the next, from one sequence to the next
  int64_t kv_token, kv_batch;
  void* y;                   // (B, T, H, V)
  float* lse;                // (B, H, T), or absent
  const float* slopes;       // (H), or absent
  const float* bias;         // (H, distances), or absent
  const int32_t* documents;  // (B, T), or absent
  const int32_t* first;      // (B, T / 64): first block of 64 keys that 64 queries may see
  const Scalars* scalars;
  int B, T, S, H, G, D, V;
  int distances;  // of the bias
  int window;     // INT_MAX: no limit
  float scale, softcap, dropout;
  uint32_t salt;
  bool general;  // anything other than causal masking and a window
  DType dtype;
};

struct FlashBackward {
  const void *qkv, *dy;
  void* dqkv;
  const float2* rows;  // (B, H, padded T): lse * log2(e), dy . y; 0 beyond T
  float* dq;           // partial sums of dQ, laid out by the thread that owns them
  int* turns;          // (B, H, blocks of queries): how many blocks of keys have been added to dq
  int* ticket;         // how many blocks have started
  int side_by_side;    // number of blocks guaranteed to run at the same time
  const float* slopes;
  const float* bias;
  float* bias_parts;  // (B, H, tiles, distances): receives the gradient of the bias, if present
  const int32_t* documents;
  const int32_t* first;  // as in FlashForward
  const Scalars* scalars;
  int B, T, H, G, D, V;
  int64_t token;  // elements of a token's q | k | v
  int distances;
  int window;
  float scale, softcap, dropout;
  uint32_t salt;
  bool general;
  DType dtype;
};

// Tokens per block: the unit of document ranges, of `first` and of padding.
constexpr int flash_block = 64;
constexpr int flash_blocks(int T) { return (T + flash_block - 1) / flash_block; }

// Head sizes with a kernel; a smaller head is padded with zeros in shared memory.
constexpr int flash_padded(int D) {
  return D <= 32 ? 32 : D <= 64 ? 64 : D <= 96 ? 96 : D <= 128 ? 128 : D <= 192 ? 192 : 256;
}

template <int D>
void flash_mma_forward(const FlashForward&, CudaStream&);
template <int D>
void flash_mma_backward(const FlashBackward&, CudaStream&);

// Queries per tile of the kernel that sums the gradient of the bias, for a padded head size;
// limited by shared memory.
constexpr int flash_bias_tile(int D) { return D <= 128 ? 64 : 32; }
void flash_mma_bias_backward(const FlashBackward&, CudaStream&);

// Calls f(std::integral_constant<int, D>) with the padded size for a head width D. The caller
// passes the wider of k and v; the narrower one is padded with zeros.
template <class F>
void by_head_size(int D, F&& f) {
  switch (flash_padded(D)) {
    case 32:
      return f(std::integral_constant<int, 32>());
    case 64:
      return f(std::integral_constant<int, 64>());
    case 96:
      return f(std::integral_constant<int, 96>());
    case 128:
      return f(std::integral_constant<int, 128>());
    case 192:
      return f(std::integral_constant<int, 192>());
    default:
      return f(std::integral_constant<int, 256>());
  }
}

// Any forward call: 16-bit, then f32.
void flash_mma_any(const FlashForward&, CudaStream&);
void attention_f32_any(const FlashForward&, CudaStream&);

// A call over packed qkv; `first` is not set.
FlashForward packed_forward(const AttnCall&);

}  // namespace hearth::cuda
