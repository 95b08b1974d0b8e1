// The gemm entry of the table: matrix product with bias, activation (or its slope) and addition
// where the tile leaves the registers. 2 * M * N * K FLOP.
#include "cpu/isa/act.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

struct Epilogue {
  void* aux;  // (M, N) or null
  int64_t N;
  float alpha;
};

// x = alpha * act(x rounded to T); aux receives the argument.
template <Act A, class T>
void apply(const void* state, float* x, int64_t row, int64_t col, int64_t n) {
  const auto& e = *static_cast<const Epilogue*>(state);
  T* aux = e.aux ? static_cast<T*>(e.aux) + row * e.N + col : nullptr;
  T rounded[lanes];
  vectors(n, [&](int64_t i, auto w) {
    vf a = w.get(x + i);
    T* to = aux ? aux + i : rounded;
    if (aux || !std::is_same_v<T, float>) w.put(to, a);
    if constexpr (!std::is_same_v<T, float>) a = w.get(to);  // as it is read back
    w.put(x + i, act_value<A>(a) * e.alpha);
  });
}

// x = alpha * x * act'(aux)
template <Act A, class T>
void apply_slope(const void* state, float* x, int64_t row, int64_t col, int64_t n) {
  const auto& e = *static_cast<const Epilogue*>(state);
  const T* aux = static_cast<const T*>(e.aux) + row * e.N + col;
  vectors(n, [&](int64_t i, auto w) {
    w.put(x + i, w.get(x + i) * act_slope<A>(w.get(aux + i)).dy * e.alpha);
  });
}

GemmHook hook_of(const Tensor& c, const GemmSpec& spec) {
  GemmHook hook = nullptr;
  const auto choose = [&]<class T>(T*) {
    by_act(spec.act,
           [&]<Act A>(ActTag<A>) { hook = spec.act_slope ? apply_slope<A, T> : apply<A, T>; });
  };
  by_dtype("gemm", c, choose);
  return hook;
}

}  // namespace

namespace {

// run(args) with the epilogue that spec asks for.
template <class Run>
void with_epilogue(GemmArgs args, const Tensor& c, const Tensor& aux, const GemmSpec& spec,
                   Run&& run) {
  const Epilogue epilogue{aux.data, args.n, spec.alpha};
  // Without activation or bias the product's own alpha does.
  if (spec.act != Act::none || spec.act_slope || aux || (args.bias && spec.alpha != 1)) {
    expect_dtypes("gemm aux", c.dtype, aux);
    args.hook = hook_of(c, spec);
    args.hook_state = &epilogue;
  } else {
    args.alpha = spec.alpha;
  }
  run(args);
}

}  // namespace

void gemm(Stream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
          const GemmSpec& spec) {
  expect_dtypes("gemm", a.dtype, b, bias);
  expect_dtypes("gemm prior", c.dtype, prior);
  const int64_t N = c.cols();
  const GemmArgs args{.c = c.data,
                      .a = a.data,
                      .b = b.data,
                      .m = row_count(c),
                      .n = N,
                      .k = spec.ta ? row_count(a) : a.cols(),
                      .lda = a.cols(),
                      .ldb = b.cols(),
                      .ldc = N,
                      .ta = spec.ta,
                      .tb = spec.tb,
                      .c_type = c.dtype,
                      .ab_type = a.dtype,
                      .bias = bias.data,
                      .residual = prior.data};
  with_epilogue(args, c, aux, spec, [&](const GemmArgs& g) {
    hearth::gemm(cpu(s).threads, cpu(s).scratch, cpu(s).gemm, g);
  });
}

void gemm_quantised(Stream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                    const GemmSpec& spec) {
  if (w.dtype != DType::int4_panels) expect_dtypes("gemm_quantised weights", DType::int8_panels, w);
  expect_dtypes("gemm_quantised", a.dtype, bias);
  expect_dtypes("gemm_quantised prior", c.dtype, prior);
  by_dtype("gemm_quantised", a, [](auto*) {});
  by_dtype("gemm_quantised", c, [](auto*) {});
  const int64_t N = c.cols(), K = a.cols();
  const GemmArgs args{.c = c.data,
                      .a = a.data,
                      .b = w.data,
                      .m = row_count(c),
                      .n = N,
                      .k = K,
                      .lda = K,
                      .ldb = K,
                      .ldc = N,
                      .tb = true,
                      .c_type = c.dtype,
                      .ab_type = a.dtype,
                      .bias = bias.data,
                      .residual = prior.data};
  with_epilogue(args, c, {}, spec, [&](const GemmArgs& g) {
    hearth::gemm_quantised(cpu(s).threads, cpu(s).scratch, cpu(s).gemm, g);
  });
}

}  // namespace hearth::HEARTH_ISA
