// Reference kernels element by element: activations, gates, dropout, sums, conversions.
#include <cmath>

#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

void activation(Stream&, Tensor y, Tensor x, Act act) {
  const int64_t R = y.rows(), N = y.cols(), W = x.cols();  // W = 2N for a GLU
  const Doubles xv = load(x);
  Doubles yv(size_t(R * N));
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      const double up = is_glu(act) ? xv[r * W + N + i] : 1;
      yv[r * N + i] = activate(act, xv[r * W + i]).y * up;
    }
  store(y, yv);
}

void activation_bwd(Stream&, Tensor dx, Tensor dy, Tensor x, Act act) {
  const int64_t R = dy.rows(), N = dy.cols(), W = x.cols();  // W = 2N for a GLU
  const Doubles dyv = load(dy), xv = load(x);
  Doubles dxv(size_t(R * W));
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      const double g = dyv[r * N + i], up = is_glu(act) ? xv[r * W + N + i] : 1;
      const Slope<double> gate = activate(act, xv[r * W + i]);
      dxv[r * W + i] = g * gate.dy * up;
      if (is_glu(act)) dxv[r * W + N + i] = g * gate.y;
    }
  store(dx, dxv);
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void output_gate(Stream&, Tensor y, Tensor x, Tensor g) {
  const int64_t shared = x.numel() / g.numel();  // elements of x under one gate: 1 or D
  const Doubles xv = load(x), gv = load(g);
  Doubles yv(size_t(x.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) yv[i] = xv[i] * sigmoid(gv[i / shared]);
  store(y, yv);
}

void output_gate_bwd(Stream&, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g) {
  const int64_t shared = x.numel() / g.numel();
  const Doubles dyv = load(dy), xv = load(x), gv = load(g);
  Doubles dxv(size_t(x.numel())), dgv(size_t(g.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double s = sigmoid(gv[i / shared]);
    dxv[i] = dyv[i] * s;
    dgv[i / shared] += dyv[i] * xv[i] * s * (1 - s);
  }
  store(dx, dxv);
  store(dg, dgv);
}

void dropout(Stream&, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt) {
  const Scalars s = load_scalars(scalars);
  Doubles v = load(x);
  for (int64_t i = 0; i < x.numel(); ++i) v[i] *= keep_factor(s, p, salt, i);
  store(y, v);
}

void add(Stream&, Tensor y, Tensor a, Tensor b, float scale) {
  const Doubles av = load(a), bv = load(b);
  Doubles yv(size_t(y.numel()));
  for (int64_t i = 0; i < y.numel(); ++i) yv[i] = value_or(av, i, 0) + scale * bv[i];
  store(y, yv);
}

void copy(Stream&, Tensor y, Tensor x) { store(y, load(x)); }

}  // namespace hearth::reference
