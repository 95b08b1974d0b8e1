// Flash attention over a paged cache, for rows that come in long runs of one sequence: prompts. As
// the forward pass of training, but a tile of rows may be of several sequences, one after the
// other, and a block of keys is a block of the cache. 4 * H * D * (visible pairs) FLOP.
#pragma once

#include "cuda/attention_keys_fp8.cuh"
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

// A panel of keys or values on its way to shared memory. As it lies in the cache:
template <class Tile>
struct CopiedPanel {
  using Element = typename Tile::Element;
  SharedTile<Tile::D> to;

  __device__ void begin(const Element* from, int rows, int width) {
    to.template load<Tile::BN, Tile::threads>(from, width, 0, rows, width);
    commit_copies();
  }
  __device__ void finish() { wait_all_copies(); }
};

// Kept in fp8: through registers. In bf16 nothing is rounded; in f16 what would be infinite is not.
template <class Tile>
struct DecodedPanel {
  using Element = uint8_t;
  using T = typename Tile::Element;
  static constexpr int chunks = Tile::D / 8, each = Tile::BN * chunks / Tile::threads;
  static_assert(Tile::BN * chunks % Tile::threads == 0);
  SharedTile<Tile::D> to;
  EightCodes codes[each];
  uint8_t exponents[each];

  __device__ static int row(int i) { return (i * Tile::threads + int(threadIdx.x)) / chunks; }
  __device__ static int chunk(int i) { return (i * Tile::threads + int(threadIdx.x)) % chunks; }
  __device__ void begin(const uint8_t* from, int rows, int width) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const bool real = row(i) < rows && chunk(i) * 8 < width;
      codes[i].v = real ? *reinterpret_cast<const uint2*>(from + row(i) * width + chunk(i) * 8)
                        : uint2{0, 0};
      exponents[i] = real ? from[Tile::BN * width + row(i)] : 0;
    }
  }
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      float f[8];
      codes[i].floats(f);
      const float unit = power_of(exponents[i]);
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] = packed(f[2 * w] * unit, f[2 * w + 1] * unit);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to.chunk(row(i), chunk(i))),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }
  __device__ static uint32_t packed(float x, float y) {
    if constexpr (std::is_same_v<T, __half>)  // NaN stays
      x = fabsf(x) > 65504 ? copysignf(65504, x) : x,
      y = fabsf(y) > 65504 ? copysignf(65504, y) : y;
    return pack(x, y, T());
  }
};

template <class Tile, class Panel>
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
  using C = typename Panel::Element;
  const C* pk = static_cast<const C*>(a.k) + g * p.head;
  const C* pv = static_cast<const C*>(a.v) + g * p.head;
  Panel k_panel{k}, v_panel{v};
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
    const auto load = [&](Panel& panel, const C* from, int n) {
      panel.begin(from + table[n] * p.block, min(BN, most + 1 - n * BN), a.D);
    };
    // Rows of other sequences see nothing of this one.
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = (warp * R + r) * 16 + half * 8 + lane / 4;
        rows.position[r][half] = i >= begin && i < end ? p.positions[first_row + i] : -1;
      }
    load(k_panel, pk, most / BN);
    for (int n = most / BN; n >= first_block; --n) {
      wait_all_copies();  // of q, if nothing else
      k_panel.finish();
      __syncthreads();
      load(v_panel, pv, n);
      float s[R][BN / 8][4];
      forward_scores<Tile>(s, held, q, k, warp, lane);
      v_panel.finish();
      __syncthreads();
      if (n > first_block) load(k_panel, pk, n - 1);  // while the rest of this block is computed
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
  const auto kernel =
      p.fp8 ? paged_kernel<Tile, DecodedPanel<Tile>> : paged_kernel<Tile, CopiedPanel<Tile>>;
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
