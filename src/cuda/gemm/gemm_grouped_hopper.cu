// Grouped products of 16-bit floats on Hopper: 2 R N K FLOPs in each of the three forms.
#include <algorithm>

#include "core/math.h"
#include "cuda/device/dependent_launch.cuh"
#include "cuda/gemm/gemm_grouped_loader.cuh"
#include "cuda/gemm/gemm_grouped_worker.cuh"

namespace hearth::cuda {
namespace {

using namespace grouped_hopper;

template <class F>
__global__ void __launch_bounds__(threads, 1) multiply_groups(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t base = shared_at(memory);
  let_next_start();
  if (threadIdx.x == 0) {
    prefetch_map(p.left);
    prefetch_map(p.right);
    Bars{base + barriers}.init<F>();
  }
  wait_for_previous();
  const Tiles<F> tiles(p, memory + bounds);
  tiles.build();
  __syncthreads();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);  // tells that it is uniform
  if (group == workers) {
    registers_down<F::gathers ? 56 : 40>();
    if (F::gathers || threadIdx.x % 128 == 0) Loader<F>(p, base).run(tiles);
  } else {
    registers_up<F::gathers ? 224 : 232>();
    Worker<F>(p, base, group).run(tiles);
  }
}

// Matrices one after another, of which a load takes `rows` rows of 64 columns.
CUtensorMap map_of(const GroupedCall& c, const void* data, int64_t count, int64_t rows,
                   int64_t columns, int box_rows) {
  return tensor_map({.data = data,
                     .type = c.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .dims = count ? 3 : 2,
                     .size = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(count)},
                     .stride = {cuuint64_t(columns) * 2, cuuint64_t(columns * rows) * 2},
                     .box = {64, cuuint32_t(box_rows), 1}});
}

template <class F>
Params params_of(const GroupedCall& c) {
  const int64_t columns = ceil_div(F::weights ? c.K : c.N, F::width);
  Params p{.left = {},
           .right = {},
           .stores = {},
           .gathered = F::weights ? c.right : c.left,
           .gather = c.gather,
           .offsets = c.offsets,
           .out = c.out,
           .groups = int(c.groups),
           .N = int(c.N),
           .K = int(c.K),
           .columns = int(columns),
           .tiles = int(columns * ceil_div(c.N, F::height)),
           .wide = c.out_dtype == DType::f32,
           .add = c.add};
  // An operand that is gathered has no map: its place holds a copy of the other one.
  if constexpr (F::weights) {
    p.left = map_of(c, c.left, 0, c.rows, c.N, depth);
    p.right = F::gathers ? p.left : map_of(c, c.right, 0, c.rows, c.K, depth);
  } else {
    const bool down = F::right_down;
    p.right =
        map_of(c, c.right, c.groups, down ? c.K : c.N, down ? c.N : c.K, down ? depth : F::width);
    p.left = F::gathers ? p.right : map_of(c, c.left, 0, c.rows, c.K, F::height);
    p.stores = map_of(c, c.out, 0, c.rows, c.N, 64);
  }
  return p;
}

template <class F>
void launch_groups(CudaStream& s, const GroupedCall& c) {
  const Params p = params_of<F>(c);
  const int64_t tiles =
      F::weights ? c.groups * p.tiles : (ceil_div(c.rows, tile_rows) + c.groups) * p.columns;
  launch_dependent(s, multiply_groups<F>,
                   {.blocks = dim3(unsigned(std::min<int64_t>(s.card.processors, tiles))),
                    .threads = threads,
                    .shared = shared_bytes(c.groups)},
                   p);
}

template <class T>
void launch_form(CudaStream& s, const GroupedCall& c) {
  using enum GroupedForm;
  switch (c.form) {
    case transposed:
      return c.gather ? launch_groups<Form<T, transposed, true>>(s, c)
                      : launch_groups<Form<T, transposed, false>>(s, c);
    case plain:
      return c.gather ? launch_groups<Form<T, plain, true>>(s, c)
                      : launch_groups<Form<T, plain, false>>(s, c);
    case weights:
      return c.gather ? launch_groups<Form<T, weights, true>>(s, c)
                      : launch_groups<Form<T, weights, false>>(s, c);
  }
}

}  // namespace

bool gemm_grouped_hopper_takes(const CudaStream& s, const GroupedCall& c) {
  return s.card.hopper() && s.hopper_kernels && gemm_grouped_mma_takes(c) &&
         s.card.shared_bytes >= shared_bytes(c.groups);
}

void gemm_grouped_hopper(CudaStream& s, const GroupedCall& c) {
  c.dtype == DType::f16 ? launch_form<__half>(s, c) : launch_form<__nv_bfloat16>(s, c);
  check_launch("grouped_gemm");
}

}  // namespace hearth::cuda
