// Flash attention on CUDA: the call its implementations share. `flash_mma` runs on any GPU from
// Ampere on (mma.sync, cp.async), `flash_hopper` on Hopper (wgmma, TMA); `attention_f32` computes
// in plain fp32. Masks and positions are those of AttentionArgs.
#pragma once

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct AttnCall {
  // qkv, dqkv (B, T, token) packed q | k | v; y, dy (B, T, H, V); lse, delta (B, H, T).
  const void* qkv = nullptr;
  void* y = nullptr;     // an input of the backward pass
  float* lse = nullptr;  // log-sum-exp of the scaled scores, natural logarithm
  const void* dy = nullptr;
  void* dqkv = nullptr;  // backward_scratch() provides it if it is absent
  float* delta = nullptr;
  const Fp8Output* fp8 = nullptr;      // receives dqkv instead: flash_hopper_bwd_takes_fp8()
  const float* slopes = nullptr;       // (H): ALiBi, or absent
  const float* bias = nullptr;         // (H, distances): added to the scores, or absent
  int distances = 0;                   // the last entry also holds for larger distances
  float* dbias = nullptr;              // (H, distances): its gradient, or absent
  const float* dbias_prior = nullptr;  // added to dbias, or absent
  float* bias_parts = nullptr;         // scratch of a kernel: see add_bias_parts
  const int32_t* documents = nullptr;  // (B, T), or absent
  const Scalars* scalars = nullptr;    // seeds for dropout
  DType dtype = DType::bf16;           // bf16 or f16; f32 for attention_f32
  int B = 1, T = 1, H = 1, G = 1;
  int D = 64, V = 64;  // width of a head of q and k, and of v
  int64_t token = 0;   // elements of a token's q | k | v
  int window = 0;
  float scale = 1, softcap = 0, dropout = 0;
  uint32_t salt = 0;
};

// Scratch of the backward pass, with dqkv behind it if the call needs one and has none.
inline char* backward_scratch(AttnCall& c, CudaStream& s, int64_t bytes) {
  if (c.dqkv || c.fp8) return static_cast<char*>(s.scratch(bytes));
  const int64_t own = round_up(bytes, 256);
  char* memory =
      static_cast<char*>(s.scratch(own + int64_t(c.B) * c.T * c.token * size_of(c.dtype)));
  c.dqkv = memory + own;
  return memory;
}

// Whether an implementation supports this call; it must not be called otherwise.
bool flash_hopper_takes(const AttnCall&);
bool flash_hopper_bwd_takes(const AttnCall&);
// Whether it can write dqkv, which the call lacks, as fp8.
bool flash_hopper_bwd_takes_fp8(const AttnCall&, const Fp8Output&);

void flash_mma(const AttnCall&, CudaStream&);
void flash_mma_bwd(AttnCall&, CudaStream&);
void flash_hopper(const AttnCall&, CudaStream&);
void flash_hopper_bwd(AttnCall&, CudaStream&);
void attention_f32(const AttnCall&, CudaStream&);
void attention_f32_bwd(AttnCall&, CudaStream&);

// dbias = dbias_prior + the sums of c.bias_parts (B, H, tiles, distances) over sequences and tiles,
// in order.
void add_bias_parts(const AttnCall& c, int tiles, CudaStream&);
inline int64_t bias_part_bytes(const AttnCall& c, int tiles) {
  return c.dbias ? int64_t(c.B) * c.H * tiles * c.distances * 4 : 0;
}

}  // namespace hearth::cuda
