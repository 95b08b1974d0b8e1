// Flash attention forward for Hopper: chooses and launches the kernel of a call, for one dtype.
#pragma once

#include <algorithm>

#include "cuda/attention/attention.h"
#include "cuda/attention/hopper/flash_hopper.cuh"

namespace hearth::cuda {

void flash_hopper_bf16(const AttnCall&, CudaStream&);
void flash_hopper_f16(const AttnCall&, CudaStream&);

namespace flash_fwd {

template <class T, class S>
void launch(const AttnCall& a, CudaStream& stream) {
  using L = Layout<S>;
  const int heads = a.H + 2 * a.G;
  Params p{.q = head_tile_map(a.qkv, a.dtype, a.B, a.T, heads, a.D, 64),
           .kv = head_tile_map(a.qkv, a.dtype, a.B, a.T, heads, a.D, S::N),
           .y = head_tile_map(a.y, a.dtype, a.B, a.T, a.H, a.D, 64),
           .lse = a.lse,
           .documents = a.documents,
           .ranges = nullptr,
           .slopes = a.slopes,
           .bias = a.bias,
           .distances = a.distances,
           .T = a.T,
           .H = a.H,
           .G = a.G,
           .tiles = (a.T + L::rows - 1) / L::rows,
           .shift = (a.T + 63) / 64 * 64 - (a.T + L::rows - 1) / L::rows * L::rows,
           .heads = a.B * a.H,
           .section = 1,
           .window = a.window > 0 ? a.window : INT_MAX / 2,
           .scale = a.scale,
           .softcap = a.softcap};
  // K and V of a section may fill a third of L2; queries and outputs pass through the rest.
  const int64_t kv = int64_t(a.T) * a.D * 4 * a.G / a.H;
  p.section =
      int(std::clamp<int64_t>(stream.card.l2_bytes / 3 / std::max<int64_t>(kv, 1), 1, p.heads));
  if (S::documents && a.documents) {
    const int64_t bytes = int64_t(a.B) * document_blocks(a.T) * int64_t(sizeof(int2));
    auto* ranges = static_cast<int2*>(stream.scratch(bytes));
    find_document_ranges(ranges, a, stream);
    p.ranges = ranges;
  }
  const auto kernel = flash_hopper_kernel<T, S>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::bytes),
        "giving flash_hopper its shared memory");
  const int blocks = std::min(stream.card.processors, p.heads * p.tiles);
  kernel<<<blocks, L::threads, L::bytes, stream.handle>>>(p);
  check_launch("flash_hopper");
}

// Three warp groups of 64 rows keep the tensor cores busiest. With head_dim 128, or more work per
// score, there are only enough registers for two.
template <class T, int D>
void by_features(const AttnCall& a, CudaStream& stream) {
  constexpr int groups = D == 64 ? 3 : 2;
  if (a.bias)
    launch<T, Shape<D, 2, 128, 2, true, true, false, true>>(a, stream);
  else if (a.softcap > 0 || a.slopes)
    launch<T, Shape<D, 2, 128, 2, true, true, false>>(a, stream);
  else if (a.documents)
    launch<T, Shape<D, groups, 128, 2, true, false, false>>(a, stream);
  else
    launch<T, Shape<D, groups, 128, 2, false, false, D == 128>>(a, stream);
}

template <class T>
void by_head_dim(const AttnCall& a, CudaStream& stream) {
  if (a.D == 64)
    by_features<T, 64>(a, stream);
  else
    by_features<T, 128>(a, stream);
}

}  // namespace flash_fwd
}  // namespace hearth::cuda
