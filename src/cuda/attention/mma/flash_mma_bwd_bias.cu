// The gradient of a bias by distance: recomputes the gradients of the scores of a tile of queries
// with every tile of keys that it sees, in fp32, and sums them by distance. A kernel of its own,
// because the backward kernels keep these gradients in 16 bits and have no registers left.
// 4 * B * H * D * (visible pairs) FLOP.
#include "cuda/attention/distance_sums.cuh"
#include "cuda/attention/mma/flash_mma_bwd_pair.cuh"

namespace hearth::cuda {
namespace {

// One warp per 16 keys, which processes BS queries at a time.
template <class T, int D_>
struct BiasTile {
  using Element = T;
  static constexpr bool General = true, before_softcap = false;
  static constexpr int D = D_, BM = flash_bias_tile(D_), BN = BM, R = 1, BS = 32;
  static constexpr int threads = BN / 16 * 32;
  static constexpr int line = BM + 1;  // floats; spreads a diagonal over the banks
  static constexpr int tile_bytes = SharedTile<D>::bytes(BM);
  static constexpr int rows_at = 4 * tile_bytes, ds_at = rows_at + BM * 8;
  static constexpr int sums_at = ds_at + BN * line * 4;
  static_assert(threads >= BM + BN - 1 && BN * line >= threads);
};

// Gradients of the scores of this warp's keys, to ds (keys, queries) in shared memory.
template <class Tile>
__device__ void share_gradients(float* ds, const FlashBackward& a, BackwardStep step,
                                SharedTile<Tile::D> q, SharedTile<Tile::D> dy,
                                SharedTile<Tile::D> k, SharedTile<Tile::D> v, uint32_t rows,
                                int warp, int lane) {
  constexpr int BS = Tile::BS;
  const int first_query = step.first_query, key = warp * 16;
#pragma unroll
  for (int query = 0; query < Tile::BM; query += BS) {
    float s[1][BS / 8][4], dp[1][BS / 8][4];
    backward_scores<Tile>(s, k, key, {q.at + query * Tile::D * 2}, lane);
    backward_scores<Tile>(dp, v, key, {dy.at + query * Tile::D * 2}, lane);
    uint32_t unused[2][1][BS / 16][4];
    step.first_query = first_query + query;
    backward_slopes<Tile, true>(unused[0], unused[1], s, dp, rows + query * 8, a, step, lane);
#pragma unroll
    for (int n = 0; n < BS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        ds[(key + lane / 4 + (e >> 1) * 8) * Tile::line + query + n * 8 + (lane & 3) * 2 +
           (e & 1)] = dp[0][n][e];
  }
}

// The first tile of keys that a tile of queries may see.
template <class Tile>
__device__ int first_keys(const FlashBackward& a, int b, int first_query) {
  int first = a.window < a.T ? max(0, first_query - a.window + 1) / Tile::BN : 0;
  if (a.first)
    first = max(first, a.first[int64_t(b) * flash_blocks(a.T) + first_query / flash_block] *
                           flash_block / Tile::BN);
  return first;
}

template <class Tile>
__global__ __launch_bounds__(Tile::threads) void bias_kernel(FlashBackward a) {
  using T = typename Tile::Element;
  constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, threads = Tile::threads;
  extern __shared__ __align__(128) unsigned char shared[];
  const SharedTile<D> q{shared_address(shared)}, dy{q.at + Tile::tile_bytes},
      k{dy.at + Tile::tile_bytes}, v{k.at + Tile::tile_bytes};
  const uint32_t rows = q.at + Tile::rows_at;
  float* ds = reinterpret_cast<float*>(shared + Tile::ds_at);
  DistanceSums sums(reinterpret_cast<float*>(shared + Tile::sums_at), a.distances);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int tiles = (a.T + BM - 1) / BM, m = tiles - 1 - int(blockIdx.x) % tiles;
  const int head = int(blockIdx.x) / tiles, h = head % a.H, b = head / a.H, g = h / (a.H / a.G);
  const int64_t y_token = int64_t(a.H) * a.V;
  const T* qkv = static_cast<const T*>(a.qkv) + b * a.T * a.token;

  q.template load<BM, threads>(qkv + h * a.D, a.token, m * BM, a.T, a.D);
  dy.template load<BM, threads>(static_cast<const T*>(a.dy) + b * a.T * y_token + h * a.V, y_token,
                                m * BM, a.T, a.V);
  const int padded = flash_blocks(a.T) * flash_block;
  if (threadIdx.x < BM / 2)
    copy_async(rows + threadIdx.x * 16, a.rows + int64_t(head) * padded + m * BM + threadIdx.x * 2,
               true);
  const HeadBias bias(a.slopes, a.bias, a.distances, h);
  for (int n = first_keys<Tile>(a, b, m * BM); n <= m; ++n) {
    k.template load<BN, threads>(qkv + (a.H + g) * a.D, a.token, n * BN, a.T, a.D);
    v.template load<BN, threads>(qkv + (a.H + a.G) * a.D + g * a.V, a.token, n * BN, a.T, a.V);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const BackwardStep step{b, h, m * BM, n * BN + warp * 16 + lane / 4, bias};
    share_gradients<Tile>(ds, a, step, q, dy, k, v, rows, warp, lane);
    __syncthreads();
    sums.add<BM, BN>((m - n) * BM, [&](int i, int j) { return ds[j * Tile::line + i]; });
  }
  __syncthreads();
  sums.store(a.bias_parts + (int64_t(head) * tiles + m) * a.distances, ds);
}

template <class Tile>
void launch_bias(const FlashBackward& a, CudaStream& stream) {
  const int bytes = Tile::sums_at + a.distances * 4;
  const auto kernel = bias_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of flash_mma_bias_backward");
  const int tiles = (a.T + Tile::BM - 1) / Tile::BM;
  kernel<<<unsigned(tiles * a.B * a.H), Tile::threads, bytes, stream.handle>>>(a);
  check_launch("flash_mma_bias_backward");
}

}  // namespace

void flash_mma_bias_backward(const FlashBackward& a, CudaStream& stream) {
  by_head_size(std::max(a.D, a.V), [&](auto D) {
    if (a.dtype == DType::bf16)
      launch_bias<BiasTile<__nv_bfloat16, D>>(a, stream);
    else
      launch_bias<BiasTile<__half, D>>(a, stream);
  });
}

}  // namespace hearth::cuda
