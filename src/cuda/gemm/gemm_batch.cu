// Batches of bf16 products on Hopper: c = alpha op(a) op(b) + beta prior for each of n products,
// with fp32 sums over K in a fixed order. Made for Muon, whose products are short in K: a block
// stays for all its tiles, stores one while it computes the next, and has fetched the prior before
// it needs it. Of a symmetric product it computes the tiles on and below the diagonal: 21 of 36
// for 768 x 768.
#include <algorithm>

#include "core/math.h"
#include "cuda/device/dependent_launch.cuh"
#include "cuda/gemm/gemm_batch.h"
#include "cuda/gemm/gemm_batch_block.cuh"
#include "cuda/gemm/gemm_product.h"

namespace hearth::cuda {
namespace {

using namespace gemm_batch_tiles;

template <class F>
__global__ void __launch_bounds__(threads, 1) multiply_batch(const __grid_constant__ Params p) {
  extern __shared__ char memory[];
  const uint32_t base = (shared_at(memory) + 1023) & ~1023u;
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(p.a);
    prefetch_map(p.b);
    prefetch_map(p.c);
    Bars{base + barriers}.init();
  }
  __syncthreads();
  wait_for_previous();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);  // tells that it is uniform
  if (group == groups) {
    registers_down<24>();
    if (threadIdx.x % 128 == 0) produce<F>(p, base);
  } else {
    registers_up<240>();
    Group<F>(p, base, group).run();
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

template <class F>
void launch_batch(CudaStream& s, const GemmCall& c) {
  const int64_t batch = c.spec.batch, rows = ceil_div(c.M(), side), columns = ceil_div(c.N(), side);
  const int64_t tiles = F::mirrors ? rows * (rows + 1) / 2 : rows * columns;
  const Params p{.a = batch_map(c.a, batch, F::a_by_mn ? depth : side),
                 .b = batch_map(c.b, batch, F::b_by_mn ? depth : side),
                 .prior = batch_map(c.prior ? c.prior : c.c, batch, side),
                 .c = batch_map(c.c, batch, side),
                 .N = int(c.N()),
                 .blocks = int(ceil_div(c.K(), depth)),
                 .columns = int(columns),
                 .tiles = int(tiles),
                 .total = int(tiles * batch),
                 .alpha = c.spec.alpha,
                 .beta = c.spec.beta,
                 .adds = bool(c.prior)};
  launch_dependent(s, multiply_batch<F>,
                   {.blocks = dim3(unsigned(std::min<int64_t>(s.card.processors, p.total))),
                    .threads = threads,
                    .shared = shared_bytes},
                   p);
}

bool rows_fit(const Tensor& t) {
  return !t || (t.dtype == DType::bf16 && t.cols() % 8 == 0 &&
                reinterpret_cast<uintptr_t>(t.data) % 16 == 0);
}

}  // namespace

bool gemm_batch_takes(const CudaStream& s, const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  const bool plain = spec.act == Act::none && !spec.act_slope && !args.bias && !args.aux;
  const bool form = spec.symmetric ? args.a.data == args.b.data && !(spec.ta && spec.tb)
                                   : spec.batch > 1 && !spec.ta && !spec.tb;
  return s.card.hopper() && s.hopper_kernels && s.card.shared_bytes >= shared_bytes && plain &&
         form && rows_fit(args.a) && rows_fit(args.b) && rows_fit(args.c) && rows_fit(args.prior) &&
         args.c.numel() > 0 && args.a.numel() > 0 && args.c.numel() < int64_t(1) << 31;
}

void gemm_batch(CudaStream& s, const GemmArgs& args) {
  const GemmCall c{args};
  if (!c.spec.symmetric)
    launch_batch<Form<false, true, false>>(s, c);
  else if (c.spec.ta)
    launch_batch<Form<true, true, true>>(s, c);
  else  // a aᵀ, or a a where a is its own transpose
    launch_batch<Form<false, false, true>>(s, c);
  check_launch("gemm");
}

}  // namespace hearth::cuda
