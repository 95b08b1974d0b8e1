// The epilogue of a product where cuBLASLt has none, or a slower one. Memory bound.
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/gemm/gemm.h"

namespace hearth::cuda {
namespace {

// c = alpha * act(x) + prior, or with `slope` c = alpha * x * act'(aux) + prior.
template <Act A, bool slope, class T>
struct Epilogue {
  T* c;
  const T *x, *aux, *prior;  // prior may be absent
  float alpha;

  template <int N>
  struct In {
    Pack<T, N> x, aux, prior;
  };
  template <int N>
  __device__ In<N> load(int64_t i) const {
    In<N> in{};
    in.x = cuda::load<N>(x + i);
    if constexpr (slope) in.aux = cuda::load<N>(aux + i);
    if (prior) in.prior = cuda::load<N>(prior + i);
    return in;
  }
  template <int N>
  __device__ void finish(int64_t i, const In<N>& in) const {
    float y[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float v = slope ? get(in.x, k) * act_slope_for<A, T>(get(in.aux, k)).dy
                            : act_value_for<A, T>(get(in.x, k));
      y[k] = fmaf(alpha, v, prior ? get(in.prior, k) : 0.0f);
    }
    store_rounded(c + i, y);
  }
};

}  // namespace

void gemm_epilogue(CudaStream& s, const GemmArgs& args, Tensor x) {
  const bool slope = args.spec.act_slope;
  const Tensor aux = slope ? args.aux : Tensor{};
  by_dtype("gemm", args.c, [&]<class T>(T*) {
    by_act(args.spec.act, [&]<Act A>(ActTag<A>) {
      if constexpr (!is_glu(A)) {  // a GLU is never an epilogue
        const auto run = [&]<bool Slope>(std::bool_constant<Slope>) {
          const Epilogue<A, Slope, T> f{as<T>(args.c), as<T>(x), as<T>(aux), as<T>(args.prior),
                                        args.spec.alpha};
          by_width<T>(packs_fit(wide<T>, args.c, x, aux, args.prior), [&]<int N>(Number<N>) {
            for_each<N>(s, "gemm_epilogue", f, args.c.numel());
          });
        };
        slope ? run(std::true_type{}) : run(std::false_type{});
      }
    });
  });
}

}  // namespace hearth::cuda
