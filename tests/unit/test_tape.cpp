// The tape and what is made of it: recording, pruning, sharing of memory, plans, second makings.
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "cpu/reference.h"
#include "op_cases.h"
#include "ops/record.h"
#include "train/programs.h"

namespace hearth {
namespace {

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

Op copy_op() {
  return kernel_op<&Kernels::copy>("copy",
                                   [](auto* f, Stream& s, In in, Out out) { f(s, out[0], in[0]); });
}

// An op that reads and does nothing: keeps its inputs alive up to where it stands.
void read_all(Tape& t, std::vector<Var> in) {
  Op op;
  op.name = "read";
  op.launch = [](const Kernels&, Stream&, In, Out) {};
  t.push(std::move(op), std::move(in), {t.result("read", {1}, DType::f32)});
}

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
  EXPECT_EQ(message_of([&] { attention(t, x, {}, {.heads = 2, .kv_heads = 1, .head_dim = 2}); }),
            "[here] expected qkv (B, T, 4, 2), got (2, 3, 8)");
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
    k.norm_gemm = [](Stream&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                     const NormSpec&, const GemmSpec&) {};
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

// --- random programs ---

enum class Keep { all, some };

// Ops over (2, 3, 8) values that read random earlier ones, with gradients of everything. The same
// seed records the same forward pass, whatever it keeps for the backward pass.
Tape random_tape(uint32_t seed, Keep keep = Keep::some) {
  std::mt19937 bits(seed);
  const auto pick = [&](size_t n) { return size_t(bits() % n); };
  const int64_t C = 8;
  const Shape shape{2, 3, C};
  Tape t(DType::f32, "random");
  std::vector<Var> all;
  for (int i = 0; i < 2; ++i) {
    const Var leaf = t.input("x" + std::to_string(i), shape, DType::f32);
    t[leaf].needs_grad = true;
    all.push_back(add(t, leaf, leaf, 0.5f));
  }
  const auto vector = [&](const char* name) {
    return bits() % 2 ? t.param(name, {C}, Init::ones(), Group::vector) : Var{};
  };
  const auto step = [&](int i) {
    const auto scope = t.scope("op" + std::to_string(i));
    const Var x = all[pick(all.size())], y = all[pick(all.size())];
    const auto weight = [&] { return t.param("w", {C, C}, Init::uniform(0.5f), Group::matrix); };
    switch (bits() % 8) {
      case 0:
        return add(t, x, y, bits() % 2 ? 1 : 0.5f);
      case 1:
        return activation(t, x, Act::gelu_tanh);
      case 2:
        return norm(t, x, {}, vector("g"), {}, {.kind = Norm::rms}).y;
      case 3: {
        const Normed n = norm(t, x, y, vector("g"), vector("b"), {.kind = Norm::layer});
        return bits() % 2 ? n.y : n.sum;
      }
      case 4:
        return linear(t, x, weight(), {.residual = y, .scale = 0.5f});
      case 5:
        return linear(t, x, weight(), {.bias = vector("b"), .act = Act::gelu_erf});
      case 6:
        return dropout(t, x, 0.25f, "d");
      default:
        return t.view(t.view(x, {6, C}), shape);
    }
  };
  for (int i = 0, length = 3 + int(seed % 17); i < length; ++i) {
    if (bits() % 4 == 0) {
      all.push_back(t.checkpoint([&] {
        const size_t outside = all.size();
        for (int k = 0; k < 3; ++k) all.push_back(step(100 * i + k));
        const Var last = all.back();
        all.resize(outside);
        return last;
      }));
    } else {
      all.push_back(step(i));
    }
    if (bits() % 4 == 0 && t[all.back()].role == Role::temp) t.drop(all.back());
  }
  if (keep == Keep::all)
    for (Value& v : t.values) v.dropped = false;
  const Var y = all.back();
  t.add_grad(y, t.input("dy", shape, DType::f32));
  t.push(copy_op(), {y}, {t.result("y", shape, DType::f32)});
  differentiate(t);
  for (int i = 0; i < 2; ++i)
    if (const Var d = t.grad(t.find("random.x" + std::to_string(i))))
      t.push(copy_op(), {d}, {t.result("dx" + std::to_string(i), shape, DType::f32)});
  return t;
}

void forget_inplace(Tape& t) {
  for (Node& n : t.nodes) {
    Op op = *n.op;
    op.inplace.clear();
    n.op = std::make_shared<const Op>(std::move(op));
  }
}

void keep_everything(Tape& t) {
  std::vector<Var> all;
  for (int i = 0; i < int(t.values.size()); ++i)
    if (t.values[size_t(i)].role == Role::temp && t.values[size_t(i)].storage == i)
      all.push_back({i});
  read_all(t, all);
}

// The bytes of every result and gradient, after running twice: the second time over an arena full
// of NaNs, so that nothing can be read that this run has not written.
std::vector<float> results(Backend& b, Tape t) {
  ParamStore params(b, t.params, DType::f32);
  params.initialise(3);
  Memory memory(b, &params);
  Exec exec(std::move(t), memory);
  for (const char* name : {"x0", "x1", "dy"}) {
    std::vector<float> x(48);
    draw(x, Init::normal(1), 1, name);
    memory.state.write<float>(std::string("random.") + name, x);
  }
  if (memory.state.has("scalars")) {
    Scalars s;
    s.seed_lo = 5;
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
  }
  exec.run();
  const std::vector<unsigned char> poison(size_t(memory.arena_bytes()), 0xff);
  b.upload(memory.arena(), poison.data(), memory.arena_bytes());
  exec.run();
  std::vector<float> all;
  for (const char* name : {"y", "dx0", "dx1"}) {
    if (!memory.state.has(std::string("random.") + name)) continue;
    std::vector<float> v(48);
    memory.state.read<float>(std::string("random.") + name, v);
    all.insert(all.end(), v.begin(), v.end());
  }
  if (params.made(Part::grad))
    for (const ParamSpec& p : params.specs())
      for (float g : params.values(Part::grad, p.name)) all.push_back(g);
  return all;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
}

TEST(Alias, NeverTakesMemoryStillNeeded) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(1);
  int taken = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Tape shared = random_tape(seed), apart = shared;
    Tape counted = shared;
    prune(counted), alias(counted);
    for (size_t i = 0; i < counted.values.size(); ++i)
      taken += counted.values[i].storage != shared.values[i].storage;
    forget_inplace(apart);
    keep_everything(apart);
    expect_same_bits(results(*reference, shared), results(*reference, apart));
    expect_same_bits(results(*fast, shared), results(*fast, apart));
  }
  EXPECT_GT(taken, 500) << "nothing was shared: the test is void";
}

// A product may not write over one of its own operands, whatever else that operand is.
TEST(Alias, KeepsAnOperandThatIsAlsoTheResidual) {
  Tape t;
  const Var x = t.input("x", {4, 8}, DType::f32), h = add(t, x, x, 1);
  const Var w = t.param("w", {8, 8}, Init::ones(), Group::matrix);
  const Var y = linear(t, h, w, {.residual = h});
  t.push(copy_op(), {y}, {t.result("y", {4, 8}, DType::f32)});
  prune(t);
  alias(t);
  EXPECT_NE(t[y].storage, t[h].storage);
}

TEST(Checkpoint, SecondMakingsGiveTheSameBits) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(1);
  size_t more = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const Tape kept = random_tape(seed, Keep::all), dropped = random_tape(seed);
    more += dropped.nodes.size() - kept.nodes.size();
    expect_same_bits(results(*reference, kept), results(*reference, dropped));
    expect_same_bits(results(*fast, kept), results(*fast, dropped));
  }
  EXPECT_GT(more, 50u) << "nothing was made again: the test is void";
}

struct Life {
  int first = -1, last = -1;
};

TEST(Plan, LiveBuffersNeverOverlap) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Tape t = random_tape(seed);
    prune(t);
    alias(t);
    const Plan p = plan(t);
    std::vector<Life> life(t.values.size());
    for (int i = 0; i < int(t.nodes.size()); ++i)
      for (const auto* vars : {&t.nodes[size_t(i)].in, &t.nodes[size_t(i)].out})
        for (Var v : *vars) {
          if (!v) continue;
          Life& l = life[size_t(t[v].storage)];
          if (l.first < 0) l.first = i;
          l.last = i;
        }
    EXPECT_GE(p.arena_bytes, p.bound_bytes);
    EXPECT_LE(p.arena_bytes, p.total_bytes);
    std::vector<int64_t> live(t.nodes.size());
    const auto end = [&](size_t i) {
      return p.offset[i] + t.values[i].shape.numel() * size_of(t.values[i].dtype);
    };
    for (size_t i = 0; i < t.values.size(); ++i) {
      if (p.offset[i] < 0) {
        const bool temporary = t.values[i].role == Role::temp && t.values[i].storage == int(i);
        EXPECT_FALSE(temporary && life[i].first >= 0) << "value " << i << " has no place";
        continue;
      }
      EXPECT_EQ(p.offset[i] % 256, 0);
      EXPECT_LE(end(i), p.arena_bytes);
      for (int k = life[i].first; k <= life[i].last; ++k) live[size_t(k)] += end(i) - p.offset[i];
      for (size_t j = 0; j < i; ++j) {
        if (p.offset[j] < 0) continue;
        const bool together = life[i].first <= life[j].last && life[j].first <= life[i].last;
        EXPECT_FALSE(together && p.offset[i] < end(j) && p.offset[j] < end(i)) << i << " and " << j;
      }
    }
    EXPECT_GE(p.bound_bytes, *std::max_element(live.begin(), live.end()));
  }
}

TEST(Plan, OfGpt2IsWithinOnePercentOfTheBound) {
  for (Recompute r : {Recompute::none, Recompute::light, Recompute::block}) {
    const MemoryNeed need =
        memory_need({.model = preset("gpt2"), .B = 4, .T = 1024, .recompute = r});
    EXPECT_GE(need.activations, need.activation_bound);
    EXPECT_LE(double(need.activations), 1.01 * double(need.activation_bound)) << int(r);
  }
}

// --- checkpoint and drop ---

int count_ops(const Tape& t, const std::string& name) {
  int n = 0;
  for (const Node& node : t.nodes) n += node.op->name == name;
  return n;
}

TEST(Checkpoint, MakesDroppedValuesAgainOnceAndOnlyIfAsked) {
  Tape t;
  const Var x = t.input("x", {2, 3, 8}, DType::f32);
  t[x].needs_grad = true;
  const Var a = activation(t, x, Act::gelu_tanh), b = activation(t, a, Act::gelu_tanh);
  const Var c = add(t, a, b, 1);
  t.drop(a);
  t.drop(c);
  t.add_grad(c, t.input("dc", {2, 3, 8}, DType::f32));
  differentiate(t);  // reads x and a, never b or c
  EXPECT_EQ(count_ops(t, "activation"), 3);
  const Var again = t.saved(a);
  EXPECT_NE(again, a);
  EXPECT_EQ(t.saved(a), again);
  EXPECT_EQ(t.saved(b), b);
  EXPECT_EQ(count_ops(t, "activation"), 3);
  EXPECT_EQ(count_ops(t, "add"), 1);
}

TEST(Checkpoint, KeepsItsResultAlone) {
  Tape t;
  const Var x = t.input("x", {2, 3, 8}, DType::f32);
  t[x].needs_grad = true;
  Var inner;
  const Var y = t.checkpoint([&] {
    inner = activation(t, x, Act::gelu_tanh);
    return activation(t, inner, Act::gelu_tanh);
  });
  EXPECT_TRUE(t[inner].dropped);
  EXPECT_FALSE(t[y].dropped);
}

TEST(Checkpoint, TakesLessMemory) {
  const auto bound = [](Recompute r) {
    return memory_need({.model = preset("tiny"), .B = 2, .T = 64, .recompute = r}).activations;
  };
  EXPECT_LT(bound(Recompute::light), bound(Recompute::none));
  EXPECT_LT(bound(Recompute::block), bound(Recompute::light));
}

}  // namespace
}  // namespace hearth
