// What the mma.sync attention kernels (and the float ones, forward) are launched with. One .cu file
// per padded head size and direction instantiates them, so that they compile in parallel.
#pragma once

#include "cuda/attention/attention.h"

namespace hearth::cuda {

struct FlashForward {
  // (.., T, H, D), (.., S, G, D), (.., S, G, V) with the strides below, in elements
  const void *q, *k, *v;
  int64_t q_token, q_batch;  // from one token to the next, from one sequence to the next
  int64_t kv_token, kv_batch;
  void* y;                   // (B, T, H, V)
  float* lse;                // (B, H, T), or absent
  const float* slopes;       // (H), or absent
  const int32_t* documents;  // (B, T), or absent
  const int32_t* first;      // (B, T / 64): first block of 64 keys a block of 64 queries meets
  const Scalars* scalars;
  int B, T, S, H, G, D, V;
  int window;  // INT_MAX: no limit
  float scale, softcap, dropout;
  uint32_t salt;
  bool general;  // anything but causal and window
  DType dtype;
};

struct FlashBackward {
  const void *qkv, *dy;
  void* dqkv;
  const float2* rows;  // (B, H, padded T): lse * log2(e), dy . y; 0 beyond T
  float* dq;           // sums in the order of the threads that keep them
  int* turns;          // (B, H, blocks of queries): how many blocks of keys were added to dq
  int* ticket;         // how many blocks have begun
  int side_by_side;    // blocks sure to run at the same time
  const float* slopes;
  const int32_t* documents;
  const int32_t* first;  // as in FlashForward
  const Scalars* scalars;
  int B, T, H, G, D, V;
  int64_t token;  // elements of a token's q | k | v
  int window;
  float scale, softcap, dropout;
  uint32_t salt;
  bool general;
  DType dtype;
};

// Documents' block of tokens, and the unit of `first` and of padding.
constexpr int flash_block = 64;
constexpr int flash_blocks(int T) { return (T + flash_block - 1) / flash_block; }

// Head sizes the kernels are made for; a smaller head is padded with zeros in shared memory.
constexpr int flash_padded(int D) {
  return D <= 32 ? 32 : D <= 64 ? 64 : D <= 96 ? 96 : D <= 128 ? 128 : D <= 192 ? 192 : 256;
}

template <int D>
void flash_mma_forward(const FlashForward&, CudaStream&);
template <int D>
void flash_mma_backward(const FlashBackward&, CudaStream&);

// f(std::integral_constant<int, D>) for the padded size of a head: of the wider of k and v, the
// other of which has zeros in the columns that it lacks.
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

// Any forward call: 16-bit, f32.
void flash_mma_any(const FlashForward&, CudaStream&);
void attention_f32_any(const FlashForward&, CudaStream&);

// A call over packed qkv; `first` is left absent.
FlashForward packed_forward(const AttnCall&);

}  // namespace hearth::cuda
