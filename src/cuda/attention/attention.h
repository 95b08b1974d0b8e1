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
  void* dqkv = nullptr;
  float* delta = nullptr;
  const float* slopes = nullptr;       // (H): ALiBi, or absent
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

// Whether an implementation supports this call; it must not be called otherwise.
bool flash_hopper_takes(const AttnCall&);
bool flash_hopper_bwd_takes(const AttnCall&);

void flash_mma(const AttnCall&, CudaStream&);
void flash_mma_bwd(const AttnCall&, CudaStream&);
void flash_hopper(const AttnCall&, CudaStream&);
void flash_hopper_bwd(const AttnCall&, CudaStream&);
void attention_f32(const AttnCall&, CudaStream&);
void attention_f32_bwd(const AttnCall&, CudaStream&);

}  // namespace hearth::cuda
