// Muon and NorMuon: the step of the published formulas in double, with matrices that are tall, wide
// and stacked, and heads apart; the schedule of the momentum; factors by group.
#include <gtest/gtest.h>

#include <cmath>

#include "core/plan.h"
#include "cpu/reference/reference.h"
#include "model/decoder.h"
#include "op_cases.h"
#include "optim/update.h"
#include "sys/error.h"
#include "unit/message_of.h"
#include "unit/muon_case.h"

namespace hearth {
namespace {

using namespace muon_test;

std::vector<ParamSpec> params() {
  return {{.name = "qkv",
           .shape = {20, 12},
           .init = Init::uniform(1),
           .stack = {12, 4, 4},
           .heads = {{3, 4}, {2, 2}, {2, 2}}},
          {.name = "kv_b",
           .shape = {15, 7},
           .init = Init::uniform(1),
           .heads = {{1, 3}, {1, 2}, {1, 3}, {1, 2}, {1, 3}, {1, 2}}},
          {.name = "wide", .shape = {3, 37}, .init = Init::uniform(1)},
          {.name = "tall", .shape = {41, 4}, .init = Init::uniform(1)},
          // Of shapes that there are already, so that matrices of different parameters are batched.
          {.name = "square", .shape = {12, 12}, .init = Init::uniform(1)},
          {.name = "large", .shape = {64, 64}, .init = Init::uniform(1)},
          {.name = "gate_up", .shape = {82, 4}, .init = Init::uniform(1), .stack = {41, 41}},
          {.name = "h", .shape = {9, 5}, .init = Init::uniform(1), .group = Group::head},
          {.name = "e", .shape = {5, 3}, .init = Init::uniform(1), .group = Group::embedding},
          {.name = "v", .shape = {31}, .init = Init::uniform(1), .group = Group::vector}};
}

Matrix gradient(const ParamSpec& p, int step) {
  std::vector<float> g(size_t(p.shape.numel()));
  draw(g, Init::normal(1), uint64_t(100 + step), p.name);
  return {p.shape[0], p.shape.rank > 1 ? p.shape[1] : 1, {g.begin(), g.end()}};
}

struct Update {
  Update(Backend& b, DType dtype, const UpdateSpec& spec, std::vector<ParamSpec> specs = params())
      : store(b, std::move(specs), dtype), memory(b, &store) {
    store.initialise(3);
    Tape t(dtype);
    record_update(t, store, t.result("loss", {1}, t.acc()), spec);
    exec = std::make_unique<Exec>(std::move(t), memory);
  }
  void run(int step, const Scalars& s) {
    for (const ParamSpec& p : store.specs()) {
      const Matrix g = gradient(p, step);
      store.set(Part::grad, p.name, std::vector<float>(g.x.begin(), g.x.end()));
    }
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
    exec->run();
  }
  std::vector<float> weights(const std::string& name) {
    return store.values(store.has_master() ? Part::master : Part::weight, name);
  }
  ParamStore store;
  Memory memory;
  std::unique_ptr<Exec> exec;
};

constexpr Scalars scalars{.lr = 0.05f, .momentum = 0.9f};

// One matrix of a parameter, step by step in double.
struct Expected {
  Matrix w, m;
  std::vector<double> moment;

  void step(const Matrix& g, const UpdateSpec& s) {
    const double mu = scalars.momentum, lr = double(scalars.lr) * s.rate_of(Group::matrix);
    m = m.plus(mu, g, 1 - mu);
    Matrix u = polar_express(m.plus(mu, g, 1 - mu));
    if (s.optimizer == OptimizerKind::normuon) scale_neurons(u);
    const double R = double(w.R), C = double(w.C);
    const double scale = s.muon.muon_scale == MuonScale::rms ? 0.2 * std::sqrt(std::max(R, C))
                                                             : std::sqrt(std::max(1.0, R / C));
    for (size_t i = 0; i < w.x.size(); ++i) {
      const bool decays = !s.muon.cautious_decay || u.x[i] * w.x[i] >= 0;
      w.x[i] -= lr * ((decays ? double(s.decay) * w.x[i] : 0) + scale * u.x[i]);
    }
  }
  void scale_neurons(Matrix& u) {
    const bool columns = u.R < u.C;
    const Matrix rows = columns ? u.transposed() : u;  // a neuron is a row
    moment.resize(size_t(rows.R));
    Matrix y = rows;
    for (int64_t r = 0; r < rows.R; ++r) {
      double mean = 0;
      for (int64_t c = 0; c < rows.C; ++c) mean += rows.at(r, c) * rows.at(r, c) / double(rows.C);
      double& v = moment[size_t(r)];
      v = 0.9 * v + 0.1 * mean;
      for (int64_t c = 0; c < rows.C; ++c) y.at(r, c) /= std::sqrt(v);
    }
    const double rescale = rows.norm() / y.norm();
    for (double& v : y.x) v *= rescale;
    u = columns ? y.transposed() : y;
  }
};

Matrix rows_of(const Matrix& all, int64_t begin, int64_t count) {
  const auto at = all.x.begin() + begin * all.C;
  return {count, all.C, {at, at + count * all.C}};
}

// The rows of the matrices of a parameter, by hand.
std::vector<int64_t> rows_of_matrices(const ParamSpec& p, MuonHeads heads) {
  if (heads != MuonHeads::all && p.name == "kv_b") return {3, 2, 3, 2, 3, 2};
  if (heads == MuonHeads::pair && p.name == "qkv") return {8, 4, 4, 4};
  if (heads == MuonHeads::single && p.name == "qkv") return {4, 4, 4, 2, 2, 2, 2};
  return p.stack.empty() ? std::vector{p.shape[0]} : p.stack;
}

void expect_steps_of_the_formula(Backend& backend, DType dtype, const UpdateSpec& spec,
                                 double limit) {
  Update got(backend, dtype, spec);
  std::map<std::string, Matrix> start;
  for (const ParamSpec& p : params())
    if (p.group == Group::matrix) {
      const std::vector<float> w = got.weights(p.name);
      start[p.name] = {p.shape[0], p.shape[1], {w.begin(), w.end()}};
    }
  for (int step = 0; step < 3; ++step) got.run(step, scalars);
  for (const ParamSpec& p : params()) {
    if (p.group != Group::matrix) continue;
    const std::vector<float> w = got.weights(p.name);
    int64_t row = 0;
    for (const int64_t rows : rows_of_matrices(p, spec.muon.muon_heads)) {
      const Matrix begun = rows_of(start[p.name], row, rows);
      Expected want{begun, {rows, p.shape[1], std::vector<double>(begun.x.size())}, {}};
      for (int step = 0; step < 3; ++step) want.step(rows_of(gradient(p, step), row, rows), spec);
      const Matrix end = rows_of({p.shape[0], p.shape[1], {w.begin(), w.end()}}, row, rows);
      const double moved = want.w.plus(1, begun, -1).norm();
      EXPECT_LT(end.plus(1, want.w, -1).norm(), limit * moved) << p.name << " row " << row;
      row += rows;
    }
  }
}

TEST(Muon, StepIsTheFormulaInDouble) {
  std::vector<std::unique_ptr<Backend>> backends = cases::fast_backends(2);
  backends.push_back(make_reference_backend());
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon})
    for (const auto& backend : backends)
      for (const bool variant : {false, true}) {
        UpdateSpec spec{.optimizer = kind, .decay = 0.3f};
        if (variant) {
          spec.rates[size_t(Group::matrix)] = 2;
          spec.muon = {.muon_scale = MuonScale::spectral, .cautious_decay = true};
        }
        SCOPED_TRACE(fmt::format("{} {}", int(kind), backend->describe()));
        for (const bool exact : {false, true}) {
          spec.exact_f32 = exact;
          expect_steps_of_the_formula(*backend, DType::f32, spec, 1e-4);
        }
        // An iteration subtracts terms that are up to 22 times as large as its result.
        expect_steps_of_the_formula(*backend, DType::bf16, spec, 0.15);
      }
}

// Heads of q, k and v one by one or in pairs, the last one alone; keys and values of latent
// attention head by head.
TEST(Muon, StepOfGroupsOfHeadsIsTheFormulaInDouble) {
  std::vector<std::unique_ptr<Backend>> backends = cases::fast_backends(2);
  backends.push_back(make_reference_backend());
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon})
    for (const auto& backend : backends)
      for (const MuonHeads heads : {MuonHeads::single, MuonHeads::pair}) {
        const UpdateSpec spec{
            .optimizer = kind, .decay = 0.3f, .muon = {.muon_heads = heads}, .exact_f32 = true};
        SCOPED_TRACE(fmt::format("{} {} {}", int(kind), int(heads), backend->describe()));
        expect_steps_of_the_formula(*backend, DType::f32, spec, 1e-4);
        expect_steps_of_the_formula(*backend, DType::bf16, spec, 0.15);
      }
}

TEST(Muon, GroupsOfHeadsNeedHeads) {
  const auto backend = make_reference_backend();
  const UpdateSpec spec{.optimizer = OptimizerKind::muon, .muon = {.muon_heads = MuonHeads::pair}};
  EXPECT_EQ(message_of([&] {
              Update u(*backend, DType::f32, spec,
                       {{.name = "m", .shape = {4, 4}, .init = Init::zeros()}});
            }),
            "[--muon-heads] has no effect: this run trains no matrices of q, k and v; leave it "
            "out");
}

// What a model declares: heads cover the rows of q, k and v, and those of latent attention.
TEST(Muon, ModelsDeclareTheirHeads) {
  ModelConfig c = preset("tiny");
  const auto heads_of = [](const ModelConfig& model, const std::string& name) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (const ParamSpec& p : decoder_params(model.resolve()))
      if (p.name == name)
        for (const HeadRows& h : p.heads) all.emplace_back(h.count, h.rows);
    return all;
  };
  using Heads = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(heads_of(c, "blocks.0.attn.qkv.weight"), (Heads{{4, 64}, {2, 64}, {2, 64}}));
  EXPECT_EQ(heads_of(c, "blocks.0.attn.out.weight"), Heads{});
  c = preset("mla-124m");
  const Heads kv = heads_of(c, "blocks.0.attn.kv_b.weight");
  ASSERT_EQ(kv.size(), size_t(2 * c.heads));
  EXPECT_EQ(kv[0], (std::pair<int64_t, int64_t>{1, 32}));
  EXPECT_EQ(kv[1], (std::pair<int64_t, int64_t>{1, 64}));
  for (const ParamSpec& p : decoder_params(c)) {
    if (p.heads.empty()) continue;
    int64_t rows = 0;
    for (const HeadRows& h : p.heads) rows += h.count * h.rows;
    EXPECT_EQ(rows, p.shape[0]) << p.name;
  }
}

// The other groups take AdamW's steps to the bit.
TEST(Muon, LeavesTheRestToAdamw) {
  const auto backend = make_cpu_backend(2);
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
    Update got(*backend, DType::f32, {.optimizer = kind}), want(*backend, DType::f32, {});
    for (int step = 0; step < 3; ++step) got.run(step, scalars), want.run(step, scalars);
    for (const char* name : {"h", "e", "v"}) EXPECT_EQ(got.weights(name), want.weights(name));
    EXPECT_NE(got.weights("tall"), want.weights("tall"));
  }
}

// A skipped update changes nothing, not even the state.
TEST(Muon, SkipsAStepWithoutAFiniteGradient) {
  const auto backend = make_cpu_backend(2);
  Update u(*backend, DType::bf16, {.optimizer = OptimizerKind::normuon});
  for (int step = 0; step < 2; ++step) u.run(step, scalars);
  const auto bytes = [&] {
    std::vector<std::byte> all;
    for (const Part p : {Part::weight, Part::master, slot_part(0), slot_part(1), slot_part(2)}) {
      const Tensor t = u.store.flat(p);
      all.insert(all.end(), t.data, t.data + t.bytes());
    }
    return all;
  };
  const std::vector<std::byte> before = bytes();
  for (const ParamSpec& p : u.store.specs())
    u.store.set(Part::grad, p.name, std::vector<float>(size_t(p.shape.numel()), NAN));
  u.exec->run();
  EXPECT_EQ(bytes(), before);
  u.run(2, scalars);
  for (const ParamSpec& p : u.store.specs())
    for (const float x : u.weights(p.name)) ASSERT_TRUE(std::isfinite(x)) << p.name;
}

TEST(Muon, SameBitsAtAnyNumberOfThreads) {
  const auto one = make_cpu_backend(1), three = make_cpu_backend(3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<ParamSpec> large{
        {.name = "m", .shape = {310, 200}, .init = Init::uniform(1), .stack = {100, 210}},
        {.name = "wide", .shape = {70, 300}, .init = Init::uniform(1)}};
    const UpdateSpec spec{.optimizer = OptimizerKind::normuon, .exact_f32 = true};
    Update a(*one, dtype, spec, large), b(*three, dtype, spec, large);
    for (int step = 0; step < 2; ++step) a.run(step, scalars), b.run(step, scalars);
    for (const char* name : {"m", "wide"}) EXPECT_EQ(a.weights(name), b.weights(name));
  }
}

TEST(Muon, MomentumWarmsUpAndCoolsDown) {
  const MuonConfig c;
  EXPECT_FLOAT_EQ(c.momentum_at(0, 1000), 0.85f);
  EXPECT_FLOAT_EQ(c.momentum_at(150, 1000), 0.90f);
  EXPECT_FLOAT_EQ(c.momentum_at(300, 1000), 0.95f);
  EXPECT_FLOAT_EQ(c.momentum_at(950, 1000), 0.95f);
  EXPECT_FLOAT_EQ(c.momentum_at(975, 1000), 0.90f);
  EXPECT_FLOAT_EQ((MuonConfig{.momentum_warmup = 0, .momentum_cooldown = 0}.momentum_at(0, 9)),
                  0.95f);
  EXPECT_FLOAT_EQ((MuonConfig{.momentum = 0.5f}.momentum_at(0, 9)), 0.5f);
}

// The hidden matrices of GPT-2 with this many layers.
std::vector<ParamSpec> gpt2_matrices(int layers, int64_t C) {
  std::vector<ParamSpec> all;
  for (int i = 0; i < layers; ++i)
    for (const ParamSpec& p :
         {ParamSpec{.name = "qkv", .shape = {3 * C, C}, .init = {}, .stack = {C, C, C}},
          ParamSpec{.name = "out", .shape = {C, C}, .init = {}},
          ParamSpec{.name = "up", .shape = {4 * C, C}, .init = {}},
          ParamSpec{.name = "down", .shape = {C, 4 * C}, .init = {}}}) {
      all.push_back(p);
      all.back().name += std::to_string(i);
    }
  return all;
}

struct RecordedUpdate {
  std::map<std::string, int> nodes = {};  // by op
  int64_t arena_bytes = 0;
};
RecordedUpdate recorded(std::vector<ParamSpec> specs, OptimizerKind kind) {
  const auto backend = make_reference_backend();  // allocates nothing: nothing runs
  ParamStore store(*backend, std::move(specs), DType::bf16);
  Tape t(DType::bf16);
  record_update(t, store, t.result("loss", {1}, t.acc()), {.optimizer = kind});
  simplify(t);
  RecordedUpdate r{.arena_bytes = plan(t).arena_bytes};
  for (const Node& n : t.nodes) ++r.nodes[n.op->name];
  return r;
}

// All layers go through each kernel together, in batches of bounded memory.
TEST(Muon, BatchesTheMatricesOfOneShape) {
  const RecordedUpdate small = recorded(gpt2_matrices(12, 768), OptimizerKind::normuon);
  for (const char* op : {"nesterov", "unit_matrix", "neuron_factors", "descent"})
    EXPECT_EQ(small.nodes.at(op), 3) << op;
  EXPECT_EQ(small.nodes.at("gemm"), 3 * 15);

  // 192 matrices of 5 MB in batches of at most 26, and twice 48 of 20 MB in batches of at most 6.
  const RecordedUpdate large = recorded(gpt2_matrices(48, 1600), OptimizerKind::muon);
  EXPECT_EQ(large.nodes.at("nesterov"), 8 + 8 + 8);
  EXPECT_EQ(large.nodes.at("gemm"), 24 * 15);
  EXPECT_LE(large.arena_bytes, int64_t(512) << 20);
}

TEST(Muon, NeedsMatrices) {
  const auto backend = make_reference_backend();
  const std::vector<ParamSpec> none{
      {.name = "v", .shape = {3}, .init = Init::zeros(), .group = Group::vector}};
  EXPECT_EQ(
      message_of([&] { Update u(*backend, DType::f32, {.optimizer = OptimizerKind::muon}, none); }),
      "[--optimizer] Muon updates weight matrices, and this run trains none; choose adamw");
}

}  // namespace
}  // namespace hearth
