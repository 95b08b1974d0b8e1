// For each matrix, and each of the matrices stacked in one (q, k and v; gate and up): Nesterov
// momentum, five iterations of Polar Express (Amsel et al. 2025) toward the nearest orthogonal
// matrix, in NorMuon (Li et al. 2025) a factor per neuron, and the step. Matrices of one shape are
// batched over the layers. The products take 20 to 30 times (smaller side of the matrix) FLOPs per
// weight; in fp32 fewer for matrices that are far from square.
#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/memory_budget.h"
#include "ops/ops.h"
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

// The rows of the matrices that make up a parameter.
std::vector<int64_t> matrices_of(const ParamSpec& p, MuonHeads split) {
  if (split == MuonHeads::all || p.heads.empty())
    return p.stack.empty() ? std::vector{p.shape[0]} : p.stack;
  const int64_t together = split == MuonHeads::pair ? 2 : 1;
  std::vector<int64_t> rows;
  for (const HeadRows& h : p.heads)
    for (int64_t i = 0; i < h.count; i += together)
      rows.push_back(h.rows * std::min(together, h.count - i));
  return rows;
}

// One number per row of a matrix, per column where it is wide.
int64_t neurons(int64_t rows, int64_t cols) { return std::max(rows, cols); }

template <MuonHeads split>
Shape neuron_shape(const ParamSpec& p) {
  int64_t n = 0;
  for (const int64_t rows : matrices_of(p, split)) n += neurons(rows, p.shape[1]);
  return {n, 1};
}
constexpr decltype(SlotSpec::shape) neuron_shapes[] = {
    neuron_shape<MuonHeads::all>, neuron_shape<MuonHeads::single>, neuron_shape<MuonHeads::pair>};

// Matrices of one shape, from any parameters: they go through every kernel together.
struct MatrixBatch {
  int64_t R = 0, C = 0;
  std::vector<int64_t> begin;         // of each, in the group's range of weights
  std::vector<int64_t> neuron_begin;  // of its neurons, in the range of their slot; NorMuon only

  int64_t size() const { return int64_t(begin.size()); }
  MatrixBatch part(int64_t first, int64_t last) const {
    MatrixBatch r{R, C, {begin.begin() + first, begin.begin() + last}, {}};
    if (!neuron_begin.empty())
      r.neuron_begin.assign(neuron_begin.begin() + first, neuron_begin.begin() + last);
    return r;
  }
};

// All matrices by shape, in the order of the parameters.
std::vector<MatrixBatch> matrices_by_shape(const ParamStore& store, Updated which, MuonHeads split,
                                           bool by_neuron) {
  std::vector<MatrixBatch> all;
  for (const ParamSpec& p : store.specs()) {
    if (!is_updated(which, p) || p.group != Group::matrix) continue;
    const int64_t C = p.shape[1];
    int64_t at = store.begin(Part::weight, p);
    int64_t neuron = by_neuron ? store.begin(store.slot(neuron_slot, Group::matrix), p) : 0;
    for (const int64_t R : matrices_of(p, split)) {
      const auto same = [&](const MatrixBatch& b) { return b.R == R && b.C == C; };
      auto batch = std::ranges::find_if(all, same);
      if (batch == all.end()) batch = all.insert(batch, {R, C, {}, {}});
      batch->begin.push_back(at);
      if (by_neuron) batch->neuron_begin.push_back(neuron);
      at += R * C, neuron += neurons(R, C);
    }
  }
  return all;
}

// The same with batches of at most matrix_batch_bytes (or one matrix), nearly equal in size.
std::vector<MatrixBatch> bounded_batches(const std::vector<MatrixBatch>& by_shape, DType d) {
  std::vector<MatrixBatch> all;
  for (const MatrixBatch& b : by_shape) {
    const int64_t most = std::max<int64_t>(1, matrix_batch_bytes / (b.R * b.C * size_of(d)));
    const int64_t parts = ceil_div(b.size(), most);
    for (int64_t i = 0; i < parts; ++i)
      all.push_back(b.part(b.size() * i / parts, b.size() * (i + 1) / parts));
  }
  return all;
}

Var unit(Tape& t, Var x, Var squares) {
  const Var y = t.temp(t.shape(x), t[x].dtype);
  const auto launch = [](auto* f, Stream& s, In in, Out out) {
    f(s, {.y = out[0], .x = in[0], .squares = in[1]});
  };
  Op op = kernel_op<&Kernels::unit_matrix>("unit_matrix", launch);
  op.inplace = {{0, 0}};
  t.push(std::move(op), {x, squares}, {y});
  return y;
}

// x x^T of the n matrices of x (n, R, C), or x^T x if they are tall: the smaller of both.
Var squared(Tape& t, Var x) {
  const int64_t n = t.shape(x)[0], R = t.shape(x)[1], C = t.shape(x)[2], r = std::min(R, C);
  const Var A = t.temp({n, r, r}, t[x].dtype);
  record_gemm(
      t,
      {.c = A, .a = x, .b = x, .spec = {.ta = R > C, .tb = R <= C, .batch = n, .symmetric = true}});
  return A;
}

// alpha a b + beta prior of symmetric matrices (n, r, r) that commute.
Var symmetric_product(Tape& t, Var a, Var b, double alpha, Var prior, double beta) {
  const Var c = t.temp(t.shape(a), t[a].dtype);
  record_gemm(
      t,
      {.c = c,
       .a = a,
       .b = b,
       .prior = prior,
       .spec = {
           .alpha = float(alpha), .beta = float(beta), .batch = t.shape(a)[0], .symmetric = true}});
  return c;
}

// scale x + S x for symmetric S (n, r, r) and wide x; for tall x, S is on the other side.
Var multiplied(Tape& t, Var x, Var S, double scale) {
  const bool tall = t.shape(x)[1] > t.shape(x)[2];
  const Var y = t.temp(t.shape(x), t[x].dtype);
  record_gemm(t, {.c = y,
                  .a = tall ? x : S,
                  .b = tall ? S : x,
                  .prior = x,
                  .spec = {.beta = float(scale), .batch = t.shape(x)[0]}});
  return y;
}

// The orthogonal matrices nearest to the n matrices of x (n, R, C): their singular values become
// about 1. The norm of each matrix must be at most 1. Each iteration is a Newton-Schulz step, an
// odd polynomial of the matrix, with the coefficients of Polar Express.
Var orthogonalised(Tape& t, Var x) {
  for (const Iteration& i : polar_express) {
    const Var A = squared(t, x);
    x = multiplied(t, x, symmetric_product(t, A, A, i.c, A, i.b), i.a);
  }
  return x;
}

// The same with products of the shorter side alone, r^3 instead of r^2 times the longer side: an
// iteration multiplies x by P = a + B with B = b A + c A^2, and A by P on both sides. The product
// of all P so far is q + Q, because no product adds to a diagonal; all these matrices are
// polynomials of the first A, so they are symmetric and commute. A small eigenvalue of A is the
// square of a small singular value, which bf16 and TF32 would lose.
Var orthogonalised_by_square(Tape& t, Var x) {
  Var A = squared(t, x), Q;
  double q = 1;
  for (const Iteration& i : polar_express) {
    const Var B = symmetric_product(t, A, A, i.c, A, i.b);
    Q = Q ? symmetric_product(t, B, Q, 1, add(t, Q, B, float(q / i.a)), i.a) : B;
    q *= i.a;
    if (&i == std::end(polar_express) - 1) break;
    const Var AP = symmetric_product(t, A, B, 1, A, i.a);
    A = symmetric_product(t, B, AP, 1, AP, i.a);
  }
  return multiplied(t, x, Q, q);
}

// Whether orthogonalised_by_square() takes fewer operations. Where a backend computes whole
// symmetric products, both take as many at a ratio of 1.5.
bool is_far_from_square(int64_t R, int64_t C) { return 2 * std::max(R, C) >= 3 * std::min(R, C); }

// Whether products in this dtype keep the precision of fp32.
bool is_exact(const UpdateSpec& spec, DType products) {
  return spec.exact_f32 && products == DType::f32;
}

// Of whole products, as if none were symmetric.
double product_flops_of(const MatrixBatch& b, bool exact) {
  const double r = double(std::min(b.R, b.C)), c = double(std::max(b.R, b.C));
  const bool by_square = exact && is_far_from_square(b.R, b.C);
  return double(b.size()) * 2 * r * r * (by_square ? 2 * c + 17 * r : 5 * (2 * c + r));
}

// Factors on the neurons of the orthogonal matrices x.
Var neuron_factors(Tape& t, Var x, Var moments, FlatPieces pieces, Var gate) {
  const Shape s = t.shape(x);
  const Var factors = t.temp({s[0], neurons(s[1], s[2])}, t.acc());
  const auto launch = [pieces = std::move(pieces)](auto* f, Stream& s, In in, Out out) {
    f(s, {.factors = out[0], .moment = out[1], .x = in[0], .gate = in[1], .pieces = pieces.view()});
  };
  t.push(kernel_op<&Kernels::neuron_factors>("neuron_factors", launch), {x, gate, moments},
         {factors, moments});
  return factors;
}

float scale_of(MuonScale kind, int64_t rows, int64_t cols) {
  const double R = double(rows), C = double(cols);
  return float(kind == MuonScale::rms ? 0.2 * std::sqrt(std::max(R, C))
                                      : std::sqrt(std::max(1.0, R / C)));
}

// The iterations run in the dtype of the weights; for fp16, whose range they could leave, in bf16.
DType product_dtype(DType weights) { return weights == DType::f16 ? DType::bf16 : weights; }

void record_batch(Tape& t, const ParamStore& store, const UpdateVars& vars, const MatrixBatch& b,
                  const UpdateSpec& spec) {
  const auto scope = t.scope(fmt::format("{} of {} x {}", b.size(), b.R, b.C));
  const auto all = [&](Part p) { return t.flat(store, p, Group::matrix); };
  const auto slot = [&](const char* name) { return all(store.slot(name, Group::matrix)); };
  const FlatPieces pieces{b.begin, b.R * b.C};
  Var x = t.temp({b.size(), b.R, b.C}, product_dtype(t.dtype()));
  const Var squares = t.temp({b.size(), row_parts}, t.acc());
  record_rule(t, {.rule = UpdateRule::nesterov}, vars,
              {.weight = x,
               .squares = squares,
               .slots = {slot(momentum_slot)},
               .grad = all(Part::grad),
               .pieces = pieces});
  const bool by_square = is_exact(spec, t[x].dtype) && is_far_from_square(b.R, b.C);
  x = unit(t, x, squares);
  x = by_square ? orthogonalised_by_square(t, x) : orthogonalised(t, x);
  Var factors;
  if (!b.neuron_begin.empty())
    factors =
        neuron_factors(t, x, slot(neuron_slot), {b.neuron_begin, neurons(b.R, b.C)}, vars.gate);
  RuleSpec rule = spec.rule_of(UpdateRule::descent, Group::matrix);
  rule.scale = scale_of(spec.muon.muon_scale, b.R, b.C);
  rule.cautious = spec.muon.cautious_decay;
  record_rule(t, rule, vars,
              {.weight = all(Part::weight),
               .master = store.has_master() ? all(Part::master) : Var{},
               .grad = x,
               .factors = factors,
               .pieces = pieces});
}

// --muon-heads needs matrices with heads.
void expect_heads(const ParamStore& store) {
  for (const ParamSpec& p : store.specs())
    if (p.trainable && !p.heads.empty()) return;
  fail_usage("--muon-heads",
             "has no effect: this run trains no matrices of q, k and v; leave it out");
}

std::vector<Optimizer> make(const UpdateSpec& spec, bool by_neuron) {
  const Groups matrices{Group::matrix};
  const MuonHeads split = spec.muon.muon_heads;
  Optimizer muon;
  muon.groups = matrices;
  muon.slots = {{.name = momentum_slot, .groups = matrices}};
  if (by_neuron)
    muon.slots.push_back(
        {.name = neuron_slot, .groups = matrices, .shape = neuron_shapes[size_t(split)]});
  muon.record = [=](Tape& t, const ParamStore& store, const UpdateVars& vars) {
    const std::vector<MatrixBatch> all = matrices_by_shape(store, vars.which, split, by_neuron);
    if (all.empty())
      fail_usage("--optimizer",
                 "Muon updates weight matrices, and this run trains none; choose adamw");
    if (split != MuonHeads::all) expect_heads(store);
    for (const MatrixBatch& b : bounded_batches(all, product_dtype(t.dtype())))
      record_batch(t, store, vars, b, spec);
  };
  muon.product_flops = [=](const ParamStore& store) {
    const bool exact = is_exact(spec, product_dtype(store.dtype()));
    double flops = 0;
    for (const MatrixBatch& b : matrices_by_shape(store, Updated::all, split, false))
      flops += product_flops_of(b, exact);
    return flops;
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
