// Reference kernels element by element: activations, gates, dropout, sums, conversions.
#include <cmath>

#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

void activation(Stream&, const ActivationArgs& args) {
  const int64_t R = args.y.rows(), N = args.y.cols(), W = args.x.cols();  // W = 2N for a GLU
  const Doubles xv = load(args.x);
  Doubles yv(size_t(R * N));
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      const double up = is_glu(args.act) ? xv[r * W + N + i] : 1;
      yv[r * N + i] = activate(args.act, xv[r * W + i]).y * up;
    }
  store(args.y, yv);
}

void activation_bwd(Stream&, const ActivationBwdArgs& args) {
  const int64_t R = args.dy.rows(), N = args.dy.cols(), W = args.x.cols();  // W = 2N for a GLU
  const Doubles dyv = load(args.dy), xv = load(args.x);
  Doubles dxv(size_t(R * W));
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      const double g = dyv[r * N + i], up = is_glu(args.act) ? xv[r * W + N + i] : 1;
      const Slope<double> gate = activate(args.act, xv[r * W + i]);
      dxv[r * W + i] = g * gate.dy * up;
      if (is_glu(args.act)) dxv[r * W + N + i] = g * gate.y;
    }
  store(args.dx, dxv);
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void output_gate(Stream&, const OutputGateArgs& args) {
  const int64_t shared = args.x.numel() / args.g.numel();  // elements of x per gate: 1 or D
  const Doubles xv = load(args.x), gv = load(args.g);
  Doubles yv(size_t(args.x.numel()));
  for (int64_t i = 0; i < args.x.numel(); ++i) yv[i] = xv[i] * sigmoid(gv[i / shared]);
  store(args.y, yv);
}

void output_gate_bwd(Stream&, const OutputGateBwdArgs& args) {
  const int64_t shared = args.x.numel() / args.g.numel();
  const Doubles dyv = load(args.dy), xv = load(args.x), gv = load(args.g);
  Doubles dxv(size_t(args.x.numel())), dgv(size_t(args.g.numel()));
  for (int64_t i = 0; i < args.x.numel(); ++i) {
    const double s = sigmoid(gv[i / shared]);
    dxv[i] = dyv[i] * s;
    dgv[i / shared] += dyv[i] * xv[i] * s * (1 - s);
  }
  store(args.dx, dxv);
  store(args.dg, dgv);
}

void dropout(Stream&, const DropoutArgs& args) {
  const Scalars s = load_scalars(args.scalars);
  Doubles v = load(args.x);
  for (int64_t i = 0; i < args.x.numel(); ++i) v[i] *= keep_factor(s, args.p, args.salt, i);
  store(args.y, v);
}

void add(Stream&, const AddArgs& args) {
  const Doubles av = load(args.a), bv = load(args.b);
  Doubles yv(size_t(args.y.numel()));
  for (int64_t i = 0; i < args.y.numel(); ++i) yv[i] = value_or(av, i, 0) + args.scale * bv[i];
  store(args.y, yv);
}

void mix(Stream&, const MixArgs& args) {
  const MixSpec& s = args.spec;
  Doubles yv = load(args.y);
  Doubles x[most_mixed], w[most_mixed];
  for (int k = 0; k < most_mixed; ++k) x[k] = load(args.x[k]), w[k] = load(args.w[k]);
  for (int64_t r = 0; r < args.y.numel() / s.y.row; ++r)
    for (int64_t i = 0; i < s.width; ++i) {
      double sum = 0;
      for (int k = 0; k < most_mixed; ++k)
        if (args.x[k]) sum += value_or(w[k], 0, 1) * x[k][r * s.x[k].row + s.x[k].begin + i];
      yv[r * s.y.row + s.y.begin + i] = sum;
    }
  store(args.y, yv);
}

void mix_bwd(Stream&, const MixBwdArgs& args) {
  const MixSpec& s = args.spec;
  const Doubles dyv = load(args.dy);
  Doubles dx[most_mixed], dw[most_mixed];
  for (int k = 0; k < most_mixed; ++k) {
    const Doubles x = load(args.x[k]), w = load(args.w[k]), prior = load(args.prior[k]);
    dx[k] = load(args.dx[k]);
    dw[k] = start_from(args.dw[k], s.add[k]);
    for (int64_t r = 0; r < args.dy.numel() / s.y.row; ++r)
      for (int64_t i = 0; i < s.width; ++i) {
        const double d = dyv[r * s.y.row + s.y.begin + i];
        const int64_t at = r * s.x[k].row + s.x[k].begin + i;
        if (args.dx[k]) dx[k][at] = value_or(prior, at, 0) + value_or(w, 0, 1) * d;
        if (args.dw[k]) dw[k][0] += d * x[at];
      }
  }
  for (int k = 0; k < most_mixed; ++k) store(args.dx[k], dx[k]), store(args.dw[k], dw[k]);
}

void copy(Stream&, const CopyArgs& args) { store(args.y, load(args.x)); }

}  // namespace hearth::reference
