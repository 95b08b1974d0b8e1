// Each matrix, and each of the matrices stacked in one (q, k and v; gate and up), on its own:
// Nesterov momentum, five iterations of Polar Express (Amsel et al. 2025) toward the nearest
// orthogonal matrix, in NorMuon (Li et al. 2025) a factor per neuron, and the step. The products
// take 10 to 15 times (smaller side of the matrix) FLOPs per weight.
#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "ops/record.h"
#include "optim/optimizer.h"
#include "sys/error.h"

namespace hearth::inline optim {
namespace {

constexpr const char* momentum_slot = "momentum";
constexpr const char* neuron_slot = "neuron";
constexpr float lowest_momentum = 0.85f;

// x <- a x + (b A + c A^2) x with A = x x^T.
struct Iteration {
  double a, b, c;
};
constexpr Iteration polar_express[] = {
    {8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323},
};

std::vector<int64_t> matrices_of(const ParamSpec& p) {
  return p.stack.empty() ? std::vector{p.shape[0]} : p.stack;
}

// One number per row of a matrix, per column where it is wide.
int64_t neurons(int64_t rows, int64_t cols) { return std::max(rows, cols); }

Shape neuron_shape(const ParamSpec& p) {
  int64_t n = 0;
  for (const int64_t rows : matrices_of(p)) n += neurons(rows, p.shape[1]);
  return {n, 1};
}

Var scaled(Tape& t, Var x, double factor) {
  const Var y = t.temp(t.shape(x), t[x].dtype);
  const auto launch = [factor](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .b = in[0], .scale = float(factor)});
  };
  t.push(kernel_op<&Kernels::add>("scaled", launch), {x}, {y});
  return y;
}

Var unit(Tape& t, Var x) {
  const Var y = t.temp(t.shape(x), t[x].dtype), parts = t.temp({row_parts}, t.acc());
  const auto launch = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .parts = out[1], .x = in[0]});
  };
  t.push(kernel_op<&Kernels::unit_matrix>("unit_matrix", launch), {x}, {y, parts});
  return y;
}

// The orthogonal matrix nearest to x, about: its singular values become 1.
Var orthogonalised(Tape& t, Var x) {
  const int64_t R = t.shape(x)[0], C = t.shape(x)[1], r = std::min(R, C);
  const DType d = t[x].dtype;
  const bool tall = R > C;  // then A = x^T x, on the other side
  x = unit(t, x);
  for (const Iteration& i : polar_express) {
    const Var A = t.temp({r, r}, d), B = t.temp({r, r}, d), y = t.temp({R, C}, d);
    record_gemm(t, {.c = A, .a = x, .b = x, .spec = {.ta = tall, .tb = !tall}});
    record_gemm(
        t, {.c = B, .a = A, .b = A, .prior = scaled(t, A, i.b), .spec = {.alpha = float(i.c)}});
    record_gemm(t, {.c = y, .a = tall ? x : B, .b = tall ? B : x, .prior = scaled(t, x, i.a)});
    x = y;
  }
  if (d == t.acc()) return x;
  const Var wide = t.temp({R, C}, t.acc());
  const auto launch = [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); };
  t.push(kernel_op<&Kernels::copy>("copy", launch), {x}, {wide});
  return wide;
}

Var with_neurons_scaled(Tape& t, Var x, Var moment, Var gate) {
  const Var y = t.temp(t.shape(x), t.acc()), sums = t.temp(t.shape(moment), t.acc());
  const auto launch = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .moment = out[1], .sums = out[2], .x = in[0], .gate = in[1]});
  };
  t.push(kernel_op<&Kernels::scale_neurons>("scale_neurons", launch), {x, gate, moment},
         {y, moment, sums});
  return y;
}

float scale_of(MuonScale kind, int64_t rows, int64_t cols) {
  const double R = double(rows), C = double(cols);
  return float(kind == MuonScale::rms ? 0.2 * std::sqrt(std::max(R, C))
                                      : std::sqrt(std::max(1.0, R / C)));
}

void record_param(Tape& t, const ParamStore& store, const UpdateVars& vars, const ParamSpec& p,
                  const UpdateSpec& spec, bool by_neuron) {
  const auto scope = t.scope(p.name);
  const auto slot = [&](const char* name) {
    return t.of_param(store, store.slot(name, Group::matrix), p);
  };
  const DType d = t.dtype() == DType::f16 ? t.acc() : t.dtype();
  const Var all = t.temp(p.shape, d);
  record_rule(
      t, {.rule = UpdateRule::nesterov}, vars,
      {.weight = all, .slots = {slot(momentum_slot)}, .grad = t.of_param(store, Part::grad, p)});
  const Var weight = t.of_param(store, Part::weight, p);
  const Var master = store.has_master() ? t.of_param(store, Part::master, p) : Var{};
  int64_t row = 0, neuron = 0;
  for (const int64_t rows : matrices_of(p)) {
    const int64_t cols = p.shape[1];
    Var x = orthogonalised(t, t.rows(all, row, rows));
    if (by_neuron)
      x = with_neurons_scaled(t, x, t.rows(slot(neuron_slot), neuron, neurons(rows, cols)),
                              vars.gate);
    RuleSpec rule = spec.rule_of(UpdateRule::descent, Group::matrix);
    rule.scale = scale_of(spec.muon.muon_scale, rows, cols);
    rule.cautious = spec.muon.cautious_decay;
    record_rule(t, rule, vars,
                {.weight = t.rows(weight, row, rows),
                 .master = master ? t.rows(master, row, rows) : Var{},
                 .grad = x});
    row += rows, neuron += neurons(rows, cols);
  }
}

std::vector<Optimizer> make(const UpdateSpec& spec, bool by_neuron) {
  const Groups matrices{Group::matrix};
  Optimizer muon;
  muon.groups = matrices;
  muon.slots = {{.name = momentum_slot, .groups = matrices}};
  if (by_neuron)
    muon.slots.push_back({.name = neuron_slot, .groups = matrices, .shape = neuron_shape});
  muon.available = [](const Kernels& k) { return k.unit_matrix && k.scale_neurons; };
  muon.record = [=](Tape& t, const ParamStore& store, const UpdateVars& vars) {
    if (store.range_size(Group::matrix) == 0)
      fail_usage("--optimizer",
                 "Muon updates weight matrices, and this run trains none; choose adamw");
    for (const ParamSpec& p : store.specs())
      if (p.trainable && p.group == Group::matrix) record_param(t, store, vars, p, spec, by_neuron);
  };
  return {std::move(muon),
          elementwise(UpdateRule::adamw, {{.name = "moment1"}, {.name = "moment2"}}, spec,
                      {Group::head, Group::embedding, Group::vector})};
}

}  // namespace

std::vector<Optimizer> muon(const UpdateSpec& s) { return make(s, false); }
std::vector<Optimizer> normuon(const UpdateSpec& s) { return make(s, true); }

void MuonConfig::check() const {
  if (!(momentum >= 0 && momentum < 1))
    fail_usage("--momentum", "expected 0 up to below 1, got {}", momentum);
  for (const auto& [flag, steps] : {std::pair{"--momentum-warmup", momentum_warmup},
                                    {"--momentum-cooldown", momentum_cooldown}})
    if (steps < 0) fail_usage(flag, "expected 0 or more, got {}", steps);
}

float MuonConfig::momentum_at(int64_t it, int64_t steps) const {
  if (momentum <= lowest_momentum) return momentum;
  double share = 1;
  if (momentum_warmup > 0) share = std::min(share, double(it) / double(momentum_warmup));
  if (momentum_cooldown > 0)
    share = std::min(share, double(std::max<int64_t>(0, steps - it)) / double(momentum_cooldown));
  return float(lowest_momentum + (momentum - lowest_momentum) * share);
}

}  // namespace hearth::inline optim
