// The elementwise kernels of experts: activations times the router's weights, and the sum of the
// rows of each token. Memory bound: one pass.
#include "cpu/isa/act.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"
#include "cpu/moe.h"

namespace hearth::HEARTH_ISA {
namespace {

template <Act A, class T>
void activate_row(T* y, const T* x, float weight, int64_t N) {
  vectors(N, [&](int64_t i, auto w) {
    vf a = act_value<A>(w.get(x + i));
    if constexpr (is_glu(A)) a = a * w.get(x + N + i);
    w.put(y + i, a * weight);
  });
}

// Writes the gradient of a row of x and returns that of its weight.
template <Act A, class T>
float activate_bwd_row(T* dx, const T* dy, const T* x, float weight, int64_t N) {
  vf total = zero();
  vectors(N, [&](int64_t i, auto w) {
    const VSlope a = act_slope<A>(w.get(x + i));
    const vf g = w.get(dy + i);
    if constexpr (is_glu(A)) {
      const vf up = w.get(x + N + i);
      total = fma(g, a.y * up, total);
      w.put(dx + i, g * weight * up * a.dy);
      w.put(dx + N + i, g * weight * a.y);
    } else {
      total = fma(g, a.y, total);
      w.put(dx + i, g * weight * a.dy);
    }
  });
  return sum(total);
}

}  // namespace

void expert_activation(Stream& s, const ExpertActivationArgs& args) {
  expect_dtypes("expert_activation", args.x.dtype, args.y);
  expect_dtypes("expert_activation", DType::f32, args.weights);
  const int64_t N = args.y.cols(), W = args.x.cols();
  const float* weights = args.weights.as<const float>();
  const int32_t* order = args.order.as<const int32_t>();
  by_dtype("expert_activation", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      over_rows(s, row_count(args.y), W, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          activate_row<A>(args.y.as<T>() + r * N, args.x.as<const T>() + r * W, weights[order[r]],
                          N);
      });
    });
  });
}

void expert_activation_bwd(Stream& s, const ExpertActivationBwdArgs& args) {
  expect_dtypes("expert_activation_bwd", args.x.dtype, args.dx, args.dy);
  expect_dtypes("expert_activation_bwd", DType::f32, args.weights, args.dweights);
  const int64_t N = args.dy.cols(), W = args.x.cols();
  const float* weights = args.weights.as<const float>();
  float* dweights = args.dweights.as<float>();
  const int32_t* order = args.order.as<const int32_t>();
  by_dtype("expert_activation_bwd", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) {
      over_rows(s, row_count(args.dy), W, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          dweights[order[r]] =
              activate_bwd_row<A>(args.dx.as<T>() + r * W, args.dy.as<const T>() + r * N,
                                  args.x.as<const T>() + r * W, weights[order[r]], N);
      });
    });
  });
}

void combine_rows(Stream& s, const CombineRowsArgs& args) {
  expect_dtypes("combine_rows", args.x.dtype, args.y, args.prior);
  const int64_t C = args.x.cols(), k = args.place.cols();
  by_dtype("combine_rows", args.x, [&]<class T>(T*) {
    const T* x = args.x.as<const T>();
    over_rows(s, row_count(args.place), C * k, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* place = args.place.as<const int32_t>() + t * k;
        const T* prior = args.prior ? args.prior.as<const T>() + t * C : nullptr;
        T* y = args.y.as<T>() + t * C;
        vectors(C, [&](int64_t i, auto w) {
          vf total = prior ? w.get(prior + i) : zero();
          for (int64_t j = 0; j < k; ++j) total = total + w.get(x + place[j] * C + i);
          w.put(y + i, total);
        });
      }
    });
  });
}

// The same for every instruction set.
void route(Stream& s, const RouteArgs& args) { hearth::route(s, args); }
void route_bwd(Stream& s, const RouteBwdArgs& args) { hearth::route_bwd(s, args); }
void expert_rows(Stream& s, const ExpertRowsArgs& args) { hearth::expert_rows(s, args); }
void grouped_gemm(Stream& s, const GroupedGemmArgs& args) { hearth::grouped_gemm(s, args); }
void grouped_gemm_weights(Stream& s, const GroupedGemmWeightsArgs& args) {
  hearth::grouped_gemm_weights(s, args);
}
void router_stats(Stream& s, const RouterStatsArgs& args) { hearth::router_stats(s, args); }
void balance_bias(Stream& s, const BalanceBiasArgs& args) { hearth::balance_bias(s, args); }

}  // namespace hearth::HEARTH_ISA
