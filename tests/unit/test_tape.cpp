// The tape: recording, views, gradients, pruning, joining of norms and products, and running it.
#include <gtest/gtest.h>

#include "core/join.h"
#include "cpu/reference/reference.h"
#include "op_cases.h"
#include "ops/record.h"
#include "sys/error.h"
#include "tape_case.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(Tape, NamesParametersByScope) {
  Tape t;
  Var a, b;
  {
    const auto outer = t.scope("blocks.0");
    const auto inner = t.scope("attn");
    EXPECT_EQ(t.where(), "blocks.0.attn");
    a = t.param("weight", {2, 3}, Init::ones(), Group::matrix);
  }
  EXPECT_EQ(t.where(), "");
  b = t.param("blocks.0.attn.weight", {2, 3}, Init::ones(), Group::matrix);
  EXPECT_EQ(a, b);
  EXPECT_EQ(t.params.size(), 1u);
  EXPECT_EQ(t.params[0].name, "blocks.0.attn.weight");
  EXPECT_EQ(t.find("blocks.0.attn.weight"), a);
  EXPECT_FALSE(t.find("weight"));
  EXPECT_TRUE(t.needs_grad(a));
  EXPECT_NE(t.salt("x"), t.salt("y"));
  const uint32_t at_root = t.salt("x");
  const auto scope = t.scope("other");
  EXPECT_NE(t.salt("x"), at_root);
}

TEST(Tape, PrefixesInputsWithItsProgram) {
  Tape t(DType::f32, "train");
  t.input("tokens", {1, 2}, DType::i32);
  t.result("loss", {1}, DType::f32);
  t.state("cache", {4}, DType::f32);
  EXPECT_TRUE(t.find("train.tokens"));
  EXPECT_TRUE(t.find("train.loss"));
  EXPECT_TRUE(t.find("cache"));
}

TEST(Tape, RefusesWhatDoesNotFit) {
  Tape t;
  const auto scope = t.scope("here");
  const Var x = t.input("x", {2, 3, 8}, DType::f32);
  t.param("w", {4, 8}, Init::ones(), Group::matrix);
  EXPECT_EQ(message_of([&] {
              t.param("w", {8, 4}, Init::ones(), Group::matrix);
            }),
            "[here.w] expected f32 (4, 8), as recorded before, got f32 (8, 4)");
  EXPECT_EQ(message_of([&] {
              t.input("x", {2, 3, 8}, DType::i32);
            }),
            "[main.x] expected f32 (2, 3, 8), as recorded before, got i32 (2, 3, 8)");
  EXPECT_EQ(message_of([&] {
              linear(t, x, t.param("v", {4, 7}, {}, Group::matrix));
            }),
            "[here] expected x of width 7 for weights (4, 7), got (2, 3, 8)");
  EXPECT_EQ(message_of([&] {
              t.view(x, {2, 25});
            }),
            "[here] expected a view of 48 elements, got (2, 25)");
  EXPECT_EQ(message_of([&] { attention(t, packed(x, packed_qkv(2, 1, 2, 3)), {}, {}); }),
            "[here] expected 2 heads of 2 elements in tokens of 9, got (2, 3, 8)");
  EXPECT_EQ(message_of([&] { attention(t, packed(x, packed_qkv(2, 3, 1, 1)), {}, {}); }),
            "[here] expected kv_heads to divide 2 heads, got 3");
  EXPECT_EQ(
      message_of([&] {
        attention(t, {{x, {2, 2, 0, 8, 2}}, {x, {1, 3, 4, 8, 3}}, {x, {1, 1, 7, 8, 1}}}, {}, {});
      }),
      "[here] expected heads of q and k of one width, got 2 and 3");
  EXPECT_EQ(
      message_of([&] {
        attention(t, {{x, {2, 2, 0, 8, 2}}, {x, {1, 2, 4, 8, 2}}, {x, {2, 1, 6, 8, 1}}}, {}, {});
      }),
      "[here] expected as many heads of v as of k, got 2 and 1");
  EXPECT_EQ(message_of([&] { dropout(t, x, 1, "x"); }),
            "[here] expected a dropout in [0, 1), got 1");
  EXPECT_EQ(message_of([&] {
              t.constant("c", {3}, std::vector<float>{1, 2});
            }),
            "[c] expected 3 numbers, got 2");
}

// The reference without one of its kernels.
class Lacking : public Backend {
 public:
  Lacking() : table_(reference_kernels()) { table_.name = "half", table_.norm = nullptr; }
  const Kernels& kernels() const override { return table_; }
  Stream& stream() override { return whole_->stream(); }
  std::string describe() const override { return "half"; }
  std::byte* allocate(int64_t n, const std::string& what) override {
    return whole_->allocate(n, what);
  }
  void release(std::byte* p, int64_t n) override { whole_->release(p, n); }
  void upload(std::byte* d, const void* h, int64_t n) override { whole_->upload(d, h, n); }
  void download(void* h, const std::byte* d, int64_t n) override { whole_->download(h, d, n); }
  void synchronize() override {}
  int64_t free_bytes() const override { return whole_->free_bytes(); }

 private:
  std::unique_ptr<Backend> whole_ = make_reference_backend();
  Kernels table_;
};

TEST(Exec, NamesTheOpABackendLacks) {
  Lacking backend;
  Memory memory(backend, nullptr);
  Tape t;
  const Var x = t.input("x", {2, 8}, DType::f32);
  const auto scope = t.scope("blocks.3.mlp");
  const Var y = norm(t, x, {}, {}, {}, {}).y;
  t.push(copy_op(), {y}, {t.result("y", {2, 8}, DType::f32)});
  EXPECT_EQ(message_of([&] { Exec(std::move(t), memory); }),
            "[blocks.3.mlp] expected a backend with rms_norm, got half, which has none");
}

TEST(Exec, ChecksTheStoreAgainstTheRecording) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, {{"w", {4, 8}, {}, Group::matrix}}, DType::f32);
  Memory memory(*backend, &store);
  Tape t;
  t.param("w", {8, 4}, {}, Group::matrix);
  EXPECT_EQ(message_of([&] { Exec(std::move(t), memory); }),
            "[w] expected f32 (8, 4) as recorded, got f32 (4, 8) in the store");
}

TEST(Exec, ProgramsShareOneArena) {
  const auto backend = make_reference_backend();
  Memory memory(*backend, nullptr);
  const auto program = [&](const char* name, int64_t n) {
    Tape t(DType::f32, name);
    const Var x = t.input("x", {n}, DType::f32);
    const Var y = add(t, x, x, 2);  // a temporary
    t.push(copy_op(), {y}, {t.result("y", {n}, DType::f32)});
    return std::make_unique<Exec>(std::move(t), memory);
  };
  const auto small = program("a", 10);
  const std::vector<float> ones(10, 1);
  memory.state.write<float>("a.x", ones);
  small->run();
  const int64_t before = memory.arena_bytes();
  const auto large = program("b", 1000);  // the arena moves under the first program
  EXPECT_GT(memory.arena_bytes(), before);
  large->run();
  std::vector<float> y(10);
  small->run();
  memory.state.read<float>("a.y", y);
  EXPECT_EQ(y, std::vector<float>(10, 3));
}

TEST(Tape, ViewsShareMemoryAndPassGradients) {
  const auto backend = make_reference_backend();
  Tape t(DType::f64);
  const Var x = t.input("x", {2, 6}, DType::f64);
  t[x].needs_grad = true;
  const Var h = add(t, x, x, 1);
  const Var v = t.view(h, {3, 4});
  EXPECT_EQ(t.view(h, {2, 6}), h);
  EXPECT_EQ(t[v].storage, h.id);
  const Var y = add(t, v, v, 1);
  const Var part = t.rows(y, 1, 2);  // rows 1 and 2 of (3, 4)
  EXPECT_EQ(t[part].offset, 4 * 8);
  t.push(copy_op(), {part}, {t.result("part", {2, 4}, DType::f64)});
  t.add_grad(y, t.input("dy", {3, 4}, DType::f64));
  differentiate(t);
  t.push(copy_op(), {t.grad(x)}, {t.result("dx", {2, 6}, DType::f64)});
  Memory memory(*backend, nullptr);
  Exec exec(std::move(t), memory);
  std::vector<double> in(12), dy(12), out(8), dx(12);
  for (size_t i = 0; i < 12; ++i) in[i] = double(i), dy[i] = double(i * i);
  memory.state.write<double>("main.x", in);
  memory.state.write<double>("main.dy", dy);
  exec.run();
  memory.state.read<double>("main.part", out);
  memory.state.read<double>("main.dx", dx);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], double(4 * (i + 4)));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(dx[i], double(4 * i * i));
}

TEST(Tape, PruneDropsWhatNobodyReads) {
  Tape t;
  const Var x = t.input("x", {4}, DType::f32);
  const Var used = add(t, x, x, 1), unused = add(t, x, x, 2);
  add(t, unused, used, 1);
  t.push(copy_op(), {used}, {t.result("y", {4}, DType::f32)});
  prune(t);
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[0].out[0], used);
  EXPECT_STREQ(t.nodes[1].op->name, "copy");
}

// A backend that norms the rows of a product itself, up to four of them.
const Kernels& joining_kernels() {
  static const Kernels table = [] {
    Kernels k{};
    k.norm_gemm = [](Stream&, const NormGemmArgs&) {};
    k.norm_gemm_takes = [](Stream&, int64_t rows, int64_t, int64_t columns, DType) {
      return rows <= 4 && columns <= 6;
    };
    return k;
  }();
  return table;
}

// The names of what is left of a norm and the two products of it, joined where they can be.
std::vector<std::string> joined_ops(int64_t rows, bool read_elsewhere, bool trains = false) {
  Tape t;
  t.trains = trains;
  const Var x = t.input("x", {1, rows, 8}, DType::f32);
  const Var gain = t.param("gain", {8}, Init::ones(), Group::vector);
  const Var y = norm(t, x, {}, gain, {}, {}).y;
  const Var w = t.param("w", {6, 8}, Init::normal(1), Group::matrix);
  const Var a = linear(t, y, w, {}), b = linear(t, t.view(y, {rows, 8}), w, {});
  std::vector<Var> results = {a, b};
  if (read_elsewhere) results.push_back(y);
  for (Var v : results)
    t.push(copy_op(), {v}, {t.result("r" + std::to_string(v.id), t.shape(v), DType::f32)});
  Stream nowhere;
  join_norms(t, joining_kernels(), nowhere);
  prune(t);
  std::vector<std::string> names;
  for (const Node& n : t.nodes) {
    names.push_back(n.op->name);
    // What may be quantised is the weight, joined or not.
    if (n.op->quantisable >= 0) { EXPECT_EQ(n.in[size_t(n.op->quantisable)], w); }
    const bool product = names.back() == "linear" || names.back() == "norm_linear";
    EXPECT_EQ(n.op->quantisable >= 0, product && !trains);
  }
  return names;
}

TEST(Join, ProductsNormTheirOwnRows) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(joined_ops(4, false), (Names{"norm_linear", "norm_linear", "copy", "copy"}));
  EXPECT_EQ(joined_ops(5, false), (Names{"rms_norm", "linear", "view", "linear", "copy", "copy"}));
  EXPECT_EQ(joined_ops(4, true),
            (Names{"rms_norm", "linear", "view", "linear", "copy", "copy", "copy"}));
  EXPECT_EQ(joined_ops(4, false, true),
            (Names{"rms_norm", "linear", "view", "linear", "copy", "copy"}));
}

// An MLP with a GLU and its gradients.
struct GatedMlp {
  // `apart`: something else reads the gradient of the GLU.
  explicit GatedMlp(bool apart) {
    const Var x = t.input("x", {5, 8}, DType::f32);
    const Var up = t.param("up", {12, 8}, Init::normal(1), Group::matrix);
    const Var down = t.param("down", {8, 6}, Init::normal(1), Group::matrix);
    const Var y = activation(t, linear(t, x, up, {}), Act::swiglu);
    const Var z = linear(t, y, down, {});
    t.push(copy_op(), {z}, {t.result("z", {5, 8}, DType::f32)});
    t.add_grad(z, x);
    differentiate(t);
    if (apart) t.push(copy_op(), {t.grad(y)}, {t.result("dy", {5, 6}, DType::f32)});
  }
  std::vector<std::string> names() {
    join_gates(t);
    prune(t);
    std::vector<std::string> r;
    for (const Node& n : t.nodes) r.push_back(n.op->name);
    return r;
  }
  Tape t;
};

TEST(Join, GatesAreComputedWithTheirProducts) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(GatedMlp(false).names(),
            (Names{"linear_glu", "linear", "copy", "gemm", "linear_glu_bwd", "gemm"}));
  EXPECT_EQ(GatedMlp(true).names(), (Names{"linear_glu", "linear", "copy", "gemm", "gemm",
                                           "activation_bwd", "gemm", "copy"}));
}

// Two layers with biases and a norm between them, and their gradients.
struct BiasedMlp {
  // `shared`: the first and the last layer have the same bias, so the first adds to its gradient.
  explicit BiasedMlp(bool accumulate, bool shared = false) {
    t.accumulate = accumulate;
    const auto vector = [&](const char* name, int64_t n) {
      return t.param(name, {n}, Init::normal(1), Group::vector);
    };
    const Var x = t.input("x", {5, 8}, DType::f32);
    const Var in = t.param("in", {8, 8}, Init::normal(1), Group::matrix);
    const Var up = t.param("up", {12, 8}, Init::normal(1), Group::matrix);
    const Var down = t.param("down", {8, 12}, Init::normal(1), Group::matrix);
    const Var b = vector("b", 8), c = shared ? b : vector("c", 8);
    const Var h = linear(t, x, in, {.bias = b});
    const Var n = norm(t, h, {}, vector("g", 8), {}, {.kind = Norm::rms}).y;
    const Var y = linear(t, n, up, {.bias = vector("u", 12), .act = Act::gelu_tanh});
    const Var z = linear(t, y, down, {.bias = c});
    t.push(copy_op(), {z}, {t.result("z", {5, 8}, DType::f32)});
    t.add_grad(z, x);
    differentiate(t);
  }
  // What the gradients run, and which of it also sums.
  std::vector<std::string> names() {
    join_sums(t);
    std::vector<std::string> r;
    for (const Node& n : t.nodes)
      if (n.op->launch)
        r.push_back(n.op->name + std::string(n.op->sums.out >= 0 && n.out[size_t(n.op->sums.out)]
                                                 ? " and sums"
                                                 : ""));
    return r;
  }
  Tape t;
};

TEST(Join, SumsAreComputedWithWhatTheySum) {
  using Names = std::vector<std::string>;
  const Names forward{"linear", "rms_norm", "linear", "linear", "copy"};
  const auto gradients = [&](BiasedMlp mlp) {
    Names all = mlp.names();
    for (size_t i = 0; i < forward.size(); ++i) EXPECT_EQ(all.at(i), forward[i]);
    return Names(all.begin() + int64_t(forward.size()), all.end());
  };
  // The last bias sums an input of the program; the others what a kernel before them wrote.
  const Names joined{"gemm", "column_sum",        "gemm and sums", "gemm",
                     "gemm", "norm_bwd and sums", "gemm"};
  EXPECT_EQ(gradients(BiasedMlp(false)), joined);
  EXPECT_EQ(gradients(BiasedMlp(true)), joined);
  EXPECT_EQ(gradients(BiasedMlp(false, true)), joined);
}

// Two layers share a bias. The sum that is recorded second adds to the first, so it may not move to
// the norm's gradient that runs before the other's.
TEST(Join, SumsKeepTheirOrder) {
  Tape t;
  const Var x = t.input("x", {5, 8}, DType::f32);
  const Var b = t.param("b", {8}, Init::normal(1), Group::vector);
  const auto layer = [&](const char* name) {
    return linear(t, x, t.param(name, {8, 8}, Init::normal(1), Group::matrix), {.bias = b});
  };
  const auto normed = [&](Var y) { return norm(t, y, {}, {}, {}, {.kind = Norm::rms}).y; };
  const Var first = layer("v"), second = layer("w");
  const Var above = normed(second), beside = normed(first), z = add(t, above, beside, 1);
  t.push(copy_op(), {z}, {t.result("z", {5, 8}, DType::f32)});
  t.add_grad(z, x);
  differentiate(t);
  join_sums(t);
  std::vector<std::string> names;
  for (const Node& n : t.nodes)
    if (std::string_view(n.op->name) == "norm_bwd" || n.op->sums_columns)
      names.push_back(n.op->sums_columns ? "sum" : n.out[4] ? "norm with sum" : "norm");
  EXPECT_EQ(names, (std::vector<std::string>{"norm", "norm with sum", "sum"}));
}

TEST(Tape, AccumulatingTapesAddToWhatIsThere) {
  for (bool accumulate : {false, true}) {
    Tape t;
    t.accumulate = accumulate;
    const Var w = t.param("w", {4, 4}, {}, Group::matrix);
    const Tape::Sink first = t.grad_sink(w), second = t.grad_sink(w);
    EXPECT_EQ(bool(first.prior), accumulate);
    EXPECT_EQ(second.prior, first.out);
    EXPECT_EQ(first.out, second.out);
    EXPECT_EQ(t[first.out].name, "w.grad");
  }
}

}  // namespace
}  // namespace hearth
