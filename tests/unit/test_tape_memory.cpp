// Memory of a tape: values that share storage, the plan of the arena, and values that are
// recomputed. Random programs must give the same bits whatever is shared or recomputed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "core/join.h"
#include "cpu/reference/reference.h"
#include "op_cases.h"
#include "ops/record.h"
#include "tape_case.h"
#include "train/pretrain/programs.h"

namespace hearth {
namespace {

// An op that reads and does nothing: keeps its inputs alive up to where it stands.
void read_all(Tape& t, std::vector<Var> in) {
  Op op;
  op.name = "read";
  op.launch = [](const Kernels&, Stream&, In, Out) {};
  t.push(std::move(op), std::move(in), {t.result("read", {1}, DType::f32)});
}

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
    switch (bits() % 9) {
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
      case 7: {
        const Var both = t.param("both", {2 * C, C}, Init::uniform(0.5f), Group::matrix);
        return activation(t, linear(t, x, both, {}), Act::swiglu);
      }
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

void forget_joins(Tape& t) {
  for (Node& n : t.nodes) {
    Op op = *n.op;
    op.glu = op.glu_slope = {};
    op.sums_columns = false;
    n.op = std::make_shared<const Op>(std::move(op));
  }
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
    simplify(counted);
    for (size_t i = 0; i < counted.values.size(); ++i)
      taken += counted.values[i].storage != shared.values[i].storage;
    forget_inplace(apart);
    keep_everything(apart);
    expect_same_bits(results(*reference, shared), results(*reference, apart));
    expect_same_bits(results(*fast, shared), results(*fast, apart));
  }
  EXPECT_GT(taken, 300) << "nothing was shared: the test is void";
}

TEST(Join, ChangesNoBit) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(1);
  int joined = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    const Tape together = random_tape(seed);
    Tape apart = together, counted = together;
    join_gates(counted), join_sums(counted);
    joined += int(together.nodes.size()) - int(counted.nodes.size());
    forget_joins(apart);
    expect_same_bits(results(*reference, together), results(*reference, apart));
    expect_same_bits(results(*fast, together), results(*fast, apart));
  }
  EXPECT_GT(joined, 100) << "nothing was joined: the test is void";
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
    simplify(t);
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
