// Gradients of embedding tables. Rows of dy are sorted by table row. A block sums a run of 32
// sorted rows: it writes segments that begin and end inside the run, and leaves partial sums of
// longer ones to a second kernel. Memory bound: reads dy once, writes the table once (with add:
// reads it too).
#include "cuda/device/device.cuh"
#include "cuda/device/sort.h"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int run = 32;  // sorted rows per block

struct Scatter {
  float* table = nullptr;    // (limit, width)
  float* pieces = nullptr;   // (runs, 2, width): sums of a segment begun before, or in, the run
  uint32_t* ends = nullptr;  // (limit): where a table row's segment ends; 0: it has none
  SortedRows sorted = {};
  int64_t n = 0, limit = 0;
  int width = 0;
  bool add = false;

  // The key at i, or ~0 outside.
  __device__ uint32_t key(int64_t i) const { return i >= 0 && i < n ? sorted.keys[i] : ~0u; }
};

__global__ void mark_ends(Scatter s) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < s.n && s.key(i) != s.key(i + 1)) s.ends[s.key(i)] = uint32_t(i + 1);
}

// Zeros the table rows that no row of dy belongs to; one warp per table row.
template <int N>
__global__ void __launch_bounds__(256) clear_missing(Scatter s) {
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= s.limit || s.ends[row]) return;
  const float zeros[N] = {};
  for (int i = int(threadIdx.x) % 32 * N; i < s.width; i += 32 * N)
    store_rounded(s.table + row * s.width + i, zeros);
}

template <int N>
__device__ __forceinline__ void put(float* to, const float (&x)[N], bool add) {
  float out[N];
  if (add) {
    const Pack<float, N> old = load<N>(to);
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(old, k) + x[k];
    store_rounded(to, out);
  } else {
    store_rounded(to, x);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(256) sum_runs(Scatter s, const T* dy) {
  __shared__ uint32_t keys[run + 2], rows[run];
  const int64_t begin = int64_t(blockIdx.x) * run;
  const int count = int(min(int64_t(run), s.n - begin));
  for (int i = threadIdx.x; i < run + 2; i += blockDim.x) keys[i] = s.key(begin + i - 1);
  for (int i = threadIdx.x; i < count; i += blockDim.x) rows[i] = s.sorted.rows[begin + i];
  __syncthreads();
  const int column = int(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (column >= s.width) return;
  float total[N] = {};
  int start = 0;
  constexpr int deep = 8;
  for (int i = 0; i < count; i += deep) {
    Pack<T, N> in[deep];
#pragma unroll
    for (int d = 0; d < deep; ++d)
      if (i + d < count) in[d] = load<N>(dy + int64_t(rows[i + d]) * s.width + column);
#pragma unroll
    for (int d = 0; d < deep; ++d)
      if (i + d < count) {
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += get(in[d], k);
        const uint32_t key = keys[i + d + 1], next = keys[i + d + 2];
        const bool last = i + d + 1 == count;
        if (!last && next == key) continue;
        const bool whole = (start > 0 || keys[0] != key) && next != key;
        if (whole)
          put(s.table + int64_t(key) * s.width + column, total, s.add);
        else
          store_rounded(s.pieces + (int64_t(blockIdx.x) * 2 + (start > 0)) * s.width + column,
                        total);
        start = i + d + 1;
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] = 0;
      }
  }
}

// The run in which a long segment begins adds up its partial sums, in order.
__global__ void __launch_bounds__(256) join_pieces(Scatter s) {
  const int64_t begin = int64_t(blockIdx.x) * run, next = begin + run;
  const uint32_t key = s.key(next - 1);
  if (next >= s.n || s.key(next) != key) return;  // no segment continues into the next run
  const bool inside = s.key(begin) != key;        // the segment begins after the run's first row
  if (!inside && s.key(begin - 1) == key) return;
  const int column = int(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= s.width) return;
  const int64_t last = (int64_t(s.ends[key]) - 1) / run;
  float total = s.pieces[(int64_t(blockIdx.x) * 2 + inside) * s.width + column];
#pragma unroll 16
  for (int64_t r = int64_t(blockIdx.x) + 1; r <= last; ++r)
    total += s.pieces[r * 2 * s.width + column];
  const float sum[1] = {total};
  put(s.table + int64_t(key) * s.width + column, sum, s.add);
}

int64_t ends_bytes(int64_t limit) { return round_up(limit * 4, 256); }

int64_t scatter_bytes(int64_t n, Tensor table) {
  if (!table) return 0;
  const int64_t pieces = ceil_div(n, run) * 2 * table.cols() * 4;
  return sort_bytes(n) + ends_bytes(table.rows()) + pieces;
}

// table[index[i]] += dy[i], starting from zeros unless `add`.
template <class T, int N>
void scatter(CudaStream& stream, void* memory, Tensor table, Tensor dy, Tensor index, bool add) {
  const int64_t n = index.numel();
  const int width = int(table.cols());
  auto* at = static_cast<std::byte*>(memory);
  const cudaStream_t handle = stream.handle;
  Scatter s{.table = as<float>(table), .n = n, .limit = table.rows(), .width = width, .add = add};
  s.ends = reinterpret_cast<uint32_t*>(at + sort_bytes(n));
  s.pieces = reinterpret_cast<float*>(at + sort_bytes(n) + ends_bytes(s.limit));
  if (!add) check(cudaMemsetAsync(s.ends, 0, size_t(s.limit) * 4, handle), "clearing");
  if (n > 0) {
    s.sorted = sort_rows(stream, at, as<int32_t>(index), n, s.limit);
    mark_ends<<<unsigned(ceil_div(n, 256)), 256, 0, handle>>>(s);
    const auto runs = unsigned(ceil_div(n, run));
    const auto threads = unsigned(std::min<int64_t>(256, round_up(ceil_div(width, N), 32)));
    sum_runs<T, N>
        <<<dim3(runs, unsigned(ceil_div(width, threads * N))), threads, 0, handle>>>(s, as<T>(dy));
    join_pieces<<<dim3(runs, unsigned(ceil_div(width, 256))), 256, 0, handle>>>(s);
  }
  if (!add) clear_missing<N == 1 ? 1 : 4><<<unsigned(ceil_div(s.limit, 8)), 256, 0, handle>>>(s);
  check_launch("embed_bwd");
}

}  // namespace

void embed_bwd(Stream& stream, const EmbedBwdArgs& args) {
  const EmbedSpec& spec = args.spec;
  expect_dtypes("embed_bwd", DType::f32, args.dw, args.dpos_w);
  CudaStream& s = on(stream);
  const int64_t n = args.ids.numel();
  void* memory = s.scratch(std::max(scatter_bytes(n, args.dw), scatter_bytes(n, args.dpos_w)));
  by_dtype("embed_bwd", args.dy, [&]<class T>(T*) {
    by_width<T>(packs_fit(args.dy.cols(), args.dy, args.dw, args.dpos_w), [&]<int N>(Number<N>) {
      if (args.dw) scatter<T, N>(s, memory, args.dw, args.dy, args.ids, spec.add);
      if (args.dpos_w) scatter<T, N>(s, memory, args.dpos_w, args.dy, args.positions, spec.add_pos);
    });
  });
}

}  // namespace hearth::cuda
