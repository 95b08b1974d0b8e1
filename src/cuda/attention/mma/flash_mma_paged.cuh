// Flash attention over a paged cache, for long runs of rows of one sequence: prompts. Like the
// forward pass of training, except that a tile of rows may hold several sequences in turn and a
// tile of keys is a block of the cache. 4 * H * D * (visible pairs) FLOP. Rows can also run one by
// one, with their heads as the rows of a tile; decoding then has the bits of training.
#pragma once

#include "cuda/attention/decode/decode_keys_fp8.cuh"
#include "cuda/attention/mma/flash_mma_fwd.cuh"
#include "cuda/attention/mma/flash_mma_paged.h"
#include "cuda/device/dependent_launch.cuh"

namespace hearth::cuda {

__device__ inline void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The first row from `at` on for which `is` holds, or `rows`, a multiple of 32. Every warp computes
// the same result.
template <class Is>
__device__ int first_row_that(int at, int rows, Is is) {
  const int lane = int(threadIdx.x) % 32;
  for (int i = at & ~31; i < rows; i += 32) {
    const unsigned found = __ballot_sync(~0u, i + lane >= at && is(i + lane));
    if (found) return i + __ffs(int(found)) - 1;
  }
  return rows;
}

// Loads a panel of keys or values to shared memory. From a plain cache:
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

// From an fp8 cache, through registers. bf16 is exact; f16 saturates instead of overflowing.
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
    if constexpr (std::is_same_v<T, __half>)  // NaN is kept
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
  __shared__ int sequence_of[BM];  // -1: not a row of this kernel
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
  const C* pk = static_cast<const C*>(a.k) + g * p.k_head;
  const C* pv = static_cast<const C*>(a.v) + g * p.v_head;
  Panel k_panel{k}, v_panel{v};
  const float unit = shapes_scores(a) ? log2_e : a.scale * log2_e;
  const HeadBias head_bias(a.slopes, a.bias, a.distances, h);
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
    const auto load_k = [&](int n) {
      k_panel.begin(pk + table[n] * p.block, min(BN, most + 1 - n * BN), a.D);
    };
    const auto load_v = [&](int n) {
      v_panel.begin(pv + table[n] * p.block, min(BN, most + 1 - n * BN), a.V);
    };
    // Rows of other sequences see nothing of this one.
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = (warp * R + r) * 16 + half * 8 + lane / 4;
        rows.position[r][half] = i >= begin && i < end ? p.positions[first_row + i] : -1;
      }
    load_k(most / BN);
    for (int n = most / BN; n >= first_block; --n) {
      wait_all_copies();  // q as well
      k_panel.finish();
      __syncthreads();
      load_v(n);
      float s[R][BN / 8][4];
      forward_scores<Tile>(s, held, q, k, warp, lane);
      v_panel.finish();
      __syncthreads();
      if (n > first_block) load_k(n - 1);  // while the rest of this block is computed
      forward_shape<Tile>(s, rows, a, n * BN, head_bias, lane);
      forward_mask<Tile>(s, rows, a, n * BN, nullptr, lane);
      forward_softmax<Tile>(s, y, rows, unit);
      forward_values<Tile>(y, s, v, lane);
    }
  }
  // Rows of the other kernel get zeros here; that kernel runs afterwards and overwrites them.
  forward_store<Tile>(a, y, rows, q, 0, h, first_row + warp * R * 16, warp, lane, unit);
}

// One warp per row: up to 8 heads of one group are the rows of a tile. It runs beside the previous
// kernel until it needs its queries and keys.
template <class Tile>
__global__ __launch_bounds__(Tile::threads) void row_kernel(FlashPaged p, int heads, bool all) {
  using T = typename Tile::Element;
  constexpr int D = Tile::D, BN = Tile::BN;
  static_assert(BN == cache_block && Tile::warps == 1 && Tile::R == 1 && Tile::General);
  extern __shared__ __align__(128) unsigned char shared[];
  const FlashForward& a = p.call;
  const SharedTile<D> q{shared_address(shared)}, k{q.at + SharedTile<D>::bytes(Tile::BM)},
      v{k.at + Tile::k_bytes};
  const int lane = int(threadIdx.x), n = int(blockIdx.x), group = a.H / a.G;
  const int parts = (group + heads - 1) / heads, g = int(blockIdx.y) / parts;
  const int within = int(blockIdx.y) % parts * heads, h = g * group + within;
  const int at = p.positions[n];  // written by the host, like the tables
  const int32_t* table = p.tables + int64_t(p.sequences[n]) * p.width;
  let_next_start();
  wait_for_previous();
  if (!all && in_long_run(p.sequences, p.positions, n, a.T)) return;

  FlashForward own = a;  // heads as rows
  own.T = min(heads, group - within), own.H = 1;
  own.y = static_cast<T*>(a.y) + (int64_t(n) * a.H + h) * a.V;
  q.template load<Tile::BM, Tile::threads>(static_cast<const T*>(a.q) + n * a.q_token + h * a.D,
                                           a.D, 0, own.T, a.D);
  const auto load_k = [&](int block) {
    const T* from = static_cast<const T*>(a.k) + g * p.k_head + table[block] * p.block;
    k.template load<BN, Tile::threads>(from, a.D, 0, min(BN, at + 1 - block * BN), a.D);
  };
  const auto load_v = [&](int block) {
    const T* from = static_cast<const T*>(a.v) + g * p.v_head + table[block] * p.block;
    v.template load<BN, Tile::threads>(from, a.V, 0, min(BN, at + 1 - block * BN), a.V);
  };
  const float unit = shapes_scores(a) ? log2_e : a.scale * log2_e;
  const HeadBias head_bias(a.slopes, a.bias, a.distances, h);
  ForwardRows<Tile> rows;
#pragma unroll
  for (int half = 0; half < Tile::halves; ++half)
    rows.top[0][half] = -INFINITY, rows.sum[0][half] = 0, rows.position[0][half] = at;
  float y[1][D / 8][4] = {};
  HeldQueries<Tile> held;

  const int first = at < a.window ? 0 : (at - a.window + 1) / BN, last = at < 0 ? -1 : at / BN;
  if (last >= 0) load_k(last);
  commit_copies();
  for (int block = last; block >= first; --block) {
    load_v(block);
    commit_copies();
    wait_for_copies<1>();  // all except v
    __syncwarp();
    float s[1][BN / 8][4];
    forward_scores<Tile>(s, held, q, k, 0, lane);
    __syncwarp();
    if (block > first) load_k(block - 1);
    commit_copies();
    forward_shape<Tile>(s, rows, a, block * BN, head_bias, lane);
    forward_mask<Tile>(s, rows, a, block * BN, nullptr, lane);
    forward_softmax<Tile>(s, y, rows, unit);
    wait_for_copies<1>();
    __syncwarp();
    forward_values<Tile>(y, s, v, lane);
    __syncwarp();
  }
  wait_for_copies<0>();
  forward_store<Tile>(own, y, rows, q, 0, 0, 0, 0, lane, unit);
}

template <int D, class T>
void launch_rows(const FlashPaged& p, bool all, CudaStream& stream) {
  using Tile = ForwardTile<T, D, 16, int(cache_block), 1, false, true, 1, true, 1>;
  const int group = p.call.H / p.call.G;
  // A head with a slope or a bias of its own is a tile of its own.
  const int heads = p.call.slopes || p.call.bias ? 1 : std::min(group, 8 * Tile::halves);
  const dim3 blocks(unsigned(p.call.T), unsigned(p.call.G * ((group + heads - 1) / heads)));
  launch_dependent(stream, row_kernel<Tile>,
                   {.blocks = blocks, .threads = Tile::threads, .shared = Tile::shared}, p, heads,
                   all);
  check_launch("flash_mma_rows");
}

template <int D>
void rows_by_dtype(const FlashPaged& p, bool all, CudaStream& stream) {
  if (p.call.dtype == DType::bf16)
    launch_rows<D, __nv_bfloat16>(p, all, stream);
  else
    launch_rows<D, __half>(p, all, stream);
}

// Prompts without a bias have kernels of their own, which need fewer registers.
template <int D, class T, bool Biased>
void launch_paged(const FlashPaged& p, CudaStream& stream) {
  using Tile = ForwardTile<T, D, 64, int(cache_block), 1, false, true, 4, Biased>;
  const auto kernel =
      p.fp8 ? paged_kernel<Tile, DecodedPanel<Tile>> : paged_kernel<Tile, CopiedPanel<Tile>>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::shared),
        "shared memory of flash_mma_paged");
  const int tiles = (p.call.T + Tile::BM - 1) / Tile::BM;
  kernel<<<unsigned(tiles * p.call.H), Tile::threads, Tile::shared, stream.handle>>>(p);
  check_launch("flash_mma_paged");
}

template <int D, class T>
void launch_paged(const FlashPaged& p, CudaStream& stream) {
  p.call.bias ? launch_paged<D, T, true>(p, stream) : launch_paged<D, T, false>(p, stream);
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
