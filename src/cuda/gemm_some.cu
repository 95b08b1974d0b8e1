// Products of some rows (decoding many sequences): c (M, N) = act(a (M, K) wᵀ + bias), M from 17 to
// 64. All is latency here: a block has 32 rows of c by 32 columns, all of K as far as its memory
// goes, and puts all of w that it needs under way before the kernel ahead has ended; where K is
// longer, a cluster of blocks splits it, and each adds up some rows of everybody's sums in the
// order of the blocks. The rows of a may be normed on their way in: a block has them whole.
#include "cuda/cluster.cuh"
#include "cuda/early.cuh"
#include "cuda/gemm_some.cuh"
#include "cuda/gemm_some.h"

namespace hearth::cuda {
namespace {

template <class T>
struct SomeBlock {
  const SomeArgs<T>& p;
  const SomeShared lies;
  unsigned char* const shared;
  const uint32_t base;
  const int rank, first;    // of the cluster; of the columns of c
  const int first_row;      // of a and c
  const int begin, chunks;  // of the columns of a; eights of them that there are
  const int steps;          // sixteens

  __device__ __forceinline__ SomeBlock(const SomeArgs<T>& args, unsigned char* memory)
      : p(args),
        lies(args.slice, args.split > 1),
        shared(memory),
        base(shared_address(memory)),
        rank(args.split > 1 ? cluster_rank() : 0),
        first(int(blockIdx.x) / args.split * some_columns),
        first_row(int(blockIdx.y) * some_rows_of_block),
        begin(rank * args.slice),
        chunks(min(max(args.K - begin, 0), args.slice) / 8),
        steps((chunks + 1) / 2) {}

  // Chunks [from, to) of 32 rows of a matrix, by eight lanes a row; zeros beyond its rows and
  // chunks.
  __device__ __forceinline__ void copy_tile(int tile, const T* m, int rows, int from,
                                            int to) const {
    const int r = int(threadIdx.x) / 8;
    const uint32_t at = base + uint32_t(tile + r * lies.pitch);
    const T* row = m + int64_t(r) * p.K + begin;
    for (int c = from + int(threadIdx.x) % 8; c < to; c += 8)
      copy_async(at + uint32_t(16 * c), row + 8 * c, r < rows && c < chunks);
  }
  __device__ __forceinline__ void copy_weights() const {
    copy_tile(lies.w, p.w + int64_t(first) * p.K, p.N - first, 0, 2 * steps);
  }
  __device__ __forceinline__ const T* rows() const { return p.a + int64_t(first_row) * p.K; }
  __device__ __forceinline__ void copy_rows() const {
    const int piece = 2 * piece_steps();
#pragma unroll
    for (int i = 0; i < some_pieces; ++i) {
      copy_tile(lies.a, rows(), p.M - first_row, i * piece, min((i + 1) * piece, 2 * steps));
      commit_copies();
    }
  }
  // A warp has 16 rows, all columns, and every fourth step of 16 of K.
  static __device__ __forceinline__ int warp_row() { return int(threadIdx.x) / 32 % 2 * 16; }
  static __device__ __forceinline__ int warp_part() { return int(threadIdx.x) / 64; }

  __device__ __forceinline__ void multiply_steps(float (&sum)[4][4], int from, int to) const {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t a = base + uint32_t(lies.a + (warp_row() + lane % 16) * lies.pitch) +
                       uint32_t(16 * (lane / 16));
    const uint32_t w = base + uint32_t(lies.w + (lane % 8 + lane / 16 * 8) * lies.pitch) +
                       uint32_t(16 * (lane / 8 % 2));
#pragma unroll 4
    for (int s = from + warp_part(); s < to; s += some_parts) {
      uint32_t x[4], y[2][4];
      load_matrices(x, a + uint32_t(32 * s));
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrices(y[i], w + uint32_t(16 * i * lies.pitch + 32 * s));
#pragma unroll
      for (int j = 0; j < 4; ++j)
        multiply(sum[j], x, y[j / 2][2 * (j % 2)], y[j / 2][2 * (j % 2) + 1], T());
    }
  }
  // A multiple of 4 steps: one for each part.
  __device__ __forceinline__ int piece_steps() const {
    return (steps + some_parts * some_pieces - 1) / (some_parts * some_pieces) * some_parts;
  }
  __device__ __forceinline__ void multiply_all(float (&sum)[4][4]) const {
    const int piece = piece_steps();
#pragma unroll
    for (int i = 0; i < some_pieces; ++i) {
      if (i == 0) wait_for_copies<some_pieces - 1>();
      if (i == 1) wait_for_copies<some_pieces - 2>();
      if (i == 2) wait_for_copies<some_pieces - 3>();
      if (i == 3) wait_for_copies<some_pieces - 4>();
      __syncthreads();
      multiply_steps(sum, i * piece, min((i + 1) * piece, steps));
    }
  }

  // What the warps have of four columns of a row, in the order of their parts of K.
  __device__ __forceinline__ float4 join_warps(const float (&sum)[4][4]) const {
    constexpr int pitch = SomeShared::sum_pitch;
    const int lane = int(threadIdx.x) % 32;
    float* const sums = reinterpret_cast<float*>(shared + lies.a);
    __syncthreads();  // all are done with the tiles
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* row =
          sums + (warp_part() * some_rows_of_block + warp_row() + 8 * i + lane / 4) * pitch;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *reinterpret_cast<float2*>(row + 8 * j + 2 * (lane % 4)) = {sum[j][2 * i],
                                                                    sum[j][2 * i + 1]};
    }
    __syncthreads();
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < some_parts; ++k) {
      const float4 part = *reinterpret_cast<const float4*>(
          sums + (k * some_rows_of_block + int(threadIdx.x) / 8) * pitch +
          int(threadIdx.x) % 8 * 4);
      all.x += part.x, all.y += part.y, all.z += part.z, all.w += part.w;
    }
    return all;
  }

  // Sends the sums to the blocks that have their rows; then those of this block's, from everybody.
  __device__ __forceinline__ float4 join_blocks(const float4& own) const {
    const int row = int(threadIdx.x) / 8, each = some_rows_of_block / p.split, owner = row / each;
    const uint32_t at =
        base + uint32_t(16 * ((rank * each + row % each) * 8 + int(threadIdx.x) % 8));
    wait_for_cluster();  // all have begun
    put_in_block(in_block(at, owner), own);
    arrive_written();
    wait_for_cluster();
    float4 all = {0, 0, 0, 0};
    if (int(threadIdx.x) >= 8 * each) return all;
    for (int r = 0; r < p.split; ++r) {
      const float4 part = reinterpret_cast<const float4*>(shared)[r * each * 8 + int(threadIdx.x)];
      all.x += part.x, all.y += part.y, all.z += part.z, all.w += part.w;
    }
    return all;
  }
};

template <class T>
__global__ void __launch_bounds__(some_threads, 2) some_rows(SomeArgs<T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 some_memory[];
  const SomeBlock<T> block(p, reinterpret_cast<unsigned char*>(some_memory));
  let_next_start();
  if (p.split > 1) arrive_begun();
  if (!p.weight) wait_for_previous();
  block.copy_weights();  // committed with the first of a
  const int rows = some_rows_of_block / p.split;
  const SomeFour<T> four(p, int(threadIdx.x), block.first_row + block.rank * rows, block.first);
  const bool writes = int(threadIdx.x) < rows * (some_columns / 4) && four.count > 0;
  float bias[4] = {}, prior[4] = {}, sum[4][4] = {};
  if (writes) four.read_bias(p, bias);
  wait_for_previous();
  block.copy_rows();
  if (writes) four.read_prior(p, prior);
  block.multiply_all(sum);
  float4 all = block.join_warps(sum);
  if (p.split > 1) all = block.join_blocks(all);
  float x[4] = {all.x, all.y, all.z, all.w};
  if (writes) four.finish(p, x, bias, prior);
#endif
}

struct SomePlan {
  int split = 0, slice = 0;  // 0: it does not fit
  int shared = 0;
};

// As few blocks as can hold all of K: they wait for each other.
SomePlan some_plan(const Card& card, int64_t K) {
  for (int split = 1; split <= some_cluster; split *= 2) {
    const int64_t slice = round_up(ceil_div(K, split), 16);
    if (slice > some_slice) continue;
    const SomeShared shared(int(slice), split > 1);
    if (shared.end <= card.shared_bytes) return {split, int(slice), shared.end};
  }
  return {};
}

template <class T>
SomeArgs<T> some_args(Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
                      const GemmSpec& spec) {
  const int64_t N = c.cols();
  return {.a = as<T>(a),
          .w = as<T>(b),
          .bias = as<T>(bias),
          .prior = prior.data,
          .c = c.data,
          .aux = aux.data,
          .M = int(a.rows()),
          .N = int(N),
          .K = int(a.cols()),
          .split = 1,
          .slice = 16,
          .alpha = spec.alpha,
          .act = spec.act,
          .weight = spec.weight,
          .wide = c.dtype == DType::f32,
          .fours = N % 4 == 0 && packs_fit(8, c, aux, bias, prior)};
}

bool some_sixteen(DType d) { return d == DType::bf16 || d == DType::f16; }

constexpr int64_t some_widest = 8192;  // columns of c: beyond them cuBLASLt has enough to do

}  // namespace

bool gemm_some_runs(const Card& card) {
  return has_clusters(card, reinterpret_cast<const void*>(&some_rows<__nv_bfloat16>));
}

bool gemm_some_takes(const CudaStream& s, const Tensor& c, const Tensor& a, const Tensor& b,
                     const GemmSpec& spec) {
  return s.some_rows && a.rows() > 16 && a.rows() <= 64 && some_sixteen(a.dtype) && !spec.ta &&
         spec.tb && !spec.act_slope && (c.dtype == a.dtype || c.dtype == DType::f32) &&
         packs_fit(a.cols(), a, b) && c.cols() <= some_widest && some_plan(s.card, a.cols()).split;
}

void gemm_some(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
               const GemmSpec& spec) {
  const auto launch = [&]<class T>(T*) {
    SomeArgs<T> args = some_args<T>(c, aux, a, b, bias, prior, spec);
    const SomePlan plan = some_plan(s.card, args.K);
    args.split = plan.split, args.slice = plan.slice;
    launch_early(s, some_rows<T>,
                 EarlyLaunch{.blocks = dim3(unsigned(ceil_div(args.N, some_columns) * plan.split),
                                            unsigned(ceil_div(args.M, some_rows_of_block))),
                             .threads = some_threads,
                             .cluster = unsigned(plan.split),
                             .shared = plan.shared},
                 args);
  };
  a.dtype == DType::bf16 ? launch(static_cast<__nv_bfloat16*>(nullptr))
                         : launch(static_cast<__half*>(nullptr));
  check_launch("gemm");
}

}  // namespace hearth::cuda
