// Muon on the card: its kernels and batched products against the reference in double over odd
// shapes, whole steps against the CPU, and the same bits in every run, with and without graphs.
#include <fmt/format.h>

#include <map>
#include <random>

#include "cpu/backend.h"
#include "gpu/cuda_case.h"
#include "optim/update.h"
#include "unit/cpu_case.h"

namespace hearth {
namespace {

using cpu_test::expect_close;
using cpu_test::random;
using cpu_test::same_bytes;
using reference::Array;
using test::card;

constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16};

double tolerance_of(DType d) { return d == DType::f32 ? 2e-5 : d == DType::f16 ? 2e-3 : 8e-3; }

// A tensor of the card with the contents of one of the host.
class OnCard {
 public:
  explicit OnCard(const Array& a) : OnCard(Tensor(a).shape, Tensor(a).dtype) {
    card().upload(t_.data, Tensor(a).data, t_.bytes());
  }
  OnCard(Shape s, DType d) : memory_(card(), s.numel() * size_of(d), "a tensor") {
    t_ = {memory_.data(), s, d};
    const std::vector<char> nan(size_t(t_.bytes()), char(0xff));  // in every float type
    card().upload(t_.data, nan.data(), t_.bytes());
  }
  operator Tensor() const { return t_; }
  Array read() const {
    Array a(t_.shape, t_.dtype);
    card().download(Tensor(a).data, t_.data, t_.bytes());
    return a;
  }

 private:
  Buffer memory_;
  Tensor t_;
};

const Kernels& kernels() { return card().kernels(); }
Stream& stream() { return card().stream(); }
const Kernels& oracle() { return reference_kernels(); }
Stream& host() { return Array::stream(); }

constexpr std::pair<int64_t, int64_t> matrix_shapes[] = {
    {1, 1},   {1, 7},   {7, 1},   {3, 5},     {8, 8},     {13, 129},  {129, 13}, {16, 24},
    {64, 64}, {100, 8}, {8, 100}, {257, 511}, {511, 257}, {768, 320}, {40, 1000}};

Array positive(Shape s) {
  Array a = Array::random(s);
  for (double& v : a) v = 0.01 + std::abs(v);
  return a.as(DType::f32);
}

TEST(CudaMuon, UnitMatrix) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const int64_t n : {1, 2, 5}) {
        SCOPED_TRACE(fmt::format("{} {} of {}x{}", to_string(d), n, R, C));
        const Array x = random({n, R, C}, d, 3), squares = positive({n, row_parts});
        Array want({n, R, C});
        oracle().unit_matrix(host(), {.y = want, .x = x, .squares = squares});
        const OnCard from(x), y({n, R, C}, d), near_squares(squares), same(x);
        kernels().unit_matrix(stream(), {.y = y, .x = from, .squares = near_squares});
        const Array first = y.read();
        expect_close(first, want, tolerance_of(d));
        kernels().unit_matrix(stream(), {.y = same, .x = same, .squares = near_squares});
        EXPECT_TRUE(same_bytes(same.read(), first));
      }
  // A matrix of zeros stays one.
  const OnCard zeros(Array({1, 3, 5}).as(DType::bf16)), none(Array({1, row_parts}).as(DType::f32));
  kernels().unit_matrix(stream(), {.y = zeros, .x = zeros, .squares = none});
  EXPECT_TRUE(same_bytes(zeros.read(), Array({1, 3, 5}).as(DType::bf16)));
}

struct Neurons {
  int64_t n, R, C;
  DType d;
  float skip;
};

void expect_factors(const Neurons& z) {
  SCOPED_TRACE(fmt::format("{} {} of {}x{} skip {}", to_string(z.d), z.n, z.R, z.C, z.skip));
  const int64_t each = std::max(z.R, z.C);
  std::vector<int64_t> begin;  // backwards, with gaps of 3
  for (int64_t i = 0; i < z.n; ++i) begin.push_back((z.n - 1 - i) * (each + 3) + 1);
  const Pieces pieces{begin.data(), z.n, each};
  const Array x = random({z.n, z.R, z.C}, z.d, 0.2), moment = positive({z.n * (each + 3) + 1});
  const Array gate = Array::of(UpdateState{.skip = z.skip});
  Array want({z.n, each}), want_moment = moment.as(DType::f64);
  oracle().neuron_factors(
      host(), {.factors = want, .moment = want_moment, .x = x, .gate = gate, .pieces = pieces});
  const OnCard from(x), near_gate(gate), factors({z.n, each}, DType::f32);
  Array first;
  for (int run = 0; run < 2; ++run) {
    const OnCard kept(moment);
    kernels().neuron_factors(
        stream(),
        {.factors = factors, .moment = kept, .x = from, .gate = near_gate, .pieces = pieces});
    expect_close(factors.read(), want, 2e-5);
    expect_close(kept.read(), want_moment, 1e-6);
    EXPECT_TRUE(z.skip == 0 || same_bytes(kept.read(), moment));
    if (run == 0) first = factors.read();
    EXPECT_TRUE(same_bytes(factors.read(), first));
  }
}

TEST(CudaMuon, NeuronFactors) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const int64_t n : {1, 4})
        for (const float skip : {0.0f, 1.0f}) expect_factors({n, R, C, d, skip});
  expect_factors({300, 5, 3, DType::bf16, 0});  // more than one launch takes
  expect_factors({300, 4, 8, DType::f32, 0});
}

// With a factor for each row of the update, for each column of a wide one; d is that of the weight.
void expect_descent(const Neurons& z) {
  SCOPED_TRACE(fmt::format("{} {} of {}x{}", to_string(z.d), z.n, z.R, z.C));
  const int64_t size = z.R * z.C, gap = size % 4 ? 3 : 4, all = z.n * (size + gap) + 8;
  std::vector<int64_t> begin;  // backwards
  for (int64_t i = z.n; i-- > 0;) begin.push_back(i * (size + gap) + gap);
  const Array gate = Array::of(UpdateState{.good_steps = 1}), weight = random({all}, z.d);
  const Array scalars = Array::of(Scalars{.lr = 0.1f}), master = random({all}, DType::f32);
  const Array update = random({z.n, z.R, z.C}, z.d == DType::f32 ? DType::f32 : DType::bf16);
  const Array factors = random({z.n, std::max(z.R, z.C)}, DType::f32, 2);
  const OnCard near_gate(gate), near_scalars(scalars), near_update(update), near_factors(factors);
  for (const bool cautious : {false, true}) {
    Array want = weight.as(DType::f64), want_master = master.as(DType::f64);
    const OnCard got(weight), got_master(master);
    UpdateArgs args{.weight = want,
                    .master = want_master,
                    .grad = update,
                    .factors = factors,
                    .gate = gate,
                    .scalars = scalars,
                    .spec = {.rule = UpdateRule::descent,
                             .decay = 0.3f,
                             .rate = 2,
                             .scale = 3,
                             .cautious = cautious},
                    .pieces = {begin.data(), z.n, size}};
    oracle().update_weights(host(), args);
    args.weight = got, args.master = got_master, args.grad = near_update;
    args.factors = near_factors, args.gate = near_gate, args.scalars = near_scalars;
    kernels().update_weights(stream(), args);
    expect_close(got.read(), want, tolerance_of(z.d));
    expect_close(got_master.read(), want_master, 1e-6);
  }
}

// The momentum takes up the gradient, and the sums of squares are those of the rounded matrices.
void expect_nesterov(const Neurons& z) {
  SCOPED_TRACE(fmt::format("{} {} of {}x{}", to_string(z.d), z.n, z.R, z.C));
  const int64_t size = z.R * z.C, gap = size % 4 ? 3 : 4, all = z.n * (size + gap) + 8;
  std::vector<int64_t> begin;  // backwards
  for (int64_t i = z.n; i-- > 0;) begin.push_back(i * (size + gap) + gap);
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.momentum = 0.9f}), grad = random({all}, DType::f32);
  const Array momentum = random({all}, DType::f32);
  Array want({z.n, z.R, z.C}), want_momentum = momentum.as(DType::f64);
  UpdateArgs args{.weight = want,
                  .slots = {want_momentum},
                  .grad = grad,
                  .gate = gate,
                  .scalars = scalars,
                  .spec = {.rule = UpdateRule::nesterov},
                  .pieces = {begin.data(), z.n, size}};
  oracle().update_weights(host(), args);
  const OnCard near_gate(gate), near_scalars(scalars), near_grad(grad), got_momentum(momentum);
  const OnCard got({z.n, z.R, z.C}, z.d), squares({z.n, row_parts}, DType::f32);
  args.weight = got, args.squares = squares, args.slots[0] = got_momentum;
  args.grad = near_grad, args.gate = near_gate, args.scalars = near_scalars;
  kernels().update_weights(stream(), args);
  expect_close(got.read(), want, tolerance_of(z.d));
  expect_close(got_momentum.read(), want_momentum, 1e-6);
  const Array stored = got.read().as(DType::f64), parts = squares.read().as(DType::f64);
  for (int64_t i = 0; i < z.n; ++i) {
    double sum = 0, in_parts = 0;
    for (int64_t k = 0; k < size; ++k) sum += std::pow(stored[i * size + k], 2);
    for (int64_t p = 0; p < row_parts; ++p) in_parts += parts[i * row_parts + p];
    EXPECT_NEAR(in_parts, sum, 1e-5 * sum) << "matrix " << i;
  }
}

TEST(CudaMuon, NesterovSumsSquares) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const int64_t n : {1, 5}) expect_nesterov({n, R, C, d, 0});
  expect_nesterov({300, 5, 3, DType::bf16, 0});  // more than one launch takes
  expect_nesterov({12, 512, 768, DType::bf16, 0});
}

TEST(CudaMuon, DescentWithFactors) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const int64_t n : {1, 3}) expect_descent({n, R, C, d, 0});
  expect_descent({300, 5, 3, DType::bf16, 0});  // more than one launch takes
  expect_descent({300, 4, 8, DType::f32, 0});
}

struct Product {
  int64_t M, N, K;
};
constexpr Product products[] = {{1, 1, 1},      {3, 5, 7},    {8, 8, 8},
                                {17, 33, 9},    {64, 48, 80}, {70, 129, 31},
                                {128, 256, 64}, {5, 200, 67}, {96, 96, 384}};

void expect_product(const Product& z, int64_t batch, DType d, int layout, bool wide) {
  const bool ta = layout & 1, tb = layout & 2;
  const DType out = wide ? DType::f32 : d;
  const auto stored = [batch](int64_t rows, int64_t cols, bool turned) {
    return turned ? Shape{batch, cols, rows} : Shape{batch, rows, cols};
  };
  const Array a = random(stored(z.M, z.K, ta), d), b = random(stored(z.K, z.N, tb), d);
  const Array prior = random({batch, z.M, z.N}, out);
  const OnCard near_a(a), near_b(b), near_prior(prior);
  // One plan serves all factors.
  for (const auto& [alpha, beta] : {std::pair{1.0f, 1.0f}, {1.0f, 8.16f}, {15.9f, -22.5f}}) {
    SCOPED_TRACE(fmt::format("{} {} of {}x{}x{} layout {} alpha {} beta {} wide {}", to_string(d),
                             batch, z.M, z.N, z.K, layout, alpha, beta, wide));
    const GemmSpec spec{.ta = ta, .tb = tb, .alpha = alpha, .beta = beta, .batch = batch};
    Array want({batch, z.M, z.N});
    oracle().gemm(host(), {.c = want, .a = a, .b = b, .prior = prior, .spec = spec});
    const OnCard c({batch, z.M, z.N}, out), again({batch, z.M, z.N}, out);
    for (const Tensor to : {Tensor(c), Tensor(again)})
      kernels().gemm(stream(),
                     {.c = to, .a = near_a, .b = near_b, .prior = near_prior, .spec = spec});
    expect_close(c.read(), want, tolerance_of(out));
    EXPECT_TRUE(same_bytes(c.read(), again.read()));
    expect_close(near_prior.read(), prior.as(DType::f64), 0);  // only read
  }
}

TEST(CudaGemm, BatchWithAFactorOnThePrior) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const Product& z : products)
      for (const int layout : {0, 1, 2, 3})
        for (const int64_t batch : {1, 3}) expect_product(z, batch, d, layout, false);
  expect_product({64, 48, 80}, 4, DType::bf16, 2, true);
  expect_product({64, 64, 64}, 48, DType::bf16, 0, false);
}

// Without a prior, and the product of a matrix with itself, as Muon has it.
TEST(CudaGemm, BatchOfSymmetricProducts) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : {DType::f32, DType::bf16})
    for (const bool tall : {false, true}) {
      const int64_t batch = 5, R = tall ? 96 : 40, C = tall ? 40 : 96, r = 40;
      SCOPED_TRACE(fmt::format("{} tall {}", to_string(d), tall));
      const GemmSpec spec{.ta = tall, .tb = !tall, .batch = batch, .symmetric = true};
      const Array x = random({batch, R, C}, d);
      Array want({batch, r, r});
      oracle().gemm(host(), {.c = want, .a = x, .b = x, .spec = spec});
      const OnCard from(x), c({batch, r, r}, d);
      kernels().gemm(stream(), {.c = c, .a = from, .b = from, .spec = spec});
      expect_close(c.read(), want, tolerance_of(d));
    }
}

struct Range {
  int64_t count, size, gap;  // of pieces that begin `gap` after the end of the last one
};

void expect_pieces(const Range& z, DType d) {
  SCOPED_TRACE(fmt::format("{} {} pieces of {} gap {}", to_string(d), z.count, z.size, z.gap));
  std::vector<int64_t> begin;  // backwards
  for (int64_t i = z.count; i-- > 0;) begin.push_back(i * (z.size + z.gap) + z.gap);
  const Pieces pieces{begin.data(), z.count, z.size};
  const int64_t all = z.count * (z.size + z.gap) + 8;
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.lr = 0.1f, .momentum = 0.9f});
  const OnCard near_gate(gate), near_scalars(scalars);
  const Array grad = random({all}, DType::f32), momentum = random({all}, DType::f32);
  const RuleSpec nesterov{.rule = UpdateRule::nesterov};
  Array want({z.count, z.size}), want_momentum = momentum.as(DType::f64);
  oracle().update_weights(host(), UpdateArgs{.weight = want,
                                             .slots = {want_momentum},
                                             .grad = grad,
                                             .gate = gate,
                                             .scalars = scalars,
                                             .spec = nesterov,
                                             .pieces = pieces});
  const OnCard out({z.count, z.size}, d), near_momentum(momentum), near_grad(grad);
  kernels().update_weights(stream(), UpdateArgs{.weight = out,
                                                .slots = {near_momentum},
                                                .grad = near_grad,
                                                .gate = near_gate,
                                                .scalars = near_scalars,
                                                .spec = nesterov,
                                                .pieces = pieces});
  expect_close(out.read(), want, tolerance_of(d));
  expect_close(near_momentum.read(), want_momentum, 1e-6);

  const DType of_update = d == DType::f32 ? DType::f32 : DType::bf16;
  const Array update = random({z.count, z.size}, of_update), weight = random({all}, d);
  const Array master = random({all}, DType::f32);
  const RuleSpec descent{
      .rule = UpdateRule::descent, .decay = 0.3f, .rate = 2, .scale = 3, .cautious = true};
  Array want_weight = weight.as(DType::f64), want_master = master.as(DType::f64);
  const UpdateArgs on_host{.weight = want_weight,
                           .master = want_master,
                           .grad = update,
                           .gate = gate,
                           .scalars = scalars,
                           .spec = descent,
                           .pieces = pieces};
  oracle().update_weights(host(), on_host);
  const OnCard near_update(update), near_weight(weight), near_master(master);
  const UpdateArgs on_card{.weight = near_weight,
                           .master = near_master,
                           .grad = near_update,
                           .gate = near_gate,
                           .scalars = near_scalars,
                           .spec = descent,
                           .pieces = pieces};
  kernels().update_weights(stream(), on_card);
  expect_close(near_weight.read(), want_weight, tolerance_of(d));
  expect_close(near_master.read(), want_master, 1e-6);
}

TEST(CudaMuon, UpdatesPiecesAndNothingElse) {
  HEARTH_NEEDS_A_CARD();
  for (const DType d : all_dtypes)
    for (const Range& z : {Range{1, 1, 0},
                           {3, 77, 1},
                           {4, 64, 64},
                           {5, 4096, 4},
                           {5, 4096, 2},
                           {2, 100'003, 5},
                           {300, 12, 4},
                           {300, 7, 0}})
      expect_pieces(z, d);
}

std::vector<ParamSpec> layers() {
  std::vector<ParamSpec> all;
  const auto add = [&](const std::string& name, Shape s, std::vector<int64_t> stack = {}) {
    all.push_back({.name = name, .shape = s, .init = Init::uniform(1), .stack = std::move(stack)});
  };
  for (int i = 0; i < 3; ++i) {
    const std::string layer = std::to_string(i);
    add("qkv" + layer, {96 + 48 + 48, 96}, {96, 48, 48});
    add("out" + layer, {96, 96});
    add("up" + layer, {2 * 200, 96}, {200, 200});
    add("down" + layer, {96, 200});
    add("odd" + layer, {7, 13});
  }
  all.push_back(
      {.name = "e", .shape = {33, 96}, .init = Init::uniform(1), .group = Group::embedding});
  all.push_back({.name = "v", .shape = {131}, .init = Init::uniform(1), .group = Group::vector});
  return all;
}

// Three steps on a backend.
struct Steps {
  Steps(Backend& b, DType dtype, OptimizerKind kind)
      : store(b, layers(), dtype), memory(b, &store) {
    store.initialise(3);
    start = weights();
    Tape t(dtype);
    record_update(t, store, t.result("loss", {1}, t.acc()), {.optimizer = kind, .decay = 0.3f});
    Exec exec(std::move(t), memory);
    for (int step = 0; step < 3; ++step) {
      for (const ParamSpec& p : store.specs()) {
        std::vector<float> g(size_t(p.shape.numel()));
        draw(g, Init::normal(1), uint64_t(100 + step), p.name);
        store.set(Part::grad, p.name, g);
      }
      const Scalars s{.lr = 0.05f, .clip = 100, .momentum = 0.9f};
      memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
      exec.run();
    }
  }
  using Weights = std::map<std::string, std::vector<float>>;
  Weights weights() {
    Weights all;
    for (const ParamSpec& p : store.specs())
      all[p.name] = store.values(store.has_master() ? Part::master : Part::weight, p.name);
    return all;
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    std::vector<Part> parts{Part::weight};
    for (size_t i = 0; i < store.slots().size(); ++i) parts.push_back(slot_part(i));
    for (const Part p : parts) {
      const Tensor t = store.flat(p);
      std::vector<std::byte> part(size_t(t.bytes()));
      store.backend().download(part.data(), t.data, t.bytes());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  ParamStore store;
  Memory memory;
  Weights start;
};

// Relative to how far the weights have moved.
void expect_same_way(Steps& got, Steps& want, double limit) {
  const Steps::Weights a = got.weights(), b = want.weights();
  for (const auto& [name, w] : b) {
    double difference = 0, moved = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      difference += std::pow(double(a.at(name)[i]) - double(w[i]), 2);
      moved += std::pow(double(w[i]) - double(want.start.at(name)[i]), 2);
    }
    EXPECT_LT(std::sqrt(difference), limit * std::sqrt(moved)) << name;
  }
}

TEST(CudaMuon, StepsAreThoseOfTheReferenceAndTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend(), cpu = make_cpu_backend(2);
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
    Steps want(*reference, DType::f64, kind);
    // An iteration subtracts terms that are up to 22 times as large as its result.
    for (const auto& [dtype, limit] :
         {std::pair{DType::f32, 1e-3}, {DType::bf16, 0.2}, {DType::f16, 0.2}}) {
      SCOPED_TRACE(fmt::format("{} {}", int(kind), to_string(dtype)));
      Steps got(card(), dtype, kind), own(test::own_products_card(), dtype, kind);
      expect_same_way(got, want, limit);
      expect_same_way(own, want, limit);
      if (dtype == DType::f16) continue;  // not a type of the CPU
      Steps beside(*cpu, dtype, kind);
      expect_same_way(got, beside, limit);
    }
  }
}

TEST(CudaMuon, SameBitsInEveryRunWithAndWithoutGraphs) {
  HEARTH_NEEDS_A_CARD();
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon})
    for (const DType dtype : all_dtypes) {
      SCOPED_TRACE(fmt::format("{} {}", int(kind), to_string(dtype)));
      Steps first(card(), dtype, kind), again(card(), dtype, kind);
      Steps eager(card(true, false), dtype, kind);
      EXPECT_TRUE(first.bytes() == again.bytes());
      EXPECT_TRUE(first.bytes() == eager.bytes());
      Steps own(test::own_products_card(), dtype, kind),
          same(test::own_products_card(), dtype, kind);
      EXPECT_TRUE(own.bytes() == same.bytes());
    }
}

}  // namespace
}  // namespace hearth
