// exp, log, tanh, erf and sigmoid of a vector: relative error about 1e-7 (at most 1e-6), correct at
// the infinities, NaN in gives NaN out.
#pragma once

#include "cpu/isa/simd.h"

namespace hearth::HEARTH_ISA {

// exp(x): x = n ln 2 + r with |r| <= ln 2 / 2. 2^n is applied in two factors so that results reach
// from the smallest denormal to the largest float.
HEARTH_INLINE vf exp(vf x) {
  x = select(x > broadcast(89.0f), broadcast(89.0f), x);
  x = select(x < broadcast(-104.0f), broadcast(-104.0f), x);
  const vf magic = broadcast(0x1.8p23f);  // adding it leaves round(x / ln 2) in the low bits
  const vf shifted = fma(x, broadcast(1.44269504f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, broadcast(-0x1.62e400p-1f), x);
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  vf p = broadcast(1.98412698e-4f);
  p = fma(p, r, 1.38888889e-3f);
  p = fma(p, r, 8.33333333e-3f);
  p = fma(p, r, 4.16666667e-2f);
  p = fma(p, r, 1.66666667e-1f);
  p = fma(p, r, 0.5f);
  p = fma(p * r, r, r) + 1.0f;
  const vi k = (vi)(bits(shifted) - bits(magic));
  const vi half = k >> 1;
  const vf scale_a = from_bits((vu)((half + 127) << 23));
  const vf scale_b = from_bits((vu)((k - half + 127) << 23));
  return p * scale_a * scale_b;
}

// log(x): x = 2^e m with m in [sqrt(1/2), sqrt(2)). log(0) = -inf; negative numbers give NaN.
HEARTH_INLINE vf log(vf x) {
  const vf tiny = broadcast(0x1p-126f);
  const vi denormal = x < tiny;
  const vf y = select(denormal, x * 0x1p23f, x);
  const vu u = bits(y) - 0x3f3504f3u;  // exponent relative to sqrt(1/2)
  const vi e = (vi)u >> 23;
  const vf m = from_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const vf ef = to_float(e) - select(denormal, broadcast(23.0f), zero());
  vf p = broadcast(7.0376836292e-2f);
  p = fma(p, m, -1.1514610310e-1f);
  p = fma(p, m, 1.1676998740e-1f);
  p = fma(p, m, -1.2420140846e-1f);
  p = fma(p, m, 1.4249322787e-1f);
  p = fma(p, m, -1.6668057665e-1f);
  p = fma(p, m, 2.0000714765e-1f);
  p = fma(p, m, -2.4999993993e-1f);
  p = fma(p, m, 3.3333331174e-1f);
  const vf mm = m * m;
  vf r = fma(ef, broadcast(-2.12194440e-4f), p * m * mm);
  r = fma(mm, broadcast(-0.5f), r) + m;
  r = fma(ef, broadcast(0.693359375f), r);
  const vf inf = broadcast(__builtin_inff());
  r = select(x == inf, inf, r);
  r = select(x == zero(), -inf, r);
  return select(x < zero(), broadcast(__builtin_nanf("")), select(x != x, x, r));
}

HEARTH_INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

// tanh(x): an odd polynomial near zero, where 1 - 2 / (e^2x + 1) would cancel; that formula
// elsewhere.
HEARTH_INLINE vf tanh(vf x) {
  const vf a = abs(x), s = x * x;
  vf p = broadcast(-5.70498872745e-3f);
  p = fma(p, s, 2.06390887954e-2f);
  p = fma(p, s, -5.37397155531e-2f);
  p = fma(p, s, 1.33314422036e-1f);
  p = fma(p, s, -3.33332819422e-1f);
  const vf near = fma(p * s, x, x);
  const vf far = copysign(1.0f - 2.0f / (exp(a + a) + 1.0f), x);
  return select(a < broadcast(0.625f), near, select(x != x, x, far));
}

// erf(x): an odd polynomial below 0.93, 1 - exp(polynomial) above; it is 1 in fp32 from 4 on.
HEARTH_INLINE vf erf(vf x) {
  vf t = abs(x);
  t = select(t > broadcast(4.0f), broadcast(4.0f), t);
  const vf s = t * t;
  vf p = broadcast(-5.96761703e-4f);
  p = fma(p, s, 4.99119423e-3f);
  p = fma(p, s, -2.67681349e-2f);
  p = fma(p, s, 1.12819925e-1f);
  p = fma(p, s, -3.76125336e-1f);
  p = fma(p, s, 1.28379166e-1f);
  const vf near = fma(p, x, x);
  vf q = fma(t, broadcast(-1.72853470e-5f), 3.83197126e-4f);
  const vf u = fma(t, broadcast(-3.88396438e-3f), 2.42546219e-2f);
  q = fma(q, s, u);
  q = fma(q, t, -1.06777877e-1f);
  q = fma(q, t, -6.34846687e-1f);
  q = fma(q, t, -1.28717512e-1f);
  q = fma(q, t, -t);
  const vf far = copysign(1.0f - exp(q), x);
  return select(t < broadcast(0.927734375f), near, select(x != x, x, far));
}

}  // namespace hearth::HEARTH_ISA
