// Products of 17 to 64 rows (decoding many sequences) on Hopper: c (M, N) = act(a (M, K) wᵀ +
// bias). Bound by latency. A block computes all rows of c by 64 columns over a part of K small
// enough for two blocks per multiprocessor: blocks of the next kernel start next to this kernel's
// and load their part of w before it has ended. The blocks of a cluster split K; each finishes some
// of the rows, adding the sums of all blocks in block order.
//
// The rows of a can be normalised. The norm of a row x is ((x - mean) / deviation) gain + shift, so
// its product with w is (x · (gain w) - mean Σ gain w) / deviation + Σ shift w. Before a arrives,
// gain is multiplied into w and both Σ are computed; the sums of x and x² run beside the product.
#include "cuda/device/dependent_launch.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_rows64.h"
#include "cuda/gemm/gemm_rows64_block.cuh"

namespace hearth::cuda {
namespace {

constexpr int some_threads(bool normed) { return normed ? 384 : 256; }

template <class T, int Split, bool Normed>
__global__ void __launch_bounds__(some_threads(Normed), 2)
    multiply_some(const __grid_constant__ SomeArgs<T> p) {
  extern __shared__ __align__(1024) unsigned char some_memory[];
  using Block = SomeBlock<T, Split, Normed>;
  const Block block(p, some_memory + (1024 - shared_at(some_memory) % 1024) % 1024);
  const int warp = int(threadIdx.x) / 32;
  const bool multiplies = !Normed || warp < 8;
  let_next_start();
  if (threadIdx.x == 0) block.prepare();
  __syncthreads();
  if (Split > 1) arrive_begun();
  if (!p.weight) wait_for_previous();
  if (threadIdx.x == 0) block.copy_weights();
  // A thread finishes eight columns of one or two rows.
  constexpr int rows_at_once = some_threads(Normed) / 8;
  const int column = int(threadIdx.x) % 8 * 8, row = int(threadIdx.x) / 8;
  const int first_row = block.part * Block::own_rows;
  float bias[8] = {}, take[8] = {}, prior[8] = {}, sum[16] = {};
  SomeEight<T>(p, 0, block.first + column).read_bias(bias);
  if (Split > 1) wait_for_cluster();
  if constexpr (Normed) {
    if (multiplies) {
      barrier_wait(block.weights_arrived(), 0);
      block.norm_weights();
    }
    __syncthreads();
  }
  wait_for_previous();
  if (threadIdx.x % 32 == 0 && warp < p.panels) block.copy_rows(warp);
  const auto read_prior = [&](int r) {
    if (r < Block::own_rows) SomeEight<T>(p, first_row + r, block.first + column).read_prior(prior);
  };
  read_prior(row);
  if constexpr (Normed) {
    barrier_wait(block.terms_arrived(), 0);
    block.column_terms(take, bias, column);
    if (!multiplies) block.sum_rows();
  }
  if (multiplies) {
    block.multiply(sum);
    named_sync(1, 256);  // all warps have read w, which the sums overwrite
    block.send_sums(sum);
  }
  __syncthreads();
  barrier_wait(block.sums_arrived(), 0);
#pragma unroll 1
  for (int r = row; r < Block::own_rows; r += rows_at_once) {
    const SomeEight<T> eight(p, first_row + r, block.first + column);
    if (eight.count <= 0) break;
    if (r > row) read_prior(r);
    float x[8] = {};
    block.join(x, r, column);
    if constexpr (Normed) {
      const float2 stats = block.row_stats(r);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = fmaf(-stats.x, take[e], x[e]) * stats.y;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] += bias[e];
    eight.finish(x, prior);
  }
}

struct SomePlan {
  int split = 0, panels = 0;  // 0: it does not fit
  int shared = 0;
};

// The smallest split of K with which two blocks fit on a multiprocessor, or else one block.
SomePlan some_plan(const Card& card, int64_t K, bool normed) {
  constexpr int64_t half = 113 * 1024;  // half a multiprocessor's memory, less a block's overhead
  for (const int64_t most : {std::min(half, card.shared_bytes), card.shared_bytes})
    for (int split = 1; split <= some_cluster; split *= 2) {
      const auto panels = int(ceil_div(ceil_div(K, split), some_panel));
      const int bytes = SomeShared(panels, split, normed).end + 1024;
      if (panels <= some_panels && bytes <= most) return {split, panels, bytes};
    }
  return {};
}

template <class T>
CUtensorMap some_map(const Tensor& m) {
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return tensor_map({.data = m.data,
                     .type = type,
                     .dims = 2,
                     .size = {cuuint64_t(m.cols()), cuuint64_t(m.rows())},
                     .stride = {cuuint64_t(m.cols()) * 2},
                     .box = {some_panel, some_rows}});
}

template <class T>
SomeArgs<T> some_args(const SomePlan& plan, const GemmArgs& args) {
  return {.a = some_map<T>(args.a),
          .w = some_map<T>(args.b),
          .bias = as<T>(args.bias),
          .prior = args.prior.data,
          .c = args.c.data,
          .aux = args.aux.data,
          .M = int(args.a.rows()),
          .N = int(args.c.cols()),
          .K = int(args.a.cols()),
          .panels = plan.panels,
          .alpha = args.spec.alpha,
          .act = args.spec.act,
          .weight = args.spec.weight,
          .wide = args.c.dtype == DType::f32,
          .eights = args.c.cols() % 8 == 0 &&
                    packs_fit(args.c.cols(), args.c, args.aux, args.bias, args.prior)};
}

template <bool Normed, class T>
void launch_some(CudaStream& s, const SomePlan& plan, const SomeArgs<T>& args) {
  const DependentLaunch shape{.blocks = dim3(unsigned(ceil_div(args.N, some_columns) * plan.split)),
                              .threads = some_threads(Normed),
                              .cluster = unsigned(plan.split),
                              .shared = plan.shared};
  const auto launch = [&]<int Split>(Number<Split>) {
    launch_dependent(s, multiply_some<T, Split, Normed>, shape, args);
  };
  switch (plan.split) {
    case 1:
      return launch(Number<1>{});
    case 2:
      return launch(Number<2>{});
    case 4:
      return launch(Number<4>{});
    default:
      return launch(Number<8>{});
  }
}

bool some_sixteen(DType d) { return d == DType::bf16 || d == DType::f16; }

// Calls f with a null pointer of the type of a.
template <class F>
void some_types(const Tensor& a, F f) {
  a.dtype == DType::bf16 ? f(static_cast<__nv_bfloat16*>(nullptr))
                         : f(static_cast<__half*>(nullptr));
}

constexpr int64_t some_widest = 8192;  // columns of c; beyond them cuBLASLt fills the GPU

bool some_takes(const CudaStream& s, int64_t M, int64_t N, int64_t K, DType dtype) {
  return s.some_rows && s.hopper_kernels && M > 16 && M <= some_rows && some_sixteen(dtype) &&
         K % 8 == 0 && N <= some_widest && some_plan(s.card, K, true).split;
}

}  // namespace

bool gemm_rows64_takes(const CudaStream& s, const GemmArgs& args) {
  const Tensor &c = args.c, &a = args.a;
  return some_takes(s, a.rows(), c.cols(), a.cols(), a.dtype) && !args.spec.ta && args.spec.tb &&
         !args.spec.act_slope && (c.dtype == a.dtype || c.dtype == DType::f32) &&
         packs_fit(a.cols(), a, args.b);
}

void gemm_rows64(CudaStream& s, const GemmArgs& args) {
  const SomePlan plan = some_plan(s.card, args.a.cols(), false);
  some_types(args.a, [&]<class T>(T*) { launch_some<false>(s, plan, some_args<T>(plan, args)); });
  check_launch("gemm");
}

bool norm_gemm_rows64_takes(const CudaStream& s, int64_t rows, int64_t width, int64_t columns,
                            DType dtype) {
  return some_takes(s, rows, columns, width, dtype);
}

void norm_gemm_rows64(CudaStream& s, const NormGemmArgs& args) {
  const SomePlan plan = some_plan(s.card, args.x.cols(), true);
  some_types(args.x, [&]<class T>(T*) {
    SomeArgs<T> some = some_args<T>(plan, product_of(args));
    some.gain = as<T>(args.gain), some.shift = as<T>(args.shift);
    some.eps = args.norm.eps, some.layer = args.norm.kind == Norm::layer;
    some.each = 1 / float(args.x.cols());
    launch_some<true>(s, plan, some);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
