// Products of bf16 matrices on Hopper: c = alpha op(a) op(b) with what follows it, for each of n
// products, with fp32 sums over K in a fixed order. A block stays for all its tiles, computes the
// activation of one and stores it while it multiplies the next, and has fetched the prior before it
// needs it: with K = 768, an epilogue takes nearly as long as the product itself. Of a symmetric
// product it computes the tiles on and below the diagonal: 21 of 36 for 768 x 768.
#include "cuda/gemm/gemm_hopper.h"

#include <algorithm>

#include "core/math.h"
#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/reduce.h"
#include "cuda/gemm/gemm_hopper_block.cuh"
#include "cuda/gemm/gemm_product.h"

namespace hearth::cuda {
namespace {

using namespace gemm_hopper_tiles;

template <class F>
__global__ void __launch_bounds__(threads, 1) multiply(const __grid_constant__ Params p) {
  extern __shared__ char memory[];
  const uint32_t base = (shared_at(memory) + 1023) & ~1023u;
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(p.a);
    prefetch_map(p.b);
    prefetch_map(p.c);
    Bars<F::stages>{base + barriers<F>}.init(F::loaders);
  }
  if constexpr (F::cluster > 1) {
    __syncthreads();
    arrive_at_cluster();
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  wait_for_previous();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);  // tells that it is uniform
  if (group == groups) {
    registers_down<24>();
    if (threadIdx.x % 128 == 0) produce<F>(p, base);
  } else {
    registers_up<240>();
    Group<F>(p, base, group).run();
  }
  if constexpr (F::cluster > 1) {  // others still arrive at the barriers of this block
    arrive_at_cluster();
    wait_for_cluster();
  }
}

// A batch of matrices of which a load or store takes `rows` rows of 64 columns.
CUtensorMap batch_map(const Tensor& t, int64_t batch, int rows) {
  const auto cols = cuuint64_t(t.cols()), each = cuuint64_t(t.rows() / batch);
  return tensor_map({.data = t.data,
                     .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .dims = 3,
                     .size = {cols, each, cuuint64_t(batch)},
                     .stride = {cols * 2, cols * 2 * each},
                     .box = {64, cuuint32_t(rows), 1}});
}

// Clusters of the kernel that run at the same time. All blocks stay until the end, so no more are
// launched.
template <class F>
int clusters_at_once(const CudaStream& s) {
  if constexpr (F::cluster == 1) {
    return s.card.processors;
  } else {
    static const int found = [&] {
      check(cudaFuncSetAttribute(multiply<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 int(s.card.shared_bytes)),
            "asking for shared memory");
      cudaLaunchAttribute shape{};
      shape.id = cudaLaunchAttributeClusterDimension;
      shape.val.clusterDim = {F::cluster, 1, 1};
      cudaLaunchConfig_t config{};
      config.gridDim = unsigned(s.card.processors / F::cluster * F::cluster);
      config.blockDim = threads, config.dynamicSmemBytes = shared_bytes<F>;
      config.attrs = &shape, config.numAttrs = 1;
      int clusters = 0;
      check(cudaOccupancyMaxActiveClusters(&clusters, multiply<F>, &config), "counting clusters");
      return clusters;
    }();
    return found;
  }
}

// A product in the terms of the kernel.
struct Product {
  Tensor a, b, c;
  Tensor in = {}, kept = {}, bias = {};
  float* sums = nullptr;
  int64_t M, N, K, batch = 1;
  float alpha = 1, beta = 1;
};

template <class F>
void launch(CudaStream& s, const Product& c) {
  const int64_t batch = c.batch, rows = ceil_div(c.M, side * F::cluster_rows),
                columns = ceil_div(c.N, F::width * F::cluster_columns);
  const int64_t tiles = F::mirrors ? rows * (rows + 1) / 2 : rows * columns;
  const CUtensorMap map_c = batch_map(c.c, batch, side);
  constexpr bool gated = F::finish == Finish::glu;
  const Params p{
      .a = batch_map(c.a, batch, F::a_by_mn ? depth : side / F::cluster_columns),
      .b = batch_map(c.b, batch,
                     F::b_by_mn ? depth
                     : gated    ? side / 2
                                : side / F::cluster_rows),
      .in = c.in ? batch_map(c.in, batch, side) : map_c,
      .kept = c.kept ? batch_map(c.kept, batch, side) : map_c,
      .c = map_c,
      .bias = reinterpret_cast<const __nv_bfloat16*>(c.bias.data),
      .sums = c.sums,
      .M = int(c.M),
      .N = int(c.N),
      .blocks = int(ceil_div(c.K, depth)),
      .columns = int(columns),
      .tiles = int(tiles),
      .total = int(tiles * batch),
      .alpha = c.alpha,
      .beta = c.beta,
      .reads = bool(c.in),
      .keeps = bool(c.kept),
  };
  const int64_t clusters = std::min<int64_t>(clusters_at_once<F>(s), p.total);
  launch_dependent(s, multiply<F>,
                   {.blocks = dim3(unsigned(clusters * F::cluster)),
                    .threads = threads,
                    .cluster = unsigned(F::cluster),
                    .shared = shared_bytes<F>},
                   p);
}

// Whether clusters of four blocks can run: not in a small part of a GPU.
bool has_large_clusters(const CudaStream& s) {
  return clusters_at_once<Form<false, false, Finish::scaled, Act::none, 2, 2>>(s) > 0;
}

template <bool b_mn, Finish finish, Act act>
void launch_variant(CudaStream& s, const Product& c, int variant) {
  if (variant == 0) return launch<Form<false, b_mn, finish, act>>(s, c);
  if (variant == 1) return launch<Form<false, b_mn, finish, act, 2, 1>>(s, c);
  launch<Form<false, b_mn, finish, act, 2, 2>>(s, c);
}

Product product_of(const GemmCall& c) {
  const bool slope = c.spec.act_slope;
  return {.a = c.a,
          .b = c.b,
          .c = c.c,
          .in = slope ? c.aux : c.prior,
          .kept = slope ? Tensor{} : c.aux,
          .bias = c.bias,
          .M = c.M(),
          .N = c.N(),
          .K = c.K(),
          .batch = c.spec.batch,
          .alpha = c.spec.alpha,
          .beta = c.spec.beta};
}

// a bᵀ in a forward pass, a b for a gradient.
void launch_single(CudaStream& s, const Product& c, const GemmSpec& spec, int variant) {
  const bool slope = spec.act_slope;
  switch (spec.act) {
    case Act::gelu_tanh:
      return slope ? launch_variant<true, Finish::slope, Act::gelu_tanh>(s, c, variant)
                   : launch_variant<false, Finish::act, Act::gelu_tanh>(s, c, variant);
    case Act::relu2:
      return slope ? launch_variant<true, Finish::slope, Act::relu2>(s, c, variant)
                   : launch_variant<false, Finish::act, Act::relu2>(s, c, variant);
    default:
      return spec.tb ? launch_variant<false, Finish::scaled, Act::none>(s, c, variant)
                     : launch_variant<true, Finish::scaled, Act::none>(s, c, variant);
  }
}

bool rows_fit(const Tensor& t) {
  return !t || (t.dtype == DType::bf16 && t.cols() % 8 == 0 &&
                reinterpret_cast<uintptr_t>(t.data) % 16 == 0);
}

// Single products that are worth a tile of this size, with the epilogues that the kernel has.
bool takes_single(const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  const GemmCall c{args};
  if (spec.ta || c.M() < side || c.N() < side) return false;
  if (spec.act == Act::none) return !args.aux && (!args.bias || spec.alpha == 1);
  if (spec.act != Act::gelu_tanh && spec.act != Act::relu2) return false;
  if (args.prior) return false;
  return spec.act_slope ? !spec.tb && !args.bias : spec.tb && spec.alpha == 1;
}

bool available(const CudaStream& s) {
  using Any = Form<false, false, Finish::scaled>;
  return s.card.hopper() && s.hopper_kernels && s.card.shared_bytes >= shared_bytes<Any>;
}

}  // namespace

int gemm_hopper_takes(const CudaStream& s, const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  if (!available(s)) return 0;
  for (const Tensor& t : {args.a, args.b, args.c, args.prior, args.aux})
    if (!rows_fit(t)) return 0;
  if (args.bias && args.bias.dtype != DType::bf16) return 0;
  if (args.c.numel() == 0 || args.a.numel() == 0 || args.c.numel() >= int64_t(1) << 31) return 0;
  if (spec.batch == 1 && !spec.symmetric)
    return !takes_single(args) ? 0 : has_large_clusters(s) ? gemm_hopper_variants : 1;
  if (spec.act != Act::none || args.bias || args.aux) return 0;
  const bool form =
      spec.symmetric ? args.a.data == args.b.data && !(spec.ta && spec.tb) : !spec.ta && !spec.tb;
  return form ? 1 : 0;
}

void gemm_hopper(CudaStream& s, const GemmArgs& args, int variant, const ColumnSumArgs* sums) {
  const GemmSpec& spec = args.spec;
  Product c = product_of(GemmCall{args});
  const int64_t parts = 4 * ceil_div(c.M, side);  // one for each warp and tile
  if (sums) c.sums = static_cast<float*>(s.scratch(parts * c.N * 4));
  if (spec.batch == 1 && !spec.symmetric)
    launch_single(s, c, spec, variant);
  else if (!spec.symmetric)
    launch<Form<false, true, Finish::scaled>>(s, c);
  else if (spec.ta)
    launch<Form<true, true, Finish::mirrored>>(s, c);
  else  // a aᵀ, or a a where a is its own transpose
    launch<Form<false, false, Finish::mirrored>>(s, c);
  check_launch("gemm");
  if (sums)
    add_parts(s, reinterpret_cast<float*>(sums->out.data), c.sums, parts, c.N, c.N, sums->alpha,
              sums->add);
}

bool gemm_glu(Stream& stream, const GemmGluArgs& args) {
  CudaStream& s = on(stream);
  const int64_t M = args.a.rows(), N = args.c.cols() / (args.slope ? 2 : 1);
  if (!available(s) || args.act != Act::swiglu || N % 64 != 0 || M < 16 * side) return false;
  if (s.invariant && !args.slope) return false;  // decoding computes it by two kernels
  for (const Tensor& t : {args.a, args.b, args.c, args.pre})
    if (!rows_fit(t)) return false;
  const Product c{.a = args.a,
                  .b = args.b,
                  .c = args.c,
                  .in = args.slope ? args.pre : Tensor{},
                  .kept = args.slope ? Tensor{} : args.pre,
                  .M = M,
                  .N = N,
                  .K = args.a.cols(),
                  .alpha = args.alpha};
  const int most = has_large_clusters(s) ? gemm_hopper_variants - 1 : 0;
  const int variant = s.own_products >= 0 ? std::min(s.own_products, most) : most;
  if (args.slope)
    launch_variant<true, Finish::glu_slope, Act::swiglu>(s, c, variant);
  else
    launch_variant<false, Finish::glu, Act::swiglu>(s, c, variant);
  check_launch("gemm_glu");
  return true;
}

}  // namespace hearth::cuda
