// Products with a weight of at most 64 x 64, such as gates: one thread per element, which adds the
// products in the order of k. Batch-invariant programs use it, because cuBLASLt has no algorithm
// for such widths that gives a row the same bits at every number of rows. Memory bound.
#include "cuda/device/device.cuh"
#include "cuda/elementwise/act.cuh"
#include "cuda/gemm/gemm_narrow.h"

namespace hearth::cuda {
namespace {

constexpr int64_t most = 64;  // columns, and terms of a sum

// c = alpha * act(a b^T + bias) + prior; T: dtype of a, b and bias; Out: of c, aux and prior.
template <Act A, class T, class Out>
struct NarrowProduct {
  Out *c, *aux;  // aux, bias and prior may be absent
  const T *a, *b, *bias;
  const Out* prior;
  int columns, terms;
  float alpha;

  template <int N>
  __device__ float load(int64_t i) const {
    static_assert(N == 1);
    const T* row = a + i / columns * terms;
    const T* weight = b + i % columns * terms;
    float sum = 0;
    for (int k = 0; k < terms; ++k)
      sum = fmaf(get(cuda::load<1>(row + k), 0), get(cuda::load<1>(weight + k), 0), sum);
    return bias ? sum + get(cuda::load<1>(bias + i % columns), 0) : sum;
  }
  template <int N>
  __device__ void finish(int64_t i, float sum) const {
    if constexpr (A != Act::none) {
      Pack<Out, 1> argument;
      round_to(argument, {sum});
      if (aux) store(aux + i, argument);
      sum = act_value_for<A, Out>(get(argument, 0));
    }
    const float y[1] = {fmaf(alpha, sum, prior ? get(cuda::load<1>(prior + i), 0) : 0.0f)};
    store_rounded(c + i, y);
  }
};

}  // namespace

bool gemm_narrow_takes(const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  return is_float(args.a.dtype) && args.b.dtype == args.a.dtype && is_float(args.c.dtype) &&
         !spec.ta && spec.tb && !spec.act_slope && spec.single() && args.b.rows() <= most &&
         args.b.cols() <= most && args.a.cols() == args.b.cols() && args.c.cols() == args.b.rows();
}

void gemm_narrow(CudaStream& s, const GemmArgs& args) {
  by_dtype("gemm", args.a, [&]<class T>(T*) {
    const auto run = [&]<class Out>(Out*) {
      by_act(args.spec.act, [&]<Act A>(ActTag<A>) {
        if constexpr (!is_glu(A))  // a GLU is never an epilogue
          for_each<1>(s, "gemm_narrow",
                      NarrowProduct<A, T, Out>{.c = as<Out>(args.c),
                                               .aux = as<Out>(args.aux),
                                               .a = as<T>(args.a),
                                               .b = as<T>(args.b),
                                               .bias = as<T>(args.bias),
                                               .prior = as<Out>(args.prior),
                                               .columns = int(args.b.rows()),
                                               .terms = int(args.b.cols()),
                                               .alpha = args.spec.alpha},
                      args.c.numel());
      });
    };
    if (args.c.dtype == args.a.dtype)
      run(static_cast<T*>(nullptr));
    else
      run(static_cast<float*>(nullptr));
  });
}

}  // namespace hearth::cuda
