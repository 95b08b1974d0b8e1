// Cross-entropy whose gradient is rounded to fp8, plain and transposed. One kernel does two kinds
// of work: reducing a row of logits to its loss, and rounding a tile of 128 rows and 256 columns.
// The tiles of 128 rows are rounded soon after these rows were reduced, while the logits are still
// in L2. Memory bound: a logit is read once from memory and written as two bytes.
#include "cuda/device/fp8_codes.cuh"
#include "cuda/kernels.h"
#include "cuda/loss/logit_rows.cuh"

namespace hearth::cuda {
namespace {

constexpr int threads = 512, tiles = threads / Fp8Tile::threads;  // tiles: that a block rounds
constexpr int slice = Fp8Tile::side;                              // rows

using Logits = LogitRows<__nv_bfloat16>;

// What the gradients of a row depend on.
struct alignas(16) RowGrad {
  float base;  // of the exponentials
  GradFactors factors;
  int32_t target;  // masked: all gradients are 0
};

struct Work {
  Logits a;
  Fp8Target to;
  float factor;       // of the loss term, in the scale of the codes
  RowGrad* rows;      // (whole slices)
  unsigned* taken;    // items of work that blocks have begun
  unsigned* reduced;  // (slices) rows that are reduced

  __host__ __device__ unsigned slices() const { return unsigned(ceil_div(to.R, slice)); }
  __host__ __device__ unsigned across() const {
    return unsigned(ceil_div(to.C, tiles * Fp8Tile::side));
  }
  // Items in order: the rows of slice 0; then for each slice the rows of the next one and its own
  // tiles. The rows of the slice after the last one are items without work.
  __host__ __device__ unsigned items() const { return slice + slices() * (slice + across()); }
};

template <bool capped>
__device__ RowGrad reduced_row(const Work& w, int64_t row, float* shared) {
  const int target = row < w.to.R ? w.a.targets[row] : masked;
  if (target == masked) {
    if (threadIdx.x == 0 && row < w.to.R) w.a.nll[row] = 0;
    if (threadIdx.x == 0 && row < w.to.R && w.a.z) w.a.z[row] = 0;
    return {0, {0, 0}, masked};
  }
  __nv_bfloat16* logits = w.a.logits + row * w.a.width;
  const ExpSums sums = joined(thread_sums<8, capped, false>(w.a, logits, logits), shared);
  if (threadIdx.x == 0) w.a.nll[row] = nll_of<capped>(w.a, sums, get(load<1>(logits + target), 0));
  if (threadIdx.x == 0 && w.a.z) w.a.z[row] = lse_of(sums) * lse_of(sums);
  return {sums.base, factors_of(w.a, sums, 1), target};
}

template <bool capped>
__device__ void reduce_row(const Work& w, int64_t row, float* shared) {
  const RowGrad r = reduced_row<capped>(w, row, shared);
  if (threadIdx.x != 0) return;
  w.rows[row] = r;
  __threadfence();  // whoever sees the count sees the row
  atomicAdd(w.reduced + row / slice, 1u);
}

// Waits for the rows of a slice and copies them to shared memory. Blocks that reduce them have
// begun before this one and wait for nothing.
__device__ void fetch_rows(const Work& w, unsigned index, RowGrad* rows) {
  if (threadIdx.x == 0) {
    const volatile unsigned* count = w.reduced + index;
    while (*count < unsigned(slice)) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
  static_assert(sizeof(RowGrad) == sizeof(float4));
  const auto* from = reinterpret_cast<const float4*>(w.rows + int64_t(index) * slice);
  if (threadIdx.x < slice)
    reinterpret_cast<float4*>(rows)[threadIdx.x] = __ldcg(from + threadIdx.x);
  __syncthreads();
}

// Rounds the tile of a thread's half of the block.
template <bool capped>
__device__ void round_tile(const Work& w, const Fp8Tile& at, const RowGrad* rows, uint2* codes) {
  constexpr int some = 4;  // rows loaded at once
  const bool inside = at.column < w.to.C;
  uint2 coded[8];
#pragma unroll
  for (int first = 0; first < 8; first += some) {
    Pack<__nv_bfloat16, 8> in[some];
#pragma unroll
    for (int i = 0; i < some; ++i) {
      const int64_t row = at.row + first + i;
      in[i] = {};
      if (inside && row < w.to.R)
        in[i] = load_logits<8>(w.a, w.a.logits + row * w.a.width, int(at.column));
    }
#pragma unroll
    for (int i = 0; i < some; ++i) {
      const RowGrad r = rows[at.band * 8 + first + i];
      float v[8] = {};
      if (inside && r.target != masked)
        grads_of<capped>(v, w.a, in[i], int(at.column), {r.base, 0}, r.factors, r.target);
      coded[first + i] = eight_codes<__NV_E5M2>(v, 1 / fp8_logits_scale);
    }
  }
  if (w.to.y && inside)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (at.row + i < w.to.R)
        __stcs(reinterpret_cast<uint2*>(w.to.y + (at.row + i) * w.to.C + at.column), coded[i]);
  if (w.to.yt) at.write_transposed(w.to, coded, codes);
}

template <bool capped>
__global__ void __launch_bounds__(threads, 2) cross_entropy_items(Work w) {
  __shared__ Fp8Tile::Codes codes[tiles];
  __shared__ RowGrad rows[slice];
  __shared__ float shared[64];
  __shared__ unsigned item;
  // Not blockIdx.x: blocks need not start in that order.
  if (threadIdx.x == 0) item = atomicAdd(w.taken, 1u);
  __syncthreads();
  if (item == 0 && threadIdx.x == 0)
    w.to.site->scale =
        fp8_logits_scale * w.factor * scaled_gradient(*w.a.scalars, w.a.scalars->inv_targets);
  if (item < slice) return reduce_row<capped>(w, item, shared);
  const unsigned round = slice + w.across(), index = (item - slice) / round,
                 part = (item - slice) % round;
  if (part < slice) {
    if (index + 1 < w.slices()) reduce_row<capped>(w, int64_t(index + 1) * slice + part, shared);
    return;
  }
  fetch_rows(w, index, rows);
  const int half = int(threadIdx.x) / Fp8Tile::threads;
  const Fp8Tile at(int(threadIdx.x) % Fp8Tile::threads, int64_t(index) * slice,
                   (int64_t(part - slice) * tiles + half) * Fp8Tile::side);
  round_tile<capped>(w, at, rows, codes[half]);
}

}  // namespace

void cross_entropy_fp8(CudaStream& s, const CrossEntropyArgs& args) {
  expect_dtypes("cross_entropy in fp8", DType::bf16, args.logits);
  expect_dtypes("cross_entropy in fp8", DType::e5m2, args.fp8.y, args.fp8.yt);
  if (args.logits.cols() % 16)  // HeadProducts refuses such widths
    check(cudaErrorInvalidValue, "rounding to fp8 a width that is not a multiple of 16");
  const float unit = fp8_logits_unit(args.spec);
  Work w{.a = logit_rows<__nv_bfloat16>(args),
         .to = {args.fp8, args.logits.rows()},
         .factor = unit,
         .rows = nullptr,
         .taken = nullptr,
         .reduced = nullptr};
  w.a.weight /= unit, w.a.z_loss /= unit;
  const int64_t rows = int64_t(w.slices()) * slice * int64_t(sizeof(RowGrad));
  const int64_t counts = int64_t(w.slices() + 1) * int64_t(sizeof(unsigned));
  auto* scratch = static_cast<std::byte*>(s.scratch(rows + counts));
  w.rows = reinterpret_cast<RowGrad*>(scratch);
  w.taken = reinterpret_cast<unsigned*>(scratch + rows);
  w.reduced = w.taken + 1;
  check(cudaMemsetAsync(w.taken, 0, size_t(counts), s.handle), "clearing counts");
  const auto kernel =
      args.spec.softcap > 0 ? cross_entropy_items<true> : cross_entropy_items<false>;
  kernel<<<w.items(), threads, 0, s.handle>>>(w);
  check_launch("cross_entropy in fp8");
}

}  // namespace hearth::cuda
