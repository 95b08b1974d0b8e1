// The elementwise kernels of experts: activations times the router's weights, and the sum of the
// rows of each token in a fixed order. Memory bound: each value is read and written once.
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T, int N>
struct ExpertInputs {
  Pack<T, N> x, up;  // up: of a GLU
};

template <Act A, class T>
struct ExpertValue {
  T* y;
  const T* x;
  const float* weights;
  const int32_t* order;
  int64_t width;  // of y

  template <int N>
  __device__ ExpertInputs<T, N> load(int64_t i) const {
    if constexpr (is_glu(A)) {
      const T* gate = x + i + i / width * width;
      return {cuda::load<N>(gate), cuda::load<N>(gate + width)};
    } else {
      const Pack<T, N> own = cuda::load<N>(x + i);
      return {own, own};
    }
  }
  template <int N>
  __device__ void finish(int64_t i, const ExpertInputs<T, N>& in) const {
    const float weight = weights[order[i / width]];
    float out[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      out[n] = act_value_for<A, T>(get(in.x, n));
      if constexpr (is_glu(A)) out[n] *= get(in.up, n);
      out[n] *= weight;
    }
    store_rounded(y + i, out);
  }
};

template <class T>
struct ExpertGradient {
  T* dx;
  float* dweights;
  const T *dy, *x;
  const float* weights;
  const int32_t* order;
  int64_t rows;
  int width;  // of dy
};

// One warp per row.
template <Act A, class T, int N>
__global__ void __launch_bounds__(256) expert_gradient(ExpertGradient<T> a) {
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= a.rows) return;
  const int lane = int(threadIdx.x) % 32, pair = a.order[row];
  const float weight = a.weights[pair];
  const int64_t in = row * a.width * (is_glu(A) ? 2 : 1);
  float total = 0;
  for (int i = lane * N; i < a.width; i += 32 * N) {
    const Pack<T, N> dy = load<N>(a.dy + row * a.width + i), x = load<N>(a.x + in + i);
    float dx[N];
    if constexpr (is_glu(A)) {
      const Pack<T, N> up = load<N>(a.x + in + a.width + i);
      float dup[N];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const Slope<float> s = act_slope_for<A, T>(get(x, n));
        const float d = get(dy, n), u = get(up, n);
        total += d * (s.y * u);
        dx[n] = d * weight * u * s.dy;
        dup[n] = d * weight * s.y;
      }
      store_rounded(a.dx + in + a.width + i, dup);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const Slope<float> s = act_slope_for<A, T>(get(x, n));
        const float d = get(dy, n);
        total += d * s.y;
        dx[n] = d * weight * s.dy;
      }
    }
    store_rounded(a.dx + in + i, dx);
  }
  total = warp_sum(total);
  if (lane == 0) a.dweights[pair] = total;
}

// One thread per pack of columns of a token.
template <class T, int N>
__global__ void __launch_bounds__(256) combine(T* y, const T* x, const int32_t* place,
                                               const T* prior, int64_t packs, int64_t C, int k) {
  const int64_t p = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (p >= packs) return;
  const int64_t t = p * N / C, column = p * N % C;
  float sum[N] = {};
  if (prior) {
    const Pack<T, N> v = load<N>(prior + p * N);
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] = get(v, n);
  }
#pragma unroll 4
  for (int j = 0; j < k; ++j) {
    const Pack<T, N> v = load<N>(x + int64_t(place[t * k + j]) * C + column);
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] += get(v, n);
  }
  store_rounded(y + p * N, sum);
}

}  // namespace

void expert_activation(Stream& stream, const ExpertActivationArgs& args) {
  expect_dtypes("expert_activation", args.x.dtype, args.y);
  expect_dtypes("expert_activation", DType::f32, args.weights);
  const int64_t n = args.y.numel();
  by_dtype("expert_activation", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      const ExpertValue<A, T> f{as<T>(args.y), as<T>(args.x), as<float>(args.weights),
                                as<int32_t>(args.order), args.y.cols()};
      by_width<T>(packs_fit(args.y.cols(), args.y, args.x),
                  [&]<int N>(Number<N>) { for_each<N>(on(stream), "expert_activation", f, n); });
    });
  });
}

void expert_activation_bwd(Stream& stream, const ExpertActivationBwdArgs& args) {
  expect_dtypes("expert_activation_bwd", args.x.dtype, args.dx, args.dy);
  expect_dtypes("expert_activation_bwd", DType::f32, args.weights, args.dweights);
  const int64_t rows = args.dy.rows();
  if (rows == 0) return;
  by_dtype("expert_activation_bwd", args.x, [&]<class T>(T*) {
    const ExpertGradient<T> a{as<T>(args.dx), as<float>(args.dweights), as<T>(args.dy),
                              as<T>(args.x),  as<float>(args.weights),  as<int32_t>(args.order),
                              rows,           int(args.dy.cols())};
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      by_width<T>(packs_fit(args.dy.cols(), args.dx, args.dy, args.x), [&]<int N>(Number<N>) {
        expert_gradient<A, T, N><<<unsigned(ceil_div(rows, 8)), 256, 0, on(stream).handle>>>(a);
      });
    });
  });
  check_launch("expert_activation_bwd");
}

void combine_rows(Stream& stream, const CombineRowsArgs& args) {
  expect_dtypes("combine_rows", args.x.dtype, args.y, args.prior);
  const int64_t C = args.x.cols(), n = args.place.rows() * C;
  if (n == 0) return;
  by_dtype("combine_rows", args.x, [&]<class T>(T*) {
    by_width<T>(packs_fit(C, args.y, args.x, args.prior), [&]<int N>(Number<N>) {
      combine<T, N><<<unsigned(ceil_div(n / N, 256)), 256, 0, on(stream).handle>>>(
          as<T>(args.y), as<T>(args.x), as<int32_t>(args.place), as<T>(args.prior), n / N, C,
          int(args.place.cols()));
    });
  });
  check_launch("combine_rows");
}

}  // namespace hearth::cuda
