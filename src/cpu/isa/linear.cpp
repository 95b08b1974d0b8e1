// The gemm entry of the table: matrix product with bias, activation (or its slope) and addition in
// the epilogue of a tile. 2 * M * N * K FLOP.
#include "cpu/fp8.h"
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
    if constexpr (!std::is_same_v<T, float>) a = w.get(to);  // as a reader of aux sees it
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

// Calls run(problem) with the epilogue that the spec needs.
template <class Run>
void with_epilogue(GemmProblem problem, const Tensor& c, const Tensor& aux, const GemmSpec& spec,
                   Run&& run) {
  const Epilogue epilogue{aux.data, problem.n, spec.alpha};
  // Without activation and bias the product's own alpha suffices.
  if (spec.act != Act::none || spec.act_slope || aux || (problem.bias && spec.alpha != 1)) {
    expect_dtypes("gemm aux", c.dtype, aux);
    problem.hook = hook_of(c, spec);
    problem.hook_state = &epilogue;
  } else {
    problem.alpha = spec.alpha;
  }
  run(problem);
}

}  // namespace

void quantise_fp8(Stream& s, const QuantiseFp8Args& args) {
  hearth::quantise_fp8(fp8_run(s, fp8_parts), args);
}

void gemm(Stream& s, const GemmArgs& args) {
  if (args.a.dtype == DType::e4m3 || args.a.dtype == DType::e5m2)
    return hearth::gemm_fp8(s, args, fp8_parts);
  const GemmSpec& spec = args.spec;
  expect_dtypes("gemm", args.a.dtype, args.b, args.bias);
  expect_dtypes("gemm prior", args.c.dtype, args.prior);
  const int64_t N = args.c.cols(), batch = spec.batch;
  const GemmProblem problem{.c = args.c.data,
                            .a = args.a.data,
                            .b = args.b.data,
                            .m = row_count(args.c) / batch,
                            .n = N,
                            .k = spec.ta ? row_count(args.a) / batch : args.a.cols(),
                            .lda = args.a.cols(),
                            .ldb = args.b.cols(),
                            .ldc = N,
                            .ta = spec.ta,
                            .tb = spec.tb,
                            .c_type = args.c.dtype,
                            .ab_type = args.a.dtype,
                            .bias = args.bias.data,
                            .residual = args.prior.data,
                            .beta = spec.beta,
                            .symmetric = spec.symmetric};
  with_epilogue(problem, args.c, args.aux, spec, [&](const GemmProblem& g) {
    if (batch > 1)
      hearth::gemm_batch(cpu_stream(s).threads, cpu_stream(s).scratch, cpu_stream(s).gemm, g,
                         batch);
    else
      hearth::gemm(cpu_stream(s).threads, cpu_stream(s).scratch, cpu_stream(s).gemm, g);
  });
}

void gemm_quantised(Stream& s, const GemmQuantisedArgs& args) {
  if (args.w.dtype != DType::int4_panels)
    expect_dtypes("gemm_quantised weights", DType::int8_panels, args.w);
  expect_dtypes("gemm_quantised", args.a.dtype, args.bias);
  expect_dtypes("gemm_quantised prior", args.c.dtype, args.prior);
  by_dtype("gemm_quantised", args.a, [](auto*) {});
  by_dtype("gemm_quantised", args.c, [](auto*) {});
  const int64_t N = args.c.cols(), K = args.a.cols();
  const GemmProblem problem{.c = args.c.data,
                            .a = args.a.data,
                            .b = args.w.data,
                            .m = row_count(args.c),
                            .n = N,
                            .k = K,
                            .lda = K,
                            .ldb = K,
                            .ldc = N,
                            .tb = true,
                            .c_type = args.c.dtype,
                            .ab_type = args.a.dtype,
                            .bias = args.bias.data,
                            .residual = args.prior.data};
  with_epilogue(problem, args.c, {}, args.spec, [&](const GemmProblem& g) {
    hearth::gemm_quantised(cpu_stream(s).threads, cpu_stream(s).scratch, cpu_stream(s).gemm, g);
  });
}

}  // namespace hearth::HEARTH_ISA
