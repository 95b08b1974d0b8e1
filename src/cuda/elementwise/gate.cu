// The output gate of attention, y = x * sigmoid(g), with one gate per element or per head. Memory
// bound: one pass.
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T>
__device__ __forceinline__ float open_for(float g) {
  return sigmoid<!std::is_same_v<T, float>>(g);
}

template <class T, int N>
struct Gated {
  Pack<T, N> x, g;
};

template <class T>
struct ElementGate {
  T* y;
  const T *x, *g;

  template <int N>
  __device__ Gated<T, N> load(int64_t i) const {
    return {cuda::load<N>(x + i), cuda::load<N>(g + i)};
  }
  template <int N>
  __device__ void finish(int64_t i, const Gated<T, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(in.x, k) * open_for<T>(get(in.g, k));
    store_rounded(y + i, out);
  }
};

template <class T, int N>
struct GatedGradient {
  Pack<T, N> dy, x, g;
};

template <class T>
struct ElementGateBwd {
  T *dx, *dg;
  const T *dy, *x, *g;

  template <int N>
  __device__ GatedGradient<T, N> load(int64_t i) const {
    return {cuda::load<N>(dy + i), cuda::load<N>(x + i), cuda::load<N>(g + i)};
  }
  template <int N>
  __device__ void finish(int64_t i, const GatedGradient<T, N>& in) const {
    float out[N], gate[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float open = open_for<T>(get(in.g, k)), d = get(in.dy, k);
      out[k] = d * open;
      gate[k] = d * get(in.x, k) * open * (1.0f - open);
    }
    store_rounded(dx + i, out);
    store_rounded(dg + i, gate);
  }
};

template <class T>
struct HeadGate {
  T* y;
  const T *x, *g;
  int64_t width;

  template <int N>
  __device__ Gated<T, N> load(int64_t i) const {
    Gated<T, N> r;
    r.x = cuda::load<N>(x + i);
    r.g.w[0] = cuda::load<1>(g + i / width).w[0];
    return r;
  }
  template <int N>
  __device__ void finish(int64_t i, const Gated<T, N>& in) const {
    const float open = open_for<T>(get(in.g, 0));
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(in.x, k) * open;
    store_rounded(y + i, out);
  }
};

// `lanes` threads of a warp (a power of two) share a head, so the sum for dg stays among them.
template <class T, int N, int lanes>
__global__ void __launch_bounds__(256)
    head_gate_bwd(T* dx, T* dg, const T* dy, const T* x, const T* g, int64_t heads, int width) {
  const int64_t head = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / lanes;
  const bool mine = head < heads;
  const float open = mine ? open_for<T>(get(load<1>(g + head), 0)) : 0;
  float total = 0;
  for (int i = int(threadIdx.x) % lanes * N; mine && i < width; i += lanes * N) {
    const int64_t at = head * width + i;
    const Pack<T, N> d = load<N>(dy + at), v = load<N>(x + at);
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      total = fmaf(get(d, k), get(v, k), total);
      out[k] = get(d, k) * open;
    }
    store_rounded(dx + at, out);
  }
  const float gate[1] = {warp_sum<lanes>(total) * open * (1.0f - open)};
  if (mine && threadIdx.x % lanes == 0) store_rounded(dg + head, gate);
}

template <class T, int N, int lanes>
void launch_head_bwd(CudaStream& s, const OutputGateBwdArgs& args) {
  const int64_t heads = args.g.numel(), blocks = ceil_div(heads * lanes, 256);
  head_gate_bwd<T, N, lanes><<<unsigned(blocks), 256, 0, s.handle>>>(
      as<T>(args.dx), as<T>(args.dg), as<T>(args.dy), as<T>(args.x), as<T>(args.g), heads,
      int(args.x.cols()));
  check_launch("output_gate_bwd");
}

}  // namespace

void output_gate(Stream& stream, const OutputGateArgs& args) {
  expect_dtypes("output_gate", args.x.dtype, args.y, args.g);
  const int64_t n = args.x.numel(), D = args.x.cols();
  by_dtype("output_gate", args.x, [&]<class T>(T*) {
    if (args.g.numel() == n) {
      const ElementGate<T> f{as<T>(args.y), as<T>(args.x), as<T>(args.g)};
      by_width<T>(packs_fit(8, args.y, args.x, args.g),
                  [&]<int N>(Number<N>) { for_each<N>(on(stream), "output_gate", f, n); });
    } else {
      const HeadGate<T> f{as<T>(args.y), as<T>(args.x), as<T>(args.g), D};
      by_width<T>(packs_fit(D, args.y, args.x),
                  [&]<int N>(Number<N>) { for_each<N>(on(stream), "output_gate", f, n); });
    }
  });
}

void output_gate_bwd(Stream& stream, const OutputGateBwdArgs& args) {
  expect_dtypes("output_gate_bwd", args.x.dtype, args.dx, args.dg, args.dy, args.g);
  const int64_t n = args.x.numel(), D = args.x.cols();
  if (n == 0) return;
  by_dtype("output_gate_bwd", args.x, [&]<class T>(T*) {
    if (args.g.numel() == n) {
      const ElementGateBwd<T> f{as<T>(args.dx), as<T>(args.dg), as<T>(args.dy), as<T>(args.x),
                                as<T>(args.g)};
      by_width<T>(packs_fit(8, args.dx, args.dg, args.dy, args.x, args.g),
                  [&]<int N>(Number<N>) { for_each<N>(on(stream), "output_gate_bwd", f, n); });
    } else if (packs_fit(D, args.dx, args.dy, args.x)) {
      launch_head_bwd<T, wide<T>, 8>(on(stream), args);
    } else {
      launch_head_bwd<T, 1, 32>(on(stream), args);
    }
  });
}

}  // namespace hearth::cuda
