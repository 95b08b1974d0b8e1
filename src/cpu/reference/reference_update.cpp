// Reference kernels from logits to new weights: loss, gradient norm, the optimizer's update.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "cpu/gemm.h"
#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

namespace {

// A row of logits after softcap and temperature, with their slopes and its log-sum-exp.
struct SoftRow {
  Doubles z, slope;
  double lse = 0;
};

SoftRow soft_row(const double* x, int64_t V, double softcap, double temperature) {
  SoftRow r{Doubles(size_t(V), 0.0), Doubles(size_t(V), 1 / temperature)};
  for (int64_t j = 0; j < V; ++j) {
    r.z[j] = x[j] / temperature;
    if (softcap > 0) {
      const double t = std::tanh(x[j] / softcap);
      r.z[j] = softcap * t / temperature;
      r.slope[j] *= 1 - t * t;
    }
  }
  const double top = *std::max_element(r.z.begin(), r.z.end());
  double sum = 0;
  for (double v : r.z) sum += std::exp(v - top);
  r.lse = top + std::log(sum);
  return r;
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  if (Scratch scratch; args.fp8)
    return cross_entropy_fp8({stream, nullptr, scratch, fp8_parts}, args);
  const LossSpec& spec = args.spec;
  const int64_t N = args.logits.rows(), wide = args.logits.cols(),
                V = spec.vocab ? spec.vocab : wide;
  const Scalars s = load_scalars(args.scalars);
  const Doubles x = load(args.logits);
  const auto target = load_ints(args.targets);
  const double share = scaled_gradient(s, double(s.inv_targets));
  Doubles loss(size_t(N), 0.0), z(size_t(N), 0.0), grad(size_t(N * wide));
  for (int64_t n = 0; n < N; ++n) {
    if (target[n] == -100) continue;
    const SoftRow r = soft_row(&x[n * wide], V, spec.softcap, 1);
    loss[n] = r.lse - r.z[target[n]], z[n] = r.lse * r.lse;
    for (int64_t j = 0; j < V; ++j) {
      const double p = std::exp(r.z[j] - r.lse), hit = j == target[n] ? 1 : 0;
      grad[n * wide + j] =
          (spec.weight * (p - hit) + spec.z_loss * 2 * r.lse * p) * r.slope[j] * share;
    }
  }
  store(args.nll, loss);
  store(args.z, z);
  if (spec.grad) store(args.logits, grad);
}

void logprob(Stream&, const LogprobArgs& args) {
  const LogprobSpec& spec = args.spec;
  const int64_t N = args.logits.rows(), wide = args.logits.cols(),
                V = spec.vocab ? spec.vocab : wide;
  const Doubles x = load(args.logits);
  const auto target = load_ints(args.targets);
  Doubles log(size_t(N), 0.0), spread(size_t(N), 0.0);
  for (int64_t n = 0; n < N; ++n) {
    if (target[n] < 0) continue;
    const SoftRow r = soft_row(&x[n * wide], V, spec.softcap, spec.temperature);
    log[n] = r.z[target[n]] - r.lse;
    for (int64_t j = 0; j < V; ++j) spread[n] -= std::exp(r.z[j] - r.lse) * (r.z[j] - r.lse);
  }
  store(args.logprob, log);
  store(args.entropy, spread);
}

void logprob_bwd(Stream&, const LogprobBwdArgs& args) {
  const LogprobSpec& spec = args.spec;
  const int64_t N = args.logits.rows(), wide = args.logits.cols(),
                V = spec.vocab ? spec.vocab : wide;
  const Doubles x = load(args.logits), d = load(args.dlogprob);
  const auto target = load_ints(args.targets);
  Doubles grad(size_t(N * wide), 0.0);
  for (int64_t n = 0; n < N; ++n) {
    if (target[n] < 0) continue;
    const SoftRow r = soft_row(&x[n * wide], V, spec.softcap, spec.temperature);
    for (int64_t j = 0; j < V; ++j)
      grad[n * wide + j] =
          d[n] * ((j == target[n] ? 1 : 0) - std::exp(r.z[j] - r.lse)) * r.slope[j];
  }
  store(args.dlogits, grad);
}

void mean_loss(Stream&, const MeanLossArgs& args) {
  const Scalars s = load_scalars(args.scalars);
  Doubles sum = start_from(args.loss, args.add);
  for (double x : load(args.nll)) sum[0] += s.inv_targets * x;
  store(args.loss, sum);
}

void sum_squares(Stream&, const SumSquaresArgs& args) {
  double sum = 0;
  for (double v : load(args.x)) sum += v * v;
  store(args.out, {sum});
}

void gate_update(Stream&, const GateUpdateArgs& args) {
  const Scalars s = load_scalars(args.scalars);
  const double norm = std::sqrt(load(args.squares)[0]) / s.loss_scale, l = load(args.loss)[0];
  UpdateState u;
  std::memcpy(&u, args.state.data, sizeof u);
  u.grad_norm = float(norm);
  u.loss = float(l);
  if (!std::isfinite(norm) || !std::isfinite(l)) {
    u.skip = 1;
    u.skipped += 1;
    u.streak += 1;
    u.grad_scale = 0;
  } else {
    u.skip = 0;
    u.streak = 0;
    u.good_steps += 1;
    const double clip = s.clip > 0 && norm > s.clip ? s.clip / (norm + 1e-6) : 1;
    u.grad_scale = float(clip / s.loss_scale);
  }
  std::memcpy(args.state.data, &u, sizeof u);
}

namespace {

// A slot's state, decoded where it is 8-bit codes.
Doubles load_slot(const UpdateArgs& args, int k) {
  if (!args.scales[k]) return load(args.slots[k]);
  const DynamicCode table = make_dynamic_code(AdamwRule::is_signed(k));
  const Doubles scales = load(args.scales[k]);
  Doubles x(size_t(args.slots[k].numel()));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = double(table.value[args.slots[k].as<uint8_t>()[i]]) * scales[i / code_block];
  return x;
}

// The code whose value is nearest, by comparison with all; but no positive x becomes 0 in a table
// without signs.
uint8_t nearest_code(const DynamicCode& table, double x) {
  int best = 0;
  const auto distance = [&](int code) { return std::abs(double(table.value[code]) - x); };
  for (int code = 1; code < 256; ++code)
    if (distance(code) < distance(best)) best = code;
  return uint8_t(!table.has_sign && x > 0 ? std::max(best, 1) : best);
}

// x rounded to bf16 by the random bits of element i.
double rounded(double x, const RoundingKey& key, int64_t i, int slot) {
  const auto bits = std::bit_cast<uint32_t>(float(x));
  const uint32_t word = rounding_word(key, uint32_t(i), uint32_t(uint64_t(i) >> 32));
  return std::isnan(x) ? x : std::bit_cast<float>(rounded_stochastically(bits, word, slot));
}

void store_slot(const UpdateArgs& args, int k, Doubles x, const RoundingKey& key) {
  if (args.slots[k].dtype == DType::bf16)
    for (size_t i = 0; i < x.size(); ++i) x[i] = rounded(x[i], key, args.first + int64_t(i), k);
  if (!args.scales[k]) return store(args.slots[k], x);
  const DynamicCode table = make_dynamic_code(AdamwRule::is_signed(k));
  for (size_t begin = 0; begin < x.size(); begin += code_block) {
    const size_t end = std::min(x.size(), begin + code_block);
    double most = 0;
    for (size_t i = begin; i < end; ++i) most = std::max(most, std::abs(x[i]));
    if (most < 0x1p-126) most = 0;
    args.scales[k].as<float>()[begin / code_block] = float(most);
    for (size_t i = begin; i < end; ++i)
      args.slots[k].as<uint8_t>()[i] = nearest_code(table, most > 0 ? x[i] / most : 0);
  }
}

// The gradient of a range or, with factors, of one piece.
Doubles load_gradient(const UpdateArgs& args) {
  Doubles g = load(args.grad);
  if (!args.factors) return g;
  const Doubles factors = load(args.factors);
  const size_t R = size_t(args.grad.shape[0]), C = size_t(args.grad.shape[1]);
  for (size_t i = 0; i < g.size(); ++i) g[i] *= factors[R < C ? i % C : i / C];
  return g;
}

// The sums of squares of pieces in the first of their parts.
void store_squares(const UpdateArgs& args) {
  const Doubles x = load(args.weight);
  Doubles parts(size_t(args.squares.numel()));
  const size_t each = x.size() / size_t(args.pieces.count);
  for (size_t i = 0; i < x.size(); ++i) parts[i / each * size_t(row_parts)] += x[i] * x[i];
  store(args.squares, parts);
}

}  // namespace

void update_weights(Stream& s, const UpdateArgs& args) {
  for (int64_t i = 0; i < args.pieces.count; ++i) update_weights(s, piece_of(args, i));
  if (args.squares) store_squares(args);
  if (args.pieces.count) return;
  UpdateState u;
  std::memcpy(&u, args.gate.data, sizeof u);
  if (u.skip != 0) return;
  const Scalars sc = load_scalars(args.scalars);
  by_rule(args.spec.rule, [&]<class Rule>(Rule) {
    Doubles w = load(args.master ? args.master : args.weight), slots[most_slots];
    for (int k = 0; k < Rule::slots; ++k) slots[k] = load_slot(args, k);
    const Doubles g = load_gradient(args);
    for (size_t i = 0; i < w.size(); ++i) {
      double s[most_slots] = {};
      for (int k = 0; k < Rule::slots; ++k) s[k] = slots[k][i];
      w[i] = Rule::reference(w[i], g[i], s, u, sc, args.spec);
      for (int k = 0; k < Rule::slots; ++k) slots[k][i] = s[k];
    }
    store(args.master, w);
    store(args.weight, w);
    for (int k = 0; k < Rule::slots; ++k) store_slot(args, k, slots[k], rounding_key(u, sc));
  });
}

void unit_matrix(Stream&, const UnitMatrixArgs& args) {
  Doubles x = load(args.x);
  const Doubles parts = load(args.squares);
  const size_t n = size_t(args.x.shape[0]), size = x.size() / n, each = parts.size() / n;
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (const double v : std::span(parts).subspan(i * each, each)) sum += v;
    for (double& v : std::span(x).subspan(i * size, size)) v /= 1.02 * std::sqrt(sum) + 1e-6;
  }
  store(args.y, x);
}

namespace {

// The factors of the neurons of one matrix (R, C); `moment` has one element for each of them.
Doubles neuron_factors_of(std::span<const double> x, std::span<double> moment, size_t R, size_t C,
                          double beta2, bool skip) {
  const bool columns = R < C;
  Doubles sums(moment.size()), factors;
  for (size_t i = 0; i < x.size(); ++i) sums[columns ? i % C : i / C] += x[i] * x[i];
  double before = 0, after = 0;
  for (size_t i = 0; i < moment.size(); ++i) {
    const double mean = sums[i] / double(columns ? R : C);
    if (!skip) moment[i] = beta2 * moment[i] + (1 - beta2) * mean;
    before += sums[i], after += sums[i] / std::max(moment[i], 1e-10);
  }
  const double rescale = after > 0 ? std::sqrt(before / after) : 1;
  for (const double v : moment) factors.push_back(rescale / std::sqrt(std::max(v, 1e-10)));
  return factors;
}

}  // namespace

void neuron_factors(Stream&, const NeuronFactorsArgs& args) {
  const Doubles x = load(args.x);
  Doubles moment = load(args.moment), factors;
  UpdateState u;
  std::memcpy(&u, args.gate.data, sizeof u);
  const size_t R = size_t(args.x.shape[1]), C = size_t(args.x.shape[2]);
  for (int64_t i = 0; i < args.pieces.count; ++i) {
    const Doubles own =
        neuron_factors_of(std::span(x).subspan(size_t(i) * R * C, R * C),
                          std::span(moment).subspan(size_t(args.pieces.begin[i]), std::max(R, C)),
                          R, C, double(args.beta2), u.skip != 0);
    factors.insert(factors.end(), own.begin(), own.end());
  }
  store(args.moment, moment);
  store(args.factors, factors);
}

}  // namespace hearth::reference
