// Flash attention over a paged cache, for rows that come in long runs of one sequence: prompts. As
// the forward pass of training, but a tile of rows may be of several sequences, one after the
// other, and a block of keys is a block of the cache. 4 * H * D * (visible pairs) FLOP.
#pragma once

#include "cuda/flash_mma_fwd.cuh"
#include "cuda/flash_mma_paged.h"

namespace hearth::cuda {

__device__ inline void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The first row from `at` on, of `rows` a multiple of 32, for which `is` holds; found by every warp
// alike.
template <class Is>
__device__ int first_row_that(int at, int rows, Is is) {
  const int lane = int(threadIdx.x) % 32;
  for (int i = at & ~31; i < rows; i += 32) {
    const unsigned found = __ballot_sync(~0u, i + lane >= at && is(i + lane));
    if (found) return i + __ffs(int(found)) - 1;
  }
  return rows;
}

template <class Tile>
__global__ __launch_bounds__(Tile::threads, 1) void paged_kernel(FlashPaged p) {
  using T = typename Tile::Element;
  constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, R = Tile::R;
  static_assert(BN == cache_block && Tile::General && !Tile::Held && Tile::Stages == 1);
  static_assert(BM <= Tile::threads && BM % 32 == 0);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int sequence_of[BM];  // -1: not this kernel's row
  const FlashForward& a = p.call;
  const SharedTile<D> q{shared_address(shared)}, k{q.at + SharedTile<D>::bytes(BM)},
      v{k.at + Tile::k_bytes};
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int tiles = (a.T + BM - 1) / BM, tile = int(blockIdx.x) % tiles;
  const int h = int(blockIdx.x) / tiles, g = h / (a.H / a.G), first_row = tile * BM;

  bool own = false;
  if (int(threadIdx.x) < BM) {
    const int row = first_row + int(threadIdx.x);
    own = row < a.T && in_long_run(p.sequences, p.positions, row, a.T);
    sequence_of[threadIdx.x] = own ? p.sequences[row] : -1;
  }
  if (!__syncthreads_or(own)) return;

  q.template load<BM, Tile::threads>(static_cast<const T*>(a.q) + h * a.D, a.q_token, first_row,
                                     a.T, a.D);
  const T* pk = static_cast<const T*>(a.k) + g * p.head;
  const T* pv = static_cast<const T*>(a.v) + g * p.head;
  const float unit = a.slopes || a.softcap > 0 ? log2_e : a.scale * log2_e;
  const float slope = a.slopes ? a.slopes[h] : 0;
  ForwardRows<Tile> rows;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.top[r][half] = -INFINITY, rows.sum[r][half] = 0;
  float y[R][D / 8][4] = {};
  HeldQueries<Tile> held;

  for (int end = 0;;) {
    const int begin = first_row_that(end, BM, [&](int i) { return sequence_of[i] >= 0; });
    if (begin == BM) break;
    const int sequence = sequence_of[begin];
    end = first_row_that(begin, BM, [&](int i) { return sequence_of[i] != sequence; });
    const int least = p.positions[first_row + begin], most = p.positions[first_row + end - 1];
    const int first_block = least < a.window ? 0 : (least - a.window + 1) / BN;
    const int32_t* table = p.tables + int64_t(sequence) * p.width;
    const auto load = [&](SharedTile<D> to, const T* from, int n) {
      to.template load<BN, Tile::threads>(from + table[n] * p.block, a.D, 0,
                                          min(BN, most + 1 - n * BN), a.D);
    };
    // Rows of other sequences see nothing of this one.
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = (warp * R + r) * 16 + half * 8 + lane / 4;
        rows.position[r][half] = i >= begin && i < end ? p.positions[first_row + i] : -1;
      }
    load(k, pk, most / BN);
    commit_copies();
    for (int n = most / BN; n >= first_block; --n) {
      wait_all_copies();
      __syncthreads();
      load(v, pv, n);
      commit_copies();
      float s[R][BN / 8][4];
      forward_scores<Tile>(s, held, q, k, warp, lane);
      wait_all_copies();
      __syncthreads();
      if (n > first_block) load(k, pk, n - 1);  // while the rest of this block is computed
      commit_copies();
      forward_shape<Tile>(s, rows, a, n * BN, slope, lane);
      forward_mask<Tile>(s, rows, a, n * BN, nullptr, lane);
      forward_softmax<Tile>(s, y, rows, unit);
      forward_values<Tile>(y, s, v, lane);
    }
  }
  // Rows that are not this kernel's get zeros, and what belongs there from the kernel after it.
  forward_store<Tile>(a, y, rows, q, 0, h, first_row + warp * R * 16, warp, lane, unit);
}

template <int D, class T>
void launch_paged(const FlashPaged& p, CudaStream& stream) {
  using Tile = ForwardTile<T, D, 64, int(cache_block), 1, false, true>;
  const auto kernel = paged_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma_paged");
  const int tiles = (p.call.T + Tile::BM - 1) / Tile::BM;
  kernel<<<unsigned(tiles * p.call.H), Tile::threads, Tile::shared, stream.handle>>>(p);
  check_launch("flash_mma_paged");
}

template <int D>
void paged_by_dtype(const FlashPaged& p, CudaStream& stream) {
  if (p.call.dtype == DType::bf16)
    launch_paged<D, __nv_bfloat16>(p, stream);
  else if (p.call.dtype == DType::f16)
    launch_paged<D, __half>(p, stream);
  else
    refuse_dtype("flash_mma_paged", p.call.dtype);
}

}  // namespace hearth::cuda
