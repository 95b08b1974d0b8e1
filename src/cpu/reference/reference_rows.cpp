// Reference kernels over rows: products, column sums, embeddings, norms.
#include <algorithm>
#include <cmath>

#include "core/quantised.h"
#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

void gemm(Stream&, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
          const GemmSpec& spec) {
  const int64_t M = c.rows(), N = c.cols(), K = spec.ta ? a.rows() : a.cols();
  const Doubles av = load(a), bv = load(b), biasv = load(bias), priorv = load(prior);
  Doubles cv(size_t(M * N)), auxv = spec.act_slope ? load(aux) : Doubles(size_t(M * N));
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      const int64_t ij = i * N + j;
      double dot = 0;
      for (int64_t k = 0; k < K; ++k)
        dot += av[spec.ta ? k * M + i : i * K + k] * bv[spec.tb ? j * K + k : k * N + j];
      double value;
      if (spec.act_slope) {
        value = dot * activate(spec.act, auxv[ij]).dy;
      } else {
        auxv[ij] = as_stored(dot + value_or(biasv, j, 0), aux ? aux : c);
        value = activate(spec.act, auxv[ij]).y;
      }
      cv[ij] = spec.alpha * value + value_or(priorv, ij, 0);
    }
  store(c, cv);
  if (!spec.act_slope) store(aux, auxv);
}

void gemm_quantised(Stream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                    const GemmSpec& spec) {
  const int64_t N = c.cols(), K = a.cols();
  Doubles av = load(a), wv(size_t(N * K));
  for (int64_t i = 0; i < a.rows(); ++i) {
    float most = 0;  // what is rounded is decided in single precision, as everywhere
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(float(av[i * K + k])));
    for (int64_t k = 0; k < K; ++k) {
      double& x = av[i * K + k];
      x = most > 1e-30f ? std::nearbyint(float(x) * (127 / most)) * (most / 127) : 0;
    }
  }
  for (int64_t n = 0; n < N; ++n)
    for (int64_t k = 0; k < K; ++k) wv[n * K + k] = quantised_value(w.data, n, k);
  const auto tensor = [](Doubles& v, Shape shape) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), shape, DType::f64};
  };
  gemm(s, c, {}, tensor(av, {a.rows(), K}), tensor(wv, {N, K}), bias, prior, spec);
}

void column_sum(Stream&, Tensor out, Tensor, Tensor x, float alpha, bool add) {
  const int64_t N = x.cols();
  const Doubles xv = load(x);
  Doubles sum = start_from(out, add);
  for (int64_t i = 0; i < x.numel(); ++i) sum[i % N] += alpha * xv[i];
  store(out, sum);
}

void embed(Stream&, Tensor y, Tensor ids, Tensor w, Tensor positions, Tensor pos_w) {
  const int64_t C = y.cols();
  const Doubles wv = load(w), posv = load(pos_w);
  const auto id = load_ints(ids), at = load_ints(positions);
  Doubles yv(size_t(y.numel()));
  for (int64_t r = 0; r < y.rows(); ++r)
    for (int64_t c = 0; c < C; ++c) {
      yv[r * C + c] = id[r] < 0 ? 0 : wv[id[r] * C + c];
      // Padding has a negative position; what it yields is never used, row 0 will do.
      if (pos_w && id[r] >= 0) yv[r * C + c] += posv[std::max(at[r], 0) * C + c];
    }
  store(y, yv);
}

void embed_bwd(Stream&, Tensor dw, Tensor dpos_w, Tensor dy, Tensor ids, Tensor positions,
               const EmbedSpec& spec) {
  const int64_t C = dy.cols();
  const Doubles dyv = load(dy);
  const auto id = load_ints(ids), at = load_ints(positions);
  Doubles dwv = start_from(dw, spec.add), dposv = start_from(dpos_w, spec.add_pos);
  for (int64_t r = 0; r < dy.rows(); ++r)
    for (int64_t c = 0; c < C; ++c) {
      if (dw && id[r] >= 0) dwv[id[r] * C + c] += dyv[r * C + c];
      if (dpos_w) dposv[std::max(at[r], 0) * C + c] += dyv[r * C + c];
    }
  store(dw, dwv);
  store(dpos_w, dposv);
}

void scatter_rows(Stream&, Tensor dx, Tensor dy, Tensor ids, Tensor prior) {
  const int64_t C = dy.cols();
  const Doubles dyv = load(dy), priorv = load(prior);
  const auto id = load_ints(ids);
  Doubles dxv = prior ? priorv : Doubles(size_t(dx.numel()));
  for (int64_t r = 0; r < int64_t(id.size()); ++r)
    for (int64_t c = 0; id[r] >= 0 && c < C; ++c) dxv[id[r] * C + c] += dyv[r * C + c];
  store(dx, dxv);
}

void norm(Stream&, Tensor y, Tensor sum, Tensor stat, Tensor x, Tensor r, Tensor gain, Tensor bias,
          const NormSpec& spec) {
  const int64_t R = x.rows(), C = x.cols();
  Doubles xv = load(x);
  const Doubles rv = load(r), gainv = load(gain), biasv = load(bias);
  for (int64_t i = 0; i < R * C; ++i) xv[i] += value_or(rv, i, 0);

  Doubles yv(size_t(R * C)), statv(size_t(R * 2));
  for (int64_t row = 0; row < R; ++row) {
    const double* in = &xv[row * C];
    double mean = 0, variance = 0;
    if (spec.kind == Norm::layer)
      for (int64_t c = 0; c < C; ++c) mean += in[c] / double(C);
    for (int64_t c = 0; c < C; ++c) variance += (in[c] - mean) * (in[c] - mean) / double(C);
    const double inverse = 1 / std::sqrt(variance + spec.eps);
    for (int64_t c = 0; c < C; ++c)
      yv[row * C + c] = (in[c] - mean) * inverse * value_or(gainv, c, 1) + value_or(biasv, c, 0);
    statv[row * 2] = mean;
    statv[row * 2 + 1] = inverse;
  }
  store(y, yv);
  if (r) store(sum, xv);
  store(stat, statv);
}

void norm_bwd(Stream&, Tensor dx, Tensor dgain, Tensor dbias, Tensor, Tensor dy, Tensor x,
              Tensor gain, Tensor stat, Tensor prior, const NormSpec& spec) {
  const int64_t R = x.rows(), C = x.cols();
  const Doubles dyv = load(dy), xv = load(x), gainv = load(gain), statv = load(stat);
  const Doubles priorv = load(prior);
  Doubles dxv(size_t(R * C));
  Doubles dgainv = start_from(dgain, spec.add), dbiasv = start_from(dbias, spec.add);
  for (int64_t row = 0; row < R; ++row) {
    const double mean = statv[row * 2], inverse = statv[row * 2 + 1];
    // n is the normalised row, dn its gradient
    Doubles n(size_t(C), 0.0), dn(size_t(C), 0.0);
    double mean_dn = 0, mean_n_dn = 0;
    for (int64_t c = 0; c < C; ++c) {
      const double g = dyv[row * C + c];
      n[c] = (xv[row * C + c] - mean) * inverse;
      dn[c] = g * value_or(gainv, c, 1);
      mean_dn += dn[c] / double(C);
      mean_n_dn += n[c] * dn[c] / double(C);
      if (dgain) dgainv[c] += g * n[c];
      if (dbias) dbiasv[c] += g;
    }
    if (spec.kind == Norm::rms) mean_dn = 0;
    for (int64_t c = 0; c < C; ++c)
      dxv[row * C + c] =
          inverse * (dn[c] - mean_dn - n[c] * mean_n_dn) + value_or(priorv, row * C + c, 0);
  }
  store(dx, dxv);
  store(dgain, dgainv);
  store(dbias, dbiasv);
}

}  // namespace hearth::reference
