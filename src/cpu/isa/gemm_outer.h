// The outer-product kernel of gemm(): R x V vectors of c stay in registers while k runs over packed
// panels. Each element is a chain of fma over the block of k, then one addition to acc: the same
// chain in every variant, so a row does not depend on how many were computed with it.
#pragma once

#include "cpu/isa/gemm_pack.h"
#include "cpu/isa/gemm_rows16.h"
#include "cpu/isa/gemm_table.h"
#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

struct FloatStep {
  HEARTH_INLINE static vf add(vf c, vf a, vf b) { return fma(a, b, c); }
};

// MR rows of a panel of a and NV vectors of a panel of b.
template <class Step, int MR, int NV>
struct Outer {
  static constexpr int NR = NV * lanes;
  using Micro = void (*)(float* acc, int64_t ld, const float* a, const float* b, int64_t steps,
                         bool first);

  template <int R, int V>
  static void micro(float* acc, int64_t ld, const float* a, const float* b, int64_t steps,
                    bool first) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) __builtin_prefetch(acc + r * ld + v * lanes, 1);
    vf c[R][V] = {};
    for (int64_t s = 0; s < steps; ++s, a += MR, b += NR) {
      vf bv[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) bv[v] = load(b + v * lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const vf av = broadcast(a[r]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) c[r][v] = Step::add(c[r][v], av, bv[v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        float* to = acc + r * ld + v * lanes;
        store(to, first ? c[r][v] : load(to) + c[r][v]);
      }
    }
  }

  template <int R>
  static Micro pick_columns(int vectors) {
    if constexpr (NV >= 3) {
      if (vectors >= 3) return micro<R, 3>;
    }
    if constexpr (NV >= 2) {
      if (vectors >= 2) return micro<R, 2>;
    }
    return micro<R, 1>;
  }

  template <int R>
  static Micro pick(int rows, int vectors) {
    if constexpr (R > 1) {
      if (rows < R) return pick<R - 1>(rows, vectors);
    }
    return pick_columns<R>(vectors);
  }

  // GemmMultiply; k_unit elements of k make k_unit / per_step steps.
  template <int per_step>
  static void multiply(float* acc, int64_t ld, const void* a, const void* b, int64_t rows,
                       int64_t cols, int64_t k, bool first) {
    const int64_t steps = (k + per_step - 1) / per_step;
    for (int64_t j = 0; j < cols; j += NR) {
      const float* pb = static_cast<const float*>(b) + j * steps;
      const int vectors = cols - j >= NR ? NV : int((cols - j + lanes - 1) / lanes);
      const Micro full = pick_columns<MR>(vectors);
      for (int64_t i = 0; i < rows; i += MR) {
        const float* pa = static_cast<const float*>(a) + i * steps;
        const Micro run = rows - i >= MR ? full : pick<MR>(int(rows - i), vectors);
        run(acc + i * ld + j, ld, pa, pb, steps, first);
      }
    }
  }
};

// What the registers hold: accumulators, one row of a panel of b, one broadcast of a.
#if defined(__AVX512F__)
constexpr int outer_rows = 14, outer_vectors = 2;
#elif defined(__AVX2__)
constexpr int outer_rows = 6, outer_vectors = 2;
#elif defined(__aarch64__)
constexpr int outer_rows = 8, outer_vectors = 3;
#else
constexpr int outer_rows = 4, outer_vectors = 2;
#endif

// 256 steps of a panel of b fit L1 beside a panel of a.
template <class Read, class Step = FloatStep, class FewRead = Plain<Read>>
constexpr GemmKernel outer_kernel() {
  using Kernel = Outer<Step, outer_rows, outer_vectors>;
  return {.mr = outer_rows,
          .nr = Kernel::NR,
          .k_block = 256 * Read::step,
          .k_unit = Read::step,
          .element_bytes = 4 / Read::step,
          .tile = 262144,
          .strip = 256 << 10,
          .pack_a = pack<outer_rows, Read, Read::step>,
          .pack_b = pack<Kernel::NR, Read, Read::step>,
          .multiply = Kernel::template multiply<Read::step>,
          .few = Few<FewRead, Step, 256 * Read::step>::kernel()};
}

}  // namespace hearth::HEARTH_ISA
