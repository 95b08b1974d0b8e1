// Activations and GLUs, forward and backward. Memory bound, one pass: for N two-byte outputs, 4N
// bytes (GLU: 6N) forward and 6N (GLU: 10N) backward.
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <Act A, class T>
struct Value {
  T* y;
  const T* x;

  template <int N>
  __device__ Pack<T, N> load(int64_t i) const {
    return cuda::load<N>(x + i);
  }
  template <int N>
  __device__ void finish(int64_t i, const Pack<T, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = act_value_for<A, T>(get(in, k));
    store_rounded(y + i, out);
  }
};

// Inputs of a GLU for a pack of outputs.
template <class T, int N>
struct GatePair {
  Pack<T, N> gate, up;
};

template <Act A, class T>
struct GluValue {
  T* y;
  const T* x;
  int64_t width;  // of y

  template <int N>
  __device__ GatePair<T, N> load(int64_t i) const {
    const T* gate = x + i + i / width * width;
    return {cuda::load<N>(gate), cuda::load<N>(gate + width)};
  }
  template <int N>
  __device__ void finish(int64_t i, const GatePair<T, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = act_value_for<A, T>(get(in.gate, k)) * get(in.up, k);
    store_rounded(y + i, out);
  }
};

template <class T, int N>
struct SlopeInputs {
  Pack<T, N> dy, x;
};

template <Act A, class T>
struct Gradient {
  T* dx;
  const T *dy, *x;

  template <int N>
  __device__ SlopeInputs<T, N> load(int64_t i) const {
    return {cuda::load<N>(dy + i), cuda::load<N>(x + i)};
  }
  template <int N>
  __device__ void finish(int64_t i, const SlopeInputs<T, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(in.dy, k) * act_slope_for<A, T>(get(in.x, k)).dy;
    store_rounded(dx + i, out);
  }
};

template <class T, int N>
struct GluInputs {
  Pack<T, N> dy, gate, up;
};

template <Act A, class T>
struct GluGradient {
  T* dx;
  const T *dy, *x;
  int64_t width;  // of dy

  template <int N>
  __device__ GluInputs<T, N> load(int64_t i) const {
    const T* gate = x + i + i / width * width;
    return {cuda::load<N>(dy + i), cuda::load<N>(gate), cuda::load<N>(gate + width)};
  }
  template <int N>
  __device__ void finish(int64_t i, const GluInputs<T, N>& in) const {
    T* to = dx + i + i / width * width;
    float dgate[N], dup[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Slope<float> a = act_slope_for<A, T>(get(in.gate, k));
      const float d = get(in.dy, k);
      dgate[k] = d * get(in.up, k) * a.dy;
      dup[k] = d * a.y;
    }
    store_rounded(to, dgate);
    store_rounded(to + width, dup);
  }
};

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  expect_dtypes("activation", args.x.dtype, args.y);
  const int64_t n = args.y.numel();
  by_dtype("activation", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      if constexpr (is_glu(A)) {
        const GluValue<A, T> f{as<T>(args.y), as<T>(args.x), args.y.cols()};
        by_width<T>(packs_fit(args.y.cols(), args.y, args.x),
                    [&]<int N>(Number<N>) { for_each<N>(on(stream), "activation", f, n); });
      } else {
        const Value<A, T> f{as<T>(args.y), as<T>(args.x)};
        by_width<T>(packs_fit(8, args.y, args.x),
                    [&]<int N>(Number<N>) { for_each<N>(on(stream), "activation", f, n); });
      }
    });
  });
}

void activation_bwd(Stream& stream, const ActivationBwdArgs& args) {
  expect_dtypes("activation_bwd", args.x.dtype, args.dx, args.dy);
  const int64_t n = args.dy.numel();
  by_dtype("activation_bwd", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      if constexpr (is_glu(A)) {
        const GluGradient<A, T> f{as<T>(args.dx), as<T>(args.dy), as<T>(args.x), args.dy.cols()};
        by_width<T>(packs_fit(args.dy.cols(), args.dx, args.dy, args.x),
                    [&]<int N>(Number<N>) { for_each<N>(on(stream), "activation_bwd", f, n); });
      } else {
        const Gradient<A, T> f{as<T>(args.dx), as<T>(args.dy), as<T>(args.x)};
        by_width<T>(packs_fit(8, args.dx, args.dy, args.x),
                    [&]<int N>(Number<N>) { for_each<N>(on(stream), "activation_bwd", f, n); });
      }
    });
  });
}

}  // namespace hearth::cuda
