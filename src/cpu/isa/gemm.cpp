// The gemm table of one instruction set: fp32 by outer products; bf16 by its dot products, or
// widened to fp32 while packing if it has none. finish() completes a tile of c.
#include "cpu/gemm.h"

#include "cpu/isa/gemm_outer.h"
#include "cpu/isa/gemm_pack.h"
#include "cpu/isa/gemm_table.h"
#include "cpu/isa/simd.h"

#if defined(__AMX_BF16__)
#include "cpu/isa/gemm_amx.h"
#elif defined(__AVX512BF16__)
#include "cpu/isa/gemm_avx512bf16.h"
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "cpu/isa/gemm_bfmmla.h"
#else
#include "cpu/isa/gemm_widen.h"
#endif

#include "cpu/isa/gemm_quantised.h"

namespace hearth::HEARTH_ISA {

extern const GemmTable gemm_table;

namespace {

template <class B>
HEARTH_INLINE void scale_and_bias(float* x, float alpha, const B* bias, int64_t n) {
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes)
    store(x + j, bias ? fma(load(x + j), alpha, load(bias + j)) : load(x + j) * alpha);
  if (j < n) {
    const vf v = load_partial(x + j, n - j);
    store_partial(x + j, bias ? fma(v, broadcast(alpha), load_partial(bias + j, n - j)) : v * alpha,
                  n - j);
  }
}

// With beta = 1 the fused multiply-add gives the bits of an addition.
template <class C>
HEARTH_INLINE void add_and_store(C* c, const float* x, const C* residual, float beta, int64_t n) {
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const vf v = load(x + j);
    store(c + j, residual ? fma(load(residual + j), broadcast(beta), v) : v);
  }
  if (j < n) {
    const vf v = load_partial(x + j, n - j);
    store_partial(c + j, residual ? fma(load_partial(residual + j, n - j), broadcast(beta), v) : v,
                  n - j);
  }
}

template <class C, class B>
void finish_as(const GemmProblem& g, float* acc, int64_t ld, int64_t row, int64_t col, int64_t rows,
               int64_t cols) {
  const B* bias = g.bias ? static_cast<const B*>(g.bias) + col : nullptr;
  for (int64_t i = 0; i < rows; ++i) {
    float* x = acc + i * ld;
    const int64_t at = (row + i) * g.ldc + col;
    if (bias || g.alpha != 1.0f) scale_and_bias(x, g.alpha, bias, cols);
    if (g.hook) g.hook(g.hook_state, x, row + i, col, cols);
    add_and_store(static_cast<C*>(g.c) + at, x,
                  g.residual ? static_cast<const C*>(g.residual) + at : nullptr, g.beta, cols);
  }
}

void finish(const GemmProblem& g, float* acc, int64_t ld, int64_t row, int64_t col, int64_t rows,
            int64_t cols) {
  const bool c16 = g.c_type == DType::bf16, b16 = g.ab_type == DType::bf16;
  const auto as = c16 ? (b16 ? finish_as<bf16, bf16> : finish_as<bf16, float>)
                      : (b16 ? finish_as<float, bf16> : finish_as<float, float>);
  as(g, acc, ld, row, col, rows, cols);
}

}  // namespace

const GemmTable gemm_table = {.f32 = outer_kernel<AsFloat<float>>(),
                              .bf16 = bf16_kernel(),
                              .quantised = quant::kernel(),
                              .finish = finish};

}  // namespace hearth::HEARTH_ISA
