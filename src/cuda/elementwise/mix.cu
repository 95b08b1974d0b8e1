// Weighted sums of up to three values, in columns of their rows, and their gradients. Memory bound:
// one pass. For n two-byte elements a sum of three terms moves 8n bytes.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

// Where the operands lie. Element i of the mix is column i % width of row i / width; if all
// operands are whole tensors, they are taken as one row.
struct Places {
  int64_t width;
  Columns y, x[most_mixed];

  explicit Places(const MixSpec& s, int64_t n) : width(s.width), y(s.y) {
    for (int k = 0; k < most_mixed; ++k) x[k] = s.x[k];
    if (!s.dense()) return;
    width = n;
    y = {0, n};
    for (Columns& c : x) c = {0, n};
  }
  __device__ static int64_t at(const Columns& c, int64_t row, int64_t column) {
    return row * c.row + c.begin + column;
  }
};

// Whether 16 bytes of this operand may be moved at once.
bool packs_fit_columns(const Tensor& t, const Columns& c, const MixSpec& s) {
  if (s.dense()) return packs_fit(8, t);  // the end of the only row is handled apart
  return packs_fit(s.width, t) && packs_fit(c.row, t) && packs_fit(c.begin, t);
}

template <class T>
__device__ __forceinline__ float weight_of(const T* w) {
  return w ? get(load<1>(w), 0) : 1.0f;
}

template <class T, int N>
struct Terms {
  Pack<T, N> x[most_mixed];
};

template <class T>
struct Mix {
  T* y;
  const T *x[most_mixed], *w[most_mixed];  // null: absent
  Places places;

  template <int N>
  __device__ Terms<T, N> load(int64_t i) const {
    const int64_t row = i / places.width, column = i - row * places.width;
    Terms<T, N> in{};
#pragma unroll
    for (int k = 0; k < most_mixed; ++k)
      if (x[k]) in.x[k] = cuda::load<N>(x[k] + Places::at(places.x[k], row, column));
    return in;
  }
  template <int N>
  __device__ void finish(int64_t i, const Terms<T, N>& in) const {
    const int64_t row = i / places.width, column = i - row * places.width;
    float out[N] = {};
#pragma unroll
    for (int k = 0; k < most_mixed; ++k) {
      if (!x[k]) continue;
      const float weight = weight_of(w[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = fmaf(get(in.x[k], j), weight, out[j]);
    }
    store_rounded(y + Places::at(places.y, row, column), out);
  }
};

template <class T>
struct MixBwd {
  T* dx[most_mixed];
  const T *dy, *x[most_mixed], *w[most_mixed], *prior[most_mixed];  // null: absent
  Places places;

  // Writes the gradients of elements i .. i + N - 1 and adds their shares of dw to `totals`. All
  // loads come before the stores, which may overwrite dy or a prior.
  template <int N>
  __device__ void step(int64_t i, float (&totals)[most_mixed]) const {
    const int64_t row = i / places.width, column = i - row * places.width;
    const Pack<T, N> d = load<N>(dy + Places::at(places.y, row, column));
    Pack<T, N> before[most_mixed] = {};
#pragma unroll
    for (int k = 0; k < most_mixed; ++k) {
      const int64_t at = Places::at(places.x[k], row, column);
      if (prior[k]) before[k] = load<N>(prior[k] + at);
      if (!x[k]) continue;
      const Pack<T, N> v = load<N>(x[k] + at);
#pragma unroll
      for (int j = 0; j < N; ++j) totals[k] = fmaf(get(d, j), get(v, j), totals[k]);
    }
#pragma unroll
    for (int k = 0; k < most_mixed; ++k) {
      if (!dx[k]) continue;
      const float weight = weight_of(w[k]);
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] = fmaf(get(d, j), weight, prior[k] ? get(before[k], j) : 0.0f);
      store_rounded(dx[k] + Places::at(places.x[k], row, column), out);
    }
  }
};

// Every block takes its packs in turns and leaves its sums for dw in `parts` (blocks, most_mixed).
template <class T, int N>
__global__ void __launch_bounds__(256) mix_bwd_blocks(MixBwd<T> f, float* parts, int64_t n) {
  __shared__ float shared[most_mixed][32];
  float totals[most_mixed] = {};
  const int64_t step = int64_t(gridDim.x) * blockDim.x * N;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + N <= n; i += step) f.template step<N>(i, totals);
  if constexpr (N > 1) {  // the tail of the range, one element per thread
    const int64_t last = n / N * N + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && last < n) f.template step<1>(last, totals);
  }
  if (!parts) return;
#pragma unroll
  for (int k = 0; k < most_mixed; ++k) {
    const float total = block_sum(totals[k], shared[k]);
    if (threadIdx.x == 0) parts[int64_t(blockIdx.x) * most_mixed + k] = total;
  }
}

struct WeightGradients {
  float* dw[most_mixed];  // null: absent
  bool add[most_mixed];
};

// One warp per weight adds the parts in a fixed order.
__global__ void __launch_bounds__(32 * most_mixed)
    mix_bwd_weights(WeightGradients g, const float* parts, int count) {
  const int k = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (!g.dw[k]) return;
  double total = 0;
  for (int p = lane; p < count; p += 32) total += double(parts[p * most_mixed + k]);
  total = warp_sum(total);
  if (lane == 0) *g.dw[k] = float(g.add[k] ? double(*g.dw[k]) + total : total);
}

}  // namespace

void mix(Stream& stream, const MixArgs& args) {
  expect_dtypes("mix", args.y.dtype, args.x[0], args.x[1], args.x[2]);
  expect_dtypes("mix", args.y.dtype, args.w[0], args.w[1], args.w[2]);
  const MixSpec& spec = args.spec;
  const int64_t n = args.y.numel() / spec.y.row * spec.width;
  bool packs = packs_fit_columns(args.y, spec.y, spec);
  for (int k = 0; k < most_mixed; ++k)
    packs = packs && packs_fit_columns(args.x[k], spec.x[k], spec);
  by_dtype("mix", args.y, [&]<class T>(T*) {
    Mix<T> f{.y = as<T>(args.y), .x = {}, .w = {}, .places = Places(spec, n)};
    for (int k = 0; k < most_mixed; ++k) f.x[k] = as<T>(args.x[k]), f.w[k] = as<T>(args.w[k]);
    by_width<T>(packs, [&]<int N>(Number<N>) { for_each<N>(on(stream), "mix", f, n); });
  });
}

void mix_bwd(Stream& stream, const MixBwdArgs& args) {
  expect_dtypes("mix_bwd", args.dy.dtype, args.dx[0], args.dx[1], args.dx[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.x[0], args.x[1], args.x[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.w[0], args.w[1], args.w[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.prior[0], args.prior[1], args.prior[2]);
  expect_dtypes("mix_bwd", DType::f32, args.dw[0], args.dw[1], args.dw[2]);
  const MixSpec& spec = args.spec;
  const int64_t n = args.dy.numel() / spec.y.row * spec.width;
  if (n == 0) return;
  CudaStream& s = on(stream);
  bool packs = packs_fit_columns(args.dy, spec.y, spec), sums = false;
  WeightGradients weights{};
  for (int k = 0; k < most_mixed; ++k) {
    for (const Tensor* t : {&args.dx[k], &args.x[k], &args.prior[k]})
      packs = packs && packs_fit_columns(*t, spec.x[k], spec);
    weights.dw[k] = as<float>(args.dw[k]), weights.add[k] = spec.add[k];
    sums = sums || args.dw[k];
  }
  by_dtype("mix_bwd", args.dy, [&]<class T>(T*) {
    MixBwd<T> f{
        .dx = {}, .dy = as<T>(args.dy), .x = {}, .w = {}, .prior = {}, .places = Places(spec, n)};
    for (int k = 0; k < most_mixed; ++k) {
      f.dx[k] = as<T>(args.dx[k]), f.prior[k] = as<T>(args.prior[k]), f.w[k] = as<T>(args.w[k]);
      f.x[k] = args.dw[k] ? as<T>(args.x[k]) : nullptr;
    }
    by_width<T>(packs, [&]<int N>(Number<N>) {
      const int64_t need = ceil_div(n, int64_t(256) * N);
      const int blocks = int(std::clamp<int64_t>(need, 1, int64_t(s.card.processors) * 8));
      auto* parts =
          sums ? static_cast<float*>(s.scratch(int64_t(blocks) * most_mixed * 4)) : nullptr;
      mix_bwd_blocks<T, N><<<unsigned(blocks), 256, 0, s.handle>>>(f, parts, n);
      check_launch("mix_bwd");
      if (!sums) return;
      mix_bwd_weights<<<1, 32 * most_mixed, 0, s.handle>>>(weights, parts, blocks);
      check_launch("mix_bwd");
    });
  });
}

}  // namespace hearth::cuda
