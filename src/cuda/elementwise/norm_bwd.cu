// Gradients of layer norm and RMS norm. Memory bound: a row of C two-byte elements moves 6C bytes,
// or 8C with a prior. A warp (or block) iterates over rows and keeps its partial gradients of gain
// and bias in registers; the partial sums are added in a fixed order.
#include "cuda/device/reduce.h"
#include "cuda/elementwise/norm_bwd_rows.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

// Both sums over the block, with one barrier.
__device__ __forceinline__ float2 block_sums(float2 x, float2* shared) {
  const int warps = int(blockDim.x) / 32, lane = int(threadIdx.x) % 32;
  x = {warp_sum(x.x), warp_sum(x.y)};
  if (lane == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const float2 other = lane < warps ? shared[lane] : float2{};
  return {warp_sum(other.x), warp_sum(other.y)};
}

// Each thread of a warp (or block) holds P packs of a row; the team takes every step-th row.
template <class T, int N, int P, bool block, int vectors>
__global__ void __launch_bounds__(block ? 1024 : 256, block ? 1 : 2)
    norm_bwd_rows(NormBwdRows<T> a) {
  using Team = NormBwdTeam<N, block>;
  __shared__ float2 shared[2][32];
  const int teams = int(blockDim.x) / Team::size();
  Pack<T, N> gain[P] = {};
  constexpr bool sums = vectors > 0;
  float dgain[P][N] = {}, dbias[P][N] = {}, columns[P][N] = {};
  if (a.gain)
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (Team::column(p) < a.width) gain[p] = load<N>(a.gain + Team::column(p));

  extern __shared__ uint4 memory[];
  NormBwdRing<Team, T, N, P> ring{memory, a};
  const int64_t step = int64_t(gridDim.x) * teams;
  int64_t row = int64_t(blockIdx.x) * teams + int(threadIdx.x) / Team::size();
  const auto stat_of = [&](int64_t row) {
    return row < a.rows ? reinterpret_cast<const float2*>(a.stat)[row] : float2{};
  };
  ring.fetch(row, 0);
  float2 next = stat_of(row);
  for (int turn = 0; row < a.rows; row += step, turn ^= 1) {
    const float2 stat = next;
    next = stat_of(row + step);
    ring.stage = turn;
    ring.fetch(row + step, turn ^ 1);
    ring.wait(row);
    float2 e_sums = {};  // of e, and of e * n
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (Team::column(p) < a.width)
        add_pack<sums>(e_sums, dgain[p], dbias[p], ring.dy(p), ring.x(p), gain[p], a.gain, stat);
    if constexpr (block)
      e_sums = block_sums(e_sums, shared[turn]);
    else
      e_sums = {warp_sum(e_sums.x), warp_sum(e_sums.y)};
    const NormBwdStat r{stat.x, stat.y, a.layer ? e_sums.x / float(a.width) : 0,
                        e_sums.y / float(a.width)};
    T* dx = a.dx + ring.at;
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (Team::column(p) < a.width) {
        float out[N];
        dx_of(out, a, ring.dy(p), ring.x(p), gain[p], ring.prior(p), r);
        store_rounded(dx + Team::column(p), out);
        if constexpr (vectors == 3)
#pragma unroll
          for (int k = 0; k < N; ++k) columns[p][k] += out[k];
      }
  }

  if constexpr (sums) {
    float* part = a.parts + blockIdx.x * int64_t(vectors * a.width);
    if constexpr (block) {
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (Team::column(p) < a.width) {
          store_rounded(part + Team::column(p), dgain[p]);
          store_rounded(part + a.width + Team::column(p), dbias[p]);
          if constexpr (vectors == 3)
            store_rounded(part + 2 * a.width + Team::column(p), columns[p]);
        }
    } else {
      auto* slots = reinterpret_cast<float*>(memory);
      wait_for_copies<0>();
      __syncthreads();
      put_sums(part, slots, dgain, a.width);
      __syncthreads();
      put_sums(part + a.width, slots, dbias, a.width);
      if constexpr (vectors == 3) {
        __syncthreads();
        put_sums(part + 2 * a.width, slots, columns, a.width);
      }
    }
  }
}

// Rows too long for registers: column sums first (dx may alias dy), one thread per column; then dx,
// with each row read twice.
template <class T>
__global__ void long_sums(NormBwdRows<T> a) {
  const int column = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= a.width) return;
  float dgain = 0, dbias = 0;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const float2 stat = reinterpret_cast<const float2*>(a.stat)[row];
    const float d = get(load<1>(a.dy + row * a.width + column), 0);
    const float x = get(load<1>(a.x + row * a.width + column), 0);
    dgain = fmaf(d, (x - stat.x) * stat.y, dgain);
    dbias += d;
  }
  float* part = a.parts + blockIdx.y * int64_t(2 * a.width);
  part[column] = dgain;
  part[a.width + column] = dbias;
}

template <class T, int N>
__global__ void long_rows(NormBwdRows<T> a) {
  __shared__ float shared[64];
  const int64_t at = blockIdx.x * int64_t(a.width);
  const float2 stat = reinterpret_cast<const float2*>(a.stat)[blockIdx.x];
  float2 sums = {};
  const int first = int(threadIdx.x) * N, step = int(blockDim.x) * N;
  for (int i = first; i < a.width; i += step) {
    const Pack<T, N> dy = load<N>(a.dy + at + i), x = load<N>(a.x + at + i);
    const Pack<T, N> gain = a.gain ? load<N>(a.gain + i) : Pack<T, N>{};
    float none[N];
    add_pack<false>(sums, none, none, dy, x, gain, a.gain, stat);
  }
  sums = {block_sum(sums.x, shared), block_sum(sums.y, shared + 32)};
  const NormBwdStat row{stat.x, stat.y, a.layer ? sums.x / float(a.width) : 0,
                        sums.y / float(a.width)};
  for (int i = first; i < a.width; i += step) {
    float out[N];
    dx_of(out, a, load<N>(a.dy + at + i), load<N>(a.x + at + i),
          a.gain ? load<N>(a.gain + i) : Pack<T, N>{},
          a.prior ? load<N>(a.prior + at + i) : Pack<T, N>{}, row);
    store_rounded(a.dx + at + i, out);
  }
}

struct Grid {
  int64_t blocks;
  unsigned threads;
  bool in_flight;  // true: norm_bwd_rows; false: the kernels for long rows
};

// The most packs of a row whose sums fit in a warp, and in a block with one pack (or four single
// elements) per thread.
constexpr int64_t warp_packs(int N) { return N == 1 ? 128 : 96; }
constexpr int64_t block_packs(int N) { return N == 1 ? 4096 : 1024; }

Grid grid_of(const CudaStream& s, int N, int64_t packs, int64_t rows) {
  const bool fits = packs * 96 + 1024 <= s.card.shared_bytes;  // two buffers of three tensors
  if (packs > block_packs(N) || (N > 1 && !fits)) return {std::min<int64_t>(rows, 128), 512, false};
  if (packs <= warp_packs(N))
    return {std::min(ceil_div(rows, 8), int64_t(s.card.processors) * 2), 256, true};
  const int64_t threads = round_up(N == 1 ? ceil_div(packs, 4) : packs, 32);
  return {std::min(rows, s.card.processors * std::max<int64_t>(1, 1024 / threads)),
          unsigned(threads), true};
}

template <class T, int N, int P, bool block>
void launch_rows(CudaStream& s, const NormBwdRows<T>& a, const Grid& g) {
  auto* kernel = !a.parts         ? norm_bwd_rows<T, N, P, block, 0>
                 : a.vectors == 2 ? norm_bwd_rows<T, N, P, block, 2>
                                  : norm_bwd_rows<T, N, P, block, 3>;
  const size_t ring = N > 1 ? g.threads * P * 96 : 0, sums = block ? 0 : g.threads * P * N * 4;
  const size_t shared = std::max(ring, sums);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
        "asking for shared memory");
  kernel<<<unsigned(g.blocks), g.threads, shared, s.handle>>>(a);
}

template <class T, int N>
void launch(CudaStream& s, const NormBwdRows<T>& a, const Grid& g) {
  const int64_t packs = ceil_div(a.width, N);
  if (!g.in_flight) {
    const dim3 sums(unsigned(ceil_div(a.width, 256)), unsigned(g.blocks));
    if (a.parts) long_sums<T><<<sums, 256, 0, s.handle>>>(a);
    long_rows<T, N><<<unsigned(a.rows), 512, 0, s.handle>>>(a);
  } else if (packs > warp_packs(N)) {
    launch_rows<T, N, N == 1 ? 4 : 1, true>(s, a, g);
  } else if constexpr (N == 1) {
    launch_rows<T, N, 4, false>(s, a, g);
  } else if (packs > 64) {
    launch_rows<T, N, 3, false>(s, a, g);
  } else {
    launch_rows<T, N, 2, false>(s, a, g);
  }
  check_launch("norm_bwd");
}

// `columns`: the column sums of dx, if they are wanted.
void norm_bwd(Stream& stream, const NormBwdArgs& given, const ColumnSumArgs* columns) {
  NormBwdArgs args = given;
  const NormSpec& spec = args.spec;
  expect_dtypes("norm_bwd", args.x.dtype, args.dx, args.dy, args.gain, args.prior);
  expect_dtypes("norm_bwd", DType::f32, args.dgain, args.dbias, args.stat);
  if (columns) expect_dtypes("norm_bwd", DType::f32, columns->out);
  CudaStream& s = on(stream);
  if (args.x.numel() == 0) {
    if (columns) column_sum(s, *columns);
    return;
  }
  const int64_t rows = args.x.rows(), C = args.x.cols();
  const bool packed = packs_fit(C, args.dx, args.dy, args.x, args.gain, args.prior);
  const int N = packed ? int(16 / size_of(args.x.dtype)) : 1;
  const Grid grid = grid_of(s, N, C / N, rows);
  const int64_t fused = args.fp8 && packed ? norm_bwd_fp8_blocks(s, rows, C) : 0;
  const int64_t blocks = fused ? fused : grid.blocks;
  const bool sums_dx = columns && !fused && grid.in_flight;
  const int vectors = sums_dx ? 3 : 2;
  const bool sums = args.dgain || args.dbias || sums_dx;
  const int64_t part_bytes = sums ? round_up(blocks * vectors * C * 4, 256) : 0;
  // The separate rounding reads dx, even if nothing else does.
  const bool lacks_dx = !fused && !args.dx;
  auto* scratch = static_cast<std::byte*>(s.scratch(part_bytes + (lacks_dx ? args.x.bytes() : 0)));
  if (lacks_dx) args.dx = {scratch + part_bytes, args.x.shape, args.x.dtype};
  float* parts = part_bytes ? reinterpret_cast<float*>(scratch) : nullptr;
  by_dtype("norm_bwd", args.x, [&]<class T>(T*) {
    const NormBwdRows<T> a{.dx = as<T>(args.dx),
                           .parts = parts,
                           .vectors = vectors,
                           .dy = as<T>(args.dy),
                           .x = as<T>(args.x),
                           .gain = as<T>(args.gain),
                           .prior = as<T>(args.prior),
                           .stat = as<float>(args.stat),
                           .rows = rows,
                           .width = int(C),
                           .layer = spec.kind == Norm::layer};
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (fused) return norm_bwd_fp8(s, a, args.fp8);
    by_width<T>(packed, [&]<int N>(Number<N>) { launch<T, N>(s, a, grid); });
  });
  const SumOutput dgain{as<float>(args.dgain), 1, spec.add},
      dbias{as<float>(args.dbias), 1, spec.add};
  if (sums_dx)
    add_parts(s, {dgain, dbias, {as<float>(columns->out), columns->alpha, columns->add}}, parts,
              blocks, C);
  else if (parts)
    add_parts(s, {dgain, dbias}, parts, blocks, C);
  if (columns && !sums_dx) column_sum(s, *columns);
  if (args.fp8 && !fused) quantise_fp8(s, {.to = args.fp8, .x = args.dx});
}

}  // namespace

void norm_bwd(Stream& s, const NormBwdArgs& args) { norm_bwd(s, args, nullptr); }

void norm_bwd_sums(Stream& s, const NormBwdArgs& args, const ColumnSumArgs& columns) {
  norm_bwd(s, args, &columns);
}

}  // namespace hearth::cuda
