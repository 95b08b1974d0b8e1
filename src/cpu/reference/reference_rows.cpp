// Reference kernels over rows: products, column sums, embeddings, norms.
#include <algorithm>
#include <cmath>

#include "core/quantised.h"
#include "cpu/fp8.h"
#include "cpu/gemm.h"
#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

void gemm(Stream&, const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  const int64_t batch = spec.batch, M = args.c.rows() / batch, N = args.c.cols();
  const int64_t K = spec.ta ? args.a.rows() / batch : args.a.cols();
  const Doubles av = load(args.a), bv = load(args.b), biasv = load(args.bias),
                priorv = load(args.prior);
  const double scale =
      args.a_scale ? double(*args.a_scale.as<float>()) * *args.b_scale.as<float>() : 1;
  Doubles cv(size_t(batch * M * N)),
      auxv = spec.act_slope ? load(args.aux) : Doubles(size_t(batch * M * N));
  for (int64_t row = 0; row < batch * M; ++row)
    for (int64_t j = 0; j < N; ++j) {
      const int64_t ij = row * N + j, i = row % M, a = row / M * M * K, b = row / M * K * N;
      double dot = 0;
      for (int64_t k = 0; k < K; ++k)
        dot +=
            av[a + (spec.ta ? k * M + i : i * K + k)] * bv[b + (spec.tb ? j * K + k : k * N + j)];
      dot *= scale;
      double value;
      if (spec.act_slope) {
        value = dot * activate(spec.act, auxv[ij]).dy;
      } else {
        auxv[ij] = as_stored(dot + value_or(biasv, j, 0), args.aux ? args.aux : args.c);
        value = activate(spec.act, auxv[ij]).y;
      }
      cv[ij] = spec.alpha * value + spec.beta * value_or(priorv, ij, 0);
    }
  store(args.c, cv);
  if (!spec.act_slope) store(args.aux, auxv);
}

Doubles rounded_rows(const Tensor& a) {
  const int64_t K = a.cols();
  Doubles v = load(a);
  for (int64_t i = 0; i < a.rows(); ++i) {
    float most = 0;  // rounding is decided in single precision, as in all backends
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(float(v[i * K + k])));
    for (int64_t k = 0; k < K; ++k) {
      double& x = v[i * K + k];
      x = most > 1e-30f ? std::nearbyint(float(x) * (127 / most)) * (most / 127) : 0;
    }
  }
  return v;
}

Doubles unpacked(const Tensor& w, int64_t rows, int64_t K) {
  Doubles v(size_t(rows * K));
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < K; ++k) v[n * K + k] = quantised_value(w.data, n, k);
  return v;
}

void gemm_quantised(Stream& s, const GemmQuantisedArgs& args) {
  const int64_t N = args.c.cols(), K = args.a.cols();
  Doubles av = rounded_rows(args.a), wv = unpacked(args.w, N, K);
  const auto tensor = [](Doubles& v, Shape shape) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), shape, DType::f64};
  };
  gemm(s, {.c = args.c,
           .a = tensor(av, {args.a.rows(), K}),
           .b = tensor(wv, {N, K}),
           .bias = args.bias,
           .prior = args.prior,
           .spec = args.spec});
}

void quantise_fp8(Stream& s, const QuantiseFp8Args& args) {
  Scratch scratch;
  cpu::quantise_fp8({s, nullptr, scratch, fp8_parts}, args);
}

void column_sum(Stream&, const ColumnSumArgs& args) {
  const int64_t N = args.x.cols();
  const Doubles xv = load(args.x);
  Doubles sum = start_from(args.out, args.add);
  for (int64_t i = 0; i < args.x.numel(); ++i) sum[i % N] += args.alpha * xv[i];
  store(args.out, sum);
}

void embed(Stream&, const EmbedArgs& args) {
  const int64_t C = args.y.cols();
  const Doubles wv = load(args.w), posv = load(args.pos_w);
  const auto id = load_ints(args.ids), at = load_ints(args.positions);
  Doubles yv(size_t(args.y.numel()));
  for (int64_t r = 0; r < args.y.rows(); ++r)
    for (int64_t c = 0; c < C; ++c) {
      yv[r * C + c] = id[r] < 0 ? 0 : wv[id[r] * C + c];
      // Padding has a negative position; its result is never used, so row 0 will do.
      if (args.pos_w && id[r] >= 0) yv[r * C + c] += posv[std::max(at[r], 0) * C + c];
    }
  store(args.y, yv);
}

void embed_bwd(Stream&, const EmbedBwdArgs& args) {
  const EmbedSpec& spec = args.spec;
  const int64_t C = args.dy.cols();
  const Doubles dyv = load(args.dy);
  const auto id = load_ints(args.ids), at = load_ints(args.positions);
  Doubles dwv = start_from(args.dw, spec.add), dposv = start_from(args.dpos_w, spec.add_pos);
  for (int64_t r = 0; r < args.dy.rows(); ++r)
    for (int64_t c = 0; c < C; ++c) {
      if (args.dw && id[r] >= 0) dwv[id[r] * C + c] += dyv[r * C + c];
      if (args.dpos_w) dposv[std::max(at[r], 0) * C + c] += dyv[r * C + c];
    }
  store(args.dw, dwv);
  store(args.dpos_w, dposv);
}

void scatter_rows(Stream&, const ScatterRowsArgs& args) {
  const int64_t C = args.dy.cols();
  const Doubles dyv = load(args.dy), priorv = load(args.prior);
  const auto id = load_ints(args.ids);
  Doubles dxv = args.prior ? priorv : Doubles(size_t(args.dx.numel()));
  for (int64_t r = 0; r < int64_t(id.size()); ++r)
    for (int64_t c = 0; id[r] >= 0 && c < C; ++c) dxv[id[r] * C + c] += dyv[r * C + c];
  store(args.dx, dxv);
}

void previous_tokens(Stream&, const PreviousTokensArgs& args) {
  const std::vector<int32_t> token = load_ints(args.tokens), at = load_ints(args.positions),
                             sequence = load_ints(args.sequences), table = load_ints(args.tables);
  const int64_t T = args.tokens.cols(), N = args.tokens.numel();
  // The place in the cache of position p of row n's sequence.
  const auto place = [&](int64_t n, int64_t p) {
    const int64_t block = table[sequence[n] * args.tables.cols() + p / cache_block];
    return args.cache.as<int32_t>() + block * cache_block + p % cache_block;
  };
  for (int64_t n = 0; args.cache && n < N; ++n)
    if (at[n] >= 0) *place(n, at[n]) = token[n];
  for (int64_t n = 0; n < N; ++n) {
    const bool has = at[n] > 0 && (args.cache || n % T > 0);
    const int32_t before = !has ? -1 : args.cache ? *place(n, at[n] - 1) : token[n - 1];
    if (args.before) args.before.as<int32_t>()[n] = before;
    if (args.row) args.row.as<int32_t>()[n] = has ? int32_t(n - 1) : -1;
    if (args.bigram) args.bigram.as<int32_t>()[n] = bigram_bucket(before, token[n], args.buckets);
  }
}

void further_tokens(Stream&, const FurtherTokensArgs& args) {
  const std::vector<int32_t> x = load_ints(args.x), at = load_ints(args.positions);
  const int64_t T = args.x.cols();
  for (int64_t n = 0; n < args.x.numel(); ++n) {
    const bool has = n % T + args.by < T && at[n + args.by] == at[n] + args.by;
    args.y.as<int32_t>()[n] = has ? x[n + args.by] : no_token;
  }
}

void norm(Stream& s, const NormArgs& args) {
  if (Scratch scratch; args.fp8) return norm_fp8({s, nullptr, scratch, fp8_parts}, args);
  const NormSpec& spec = args.spec;
  const int64_t R = args.x.rows(), C = args.x.cols();
  Doubles xv = load(args.x);
  const Doubles rv = load(args.residual), gainv = load(args.gain), biasv = load(args.bias);
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
  store(args.y, yv);
  if (args.residual) store(args.sum, xv);
  store(args.stat, statv);
}

void norm_bwd(Stream& s, const NormBwdArgs& args) {
  if (Scratch scratch; args.fp8) return norm_bwd_fp8({s, nullptr, scratch, fp8_parts}, args);
  const NormSpec& spec = args.spec;
  const int64_t R = args.x.rows(), C = args.x.cols();
  const Doubles dyv = load(args.dy), xv = load(args.x), gainv = load(args.gain),
                statv = load(args.stat);
  const Doubles priorv = load(args.prior);
  Doubles dxv(size_t(R * C));
  Doubles dgainv = start_from(args.dgain, spec.add), dbiasv = start_from(args.dbias, spec.add);
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
      if (args.dgain) dgainv[c] += g * n[c];
      if (args.dbias) dbiasv[c] += g;
    }
    if (spec.kind == Norm::rms) mean_dn = 0;
    for (int64_t c = 0; c < C; ++c)
      dxv[row * C + c] =
          inverse * (dn[c] - mean_dn - n[c] * mean_n_dn) + value_or(priorv, row * C + c, 0);
  }
  store(args.dx, dxv);
  store(args.dgain, dgainv);
  store(args.dbias, dbiasv);
}

}  // namespace hearth::reference
