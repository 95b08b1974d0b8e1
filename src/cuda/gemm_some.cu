// Products of some rows (decoding many sequences): c (M, N) = act(a (M, K) wᵀ + bias), M from 17 to
// 64. All is latency here, so all of w that a block needs is under way before the kernel ahead has
// ended. The blocks of a cluster split K for the same 64 columns of c; each then gets some rows of
// everybody's sums into its own memory, and adds them in the order of the blocks. The rows of a may
// be normed on their way in: the blocks tell each other about their parts of them.
#include "cuda/cluster.cuh"
#include "cuda/early.cuh"
#include "cuda/gemm_some.cuh"
#include "cuda/gemm_some.h"

namespace hearth::cuda {
namespace {

// Chunks [begin, end) of 8 columns of `Rows` rows of a matrix; zeros beyond its rows and columns.
template <int Rows, int Threads, class T>
__device__ __forceinline__ void some_copy(uint32_t to, int pitch, const T* from, int stride,
                                          int rows, int begin, int end, int real) {
  for (int c = begin + int(threadIdx.x) % 8; c < end; c += 8)
#pragma unroll
    for (int i = 0; i < Rows; i += Threads / 8) {
      const int r = i + int(threadIdx.x) / 8;
      copy_async(to + uint32_t(r * pitch + 16 * c), from + int64_t(r) * stride + 8 * c,
                 r < rows && c < real);
    }
}

// Every second step of 16 columns from `from` on: 32 rows of a by 32 of w. The addresses are a
// lane's own, of the first step.
template <class T>
__device__ __forceinline__ void some_multiply(float (&sum)[2][4][4], uint32_t a, uint32_t w,
                                              int pitch, int from, int to) {
#pragma unroll 2
  for (int s = from; s < to; s += 2) {
    uint32_t x[2][4], y[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(x[i], a + uint32_t(16 * i * pitch + 32 * s));
      load_matrices(y[i], w + uint32_t(16 * i * pitch + 32 * s));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        multiply(sum[i][j], x[i], y[j / 2][2 * (j % 2)], y[j / 2][2 * (j % 2) + 1], T());
  }
}

template <class T, int Rows>
struct SomeBlock {
  static constexpr int threads = 4 * Rows, warps = threads / 32;
  const SomeArgs<T>& p;
  const SomeShared lies;
  unsigned char* const shared;
  const uint32_t base;
  const int rank, first;  // of the cluster; of the columns of c
  const int begin, real;  // of the columns of a; chunks of 8 that there are
  const int steps;        // of 16 columns

  __device__ __forceinline__ SomeBlock(const SomeArgs<T>& args, bool normed, unsigned char* memory)
      : p(args),
        lies(Rows, args.slice, normed),
        shared(memory),
        base(shared_address(memory)),
        rank(cluster_rank()),
        first(int(blockIdx.x) / args.split * some_columns),
        begin(rank * args.slice),
        real(min(max(args.K - begin, 0), args.slice) / 8),
        steps((real + 1) / 2) {}

  __device__ __forceinline__ void copy_weights() const {
    some_copy<some_columns, threads>(base + lies.w, lies.pitch, p.w + int64_t(first) * p.K + begin,
                                     p.K, p.N - first, 0, 2 * steps, real);
  }
  __device__ __forceinline__ void copy_gains() const {
    for (int c = int(threadIdx.x); c < real; c += threads) {
      if (p.gain) copy_async(shared + lies.gain + 16 * c, p.gain + begin + 8 * c);
      if (p.shift) copy_async(shared + lies.shift + 16 * c, p.shift + begin + 8 * c);
    }
  }

  // At `at` of the shared memory of a block of the cluster.
  template <class V>
  __device__ __forceinline__ void put(int at, int owner, const V& v) const {
    if (p.split > 1)
      put_in_block(in_block(base + uint32_t(at), owner), v);
    else
      *reinterpret_cast<V*>(shared + at) = v;
  }

  // Everything of the cluster that was written so far is seen after it.
  __device__ __forceinline__ void meet() const {
    if (p.split > 1) {
      arrive_written();
      wait_for_cluster();
    } else {
      __syncthreads();
    }
  }

  // The rows of a, normed, into their tile.
  __device__ __forceinline__ void norm_rows() const {
    const int lane = int(threadIdx.x) % 32, part = lane / 8;
    const int row = int(threadIdx.x) / 32 * 8 + lane % 8;
    uint4 x[some_chunks];
#pragma unroll
    for (int i = 0; i < some_chunks; ++i) {
      const int c = part + 4 * i;
      x[i] = {0, 0, 0, 0};
      if (row < p.M && c < real)
        x[i] = __ldcg(reinterpret_cast<const uint4*>(p.a + int64_t(row) * p.K + begin) + c);
    }
    const float2 own = some_stats<T>(x, part, real, p.layer);
    if (p.split > 1) wait_for_cluster();
    for (int r = part; r < p.split; r += 4) put(lies.stats + (rank * Rows + row) * 8, r, own);
    wait_for_copies<1>();  // gain and shift
    meet();
    const float2 row_stats =
        some_joined(p, reinterpret_cast<const float2*>(shared + lies.stats) + row, Rows);
#pragma unroll
    for (int i = 0; i < some_chunks; ++i) {
      const int c = part + 4 * i;
      if (c >= 2 * steps) continue;
      uint4 y = {0, 0, 0, 0};
      if (c < real)
        y = eight_normed<T>(x[i], *reinterpret_cast<const uint4*>(shared + lies.gain + 16 * c),
                            *reinterpret_cast<const uint4*>(shared + lies.shift + 16 * c), p.gain,
                            p.shift, row_stats.x, row_stats.y);
      *reinterpret_cast<uint4*>(shared + lies.a + row * lies.pitch + 16 * c) = y;
    }
  }

  // A warp has 32 rows, 32 columns and every second step of 16 of K; so has another, of the steps
  // between, and the two give each other half of the rows.
  static constexpr int quarters = warps / 2;
  struct Warp {
    int lane, half_of_k, row, half;  // its first row; which 32 columns
    __device__ __forceinline__ Warp() {
      const int warp = int(threadIdx.x) / 32, quarter = warp % quarters;
      lane = int(threadIdx.x) % 32, half_of_k = warp / quarters;
      row = quarter / 2 * 32, half = quarter % 2;
    }
  };

  template <bool Normed>
  __device__ __forceinline__ void multiply_all(float (&sum)[2][4][4]) const {
    const Warp own;
    const int lane = own.lane;
    const uint32_t a =
        base + uint32_t(lies.a + (own.row + lane % 16) * lies.pitch) + uint32_t(16 * (lane / 16));
    const uint32_t w = base +
                       uint32_t(lies.w + (32 * own.half + lane % 8 + lane / 16 * 8) * lies.pitch) +
                       uint32_t(16 * (lane / 8 % 2));
    if constexpr (Normed) {
      wait_for_copies<0>();
      __syncthreads();
      some_multiply<T>(sum, a, w, lies.pitch, own.half_of_k, steps);
    } else {
      const int piece = piece_steps();
#pragma unroll
      for (int i = 0; i < some_pieces; ++i) {
        if (i * piece >= steps) break;
        if (i == 0) wait_for_copies<some_pieces - 1>();
        if (i == 1) wait_for_copies<some_pieces - 2>();
        if (i == 2) wait_for_copies<some_pieces - 3>();
        if (i == 3) wait_for_copies<some_pieces - 4>();
        __syncthreads();
        some_multiply<T>(sum, a, w, lies.pitch, i * piece + own.half_of_k,
                         min((i + 1) * piece, steps));
      }
    }
  }
  // A multiple of 4 steps: 128 bytes of a row.
  __device__ __forceinline__ int piece_steps() const {
    return (steps + 4 * some_pieces - 1) / (4 * some_pieces) * 4;
  }
  __device__ __forceinline__ void copy_rows() const {
    const int piece = 2 * piece_steps();
#pragma unroll
    for (int i = 0; i < some_pieces; ++i) {
      some_copy<Rows, threads>(base + lies.a, lies.pitch, p.a + begin, p.K, p.M, i * piece,
                               min((i + 1) * piece, 2 * steps), real);
      commit_copies();
    }
  }

  // Each block's share of the sums to that block. A thread keeps 16 of the 32 rows of its warp.
  __device__ __forceinline__ void share(const float (&sum)[2][4][4]) const {
    const Warp own;
    const int lane = own.lane, warp = int(threadIdx.x) / 32;
    float4* const swapped = reinterpret_cast<float4*>(shared + lies.a);
    float keep[4][4];
    __syncthreads();  // all are done with the tiles
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool upper = own.half_of_k;
      swapped[(warp * 4 + j) * 32 + lane] =
          upper ? make_float4(sum[0][j][0], sum[0][j][1], sum[0][j][2], sum[0][j][3])
                : make_float4(sum[1][j][0], sum[1][j][1], sum[1][j][2], sum[1][j][3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) keep[j][e] = upper ? sum[1][j][e] : sum[0][j][e];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 other = swapped[((warp + quarters) % warps * 4 + j) * 32 + lane];
      keep[j][0] += other.x, keep[j][1] += other.y, keep[j][2] += other.z, keep[j][3] += other.w;
    }
    const int each = Rows / p.split;  // rows of a block
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = own.row + 16 * own.half_of_k + 8 * i + lane / 4, owner = row / each;
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const int place = some_place(row - owner * each, own.half, j, lane % 4);
        put(4 * (rank * each * some_columns + place), owner,
            make_float4(keep[j][2 * i], keep[j][2 * i + 1], keep[j + 1][2 * i],
                        keep[j + 1][2 * i + 1]));
      }
    }
  }

  // The sums of all blocks, in their order.
  __device__ __forceinline__ void add_up(float (&x)[4], const SomeFour<T>& four) const {
    const float* const parts = reinterpret_cast<const float*>(shared);
    const int place =
        some_place(four.row, four.column / 32, four.column / 8 % 4, four.column / 4 % 2 * 2);
    const int each = Rows / p.split * some_columns;
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = 0;
    for (int r = 0; r < p.split; ++r) {
      const float2 left = *reinterpret_cast<const float2*>(parts + r * each + place);
      const float2 right = *reinterpret_cast<const float2*>(parts + r * each + place + 4);
      x[0] += left.x, x[1] += left.y, x[2] += right.x, x[3] += right.y;
    }
  }
};

template <class T, int Rows, bool Normed>
__global__ void __launch_bounds__(4 * Rows, 2) some_rows(SomeArgs<T> p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 some_memory[];
  using Block = SomeBlock<T, Rows>;
  const Block block(p, Normed, reinterpret_cast<unsigned char*>(some_memory));
  let_next_start();
  if (p.split > 1) arrive_begun();
  if (!p.weight) wait_for_previous();
  if constexpr (Normed) {
    block.copy_gains();
    commit_copies();
  }
  block.copy_weights();
  if constexpr (Normed) commit_copies();  // or else with the first of a
  const int rows = Rows / p.split, fours = rows * some_columns / 4;
  int id = int(threadIdx.x);
  SomeFour<T> four(p, id, block.rank * rows, block.first);
  float bias[4] = {}, prior[4] = {}, sum[2][4][4] = {};
  if (id < fours) four.read_bias(p, bias);
  wait_for_previous();
  if constexpr (Normed)
    block.norm_rows();
  else
    block.copy_rows();
  if (id < fours) four.read_prior(p, prior);
  block.template multiply_all<Normed>(sum);
  if (!Normed && p.split > 1) wait_for_cluster();
  block.share(sum);
  block.meet();
  for (; id < fours; id += Block::threads) {
    if (id >= Block::threads) {
      four = SomeFour<T>(p, id, block.rank * rows, block.first);
      four.read_bias(p, bias);
      four.read_prior(p, prior);
    }
    if (four.count <= 0) continue;
    float x[4];
    block.add_up(x, four);
    four.finish(p, x, bias, prior);
  }
#endif
}

struct SomePlan {
  int split = 0, slice = 0;  // 0: it does not fit
  int shared = 0;
};

// How many blocks split K. What a multiprocessor has to do is counted in cycles: a from L2, what
// the warps read of the tiles, what the blocks tell each other, and waiting for one another. More
// blocks than multiprocessors share them.
SomePlan some_plan(const Card& card, int64_t M, int64_t N, int64_t K, bool normed) {
  const int rows = M <= 32 ? 32 : 64;
  SomePlan best;
  double least = 0;
  for (int split = 1; split <= some_cluster; split *= 2) {
    const int64_t slice = round_up(ceil_div(K, split), 16);
    if (slice > (normed ? some_normed : some_slice)) continue;
    const SomeShared shared(rows, int(slice), normed);
    if (shared.end > card.shared_bytes) continue;
    const double load = double(rows * slice * 2) / 40, read = double(rows * slice * 2) / 32;
    const double told = double(rows * some_columns * 4) * (split - 1) / split / 16;
    const int64_t blocks = ceil_div(N, some_columns) * split;
    const double crowd = std::max(1.0, double(blocks) / card.processors);
    const double cycles = crowd * (load + read + told) + (split > 1 ? 600 : 0);
    if (best.split && cycles >= least) continue;
    least = cycles;
    best = {split, int(slice), shared.end};
  }
  return best;
}

template <bool Normed, class T>
void some_launch(CudaStream& s, SomeArgs<T> args) {
  const SomePlan plan = some_plan(s.card, args.M, args.N, args.K, Normed);
  args.split = plan.split, args.slice = plan.slice;
  const unsigned blocks = unsigned(ceil_div(args.N, some_columns) * plan.split);
  const auto launch = [&]<int Rows>(Number<Rows>) {
    launch_early_clusters(s, some_rows<T, Rows, Normed>,
                          {.blocks = blocks,
                           .threads = 4 * Rows,
                           .cluster = unsigned(plan.split),
                           .shared = plan.shared},
                          args);
  };
  args.M <= 32 ? launch(Number<32>{}) : launch(Number<64>{});
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

// Calls f with a pointer of the type of a.
template <class F>
void some_types(const Tensor& a, F f) {
  a.dtype == DType::bf16 ? f(static_cast<__nv_bfloat16*>(nullptr))
                         : f(static_cast<__half*>(nullptr));
}

constexpr int64_t some_widest = 8192;  // columns of c: beyond them cuBLASLt has enough to do

}  // namespace

bool gemm_some_runs(const Card& card) {
  return has_clusters(card, reinterpret_cast<const void*>(&some_rows<__nv_bfloat16, 64, true>));
}

bool gemm_some_takes(const CudaStream& s, const Tensor& c, const Tensor& a, const Tensor& b,
                     const GemmSpec& spec) {
  return s.some_rows && a.rows() > 16 && a.rows() <= 64 && some_sixteen(a.dtype) && !spec.ta &&
         spec.tb && !spec.act_slope && (c.dtype == a.dtype || c.dtype == DType::f32) &&
         packs_fit(a.cols(), a, b) && c.cols() <= some_widest &&
         a.cols() <= some_cluster * some_slice &&
         some_plan(s.card, a.rows(), c.cols(), a.cols(), false).split;
}

void gemm_some(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
               const GemmSpec& spec) {
  some_types(a, [&]<class T>(T*) {
    some_launch<false>(s, some_args<T>(c, aux, a, b, bias, prior, spec));
  });
  check_launch("gemm");
}

// What a block needs for normed rows is less than any card with clusters has.
bool norm_gemm_some_takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return some_sixteen(dtype) && rows > 16 && rows <= 64 && width % 8 == 0 &&
         width <= some_cluster * some_normed && columns <= some_widest;
}

void norm_gemm_some(CudaStream& s, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b,
                    Tensor bias, Tensor prior, const NormSpec& norm, const GemmSpec& spec) {
  expect_dtypes("norm_gemm", x.dtype, gain, shift, b, bias);
  some_types(x, [&]<class T>(T*) {
    SomeArgs<T> args = some_args<T>(c, {}, x, b, bias, prior, spec);
    args.gain = as<T>(gain), args.shift = as<T>(shift);
    args.eps = norm.eps, args.layer = norm.kind == Norm::layer;
    some_launch<true>(s, args);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
