// Log-probabilities as training sees them: the bits of the sampler's, and gradients of what the
// host makes of them.
#include <gtest/gtest.h>

#include "op_cases.h"
#include "sys/error.h"
#include "train/logprob_programs.h"
#include "unit/cpu_case.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

// All of `all` in one sequence padded to T tokens, asked about from `first` on.
TokenBatch one_sequence(const Tokens& all, size_t first, int64_t T) {
  TokenBatch b{.B = 1, .T = T, .tokens = Tokens(all.begin(), all.end() - 1)};
  b.tokens.resize(size_t(T), 0);
  for (size_t i = first; i < all.size(); ++i) {
    b.rows.push_back(int32_t(i) - 1);
    b.targets.push_back(all[i]);
  }
  return b;
}

TEST(Logprob, KernelHasTheBitsOfTheLoss) {
  using namespace cpu_test;
  const int64_t N = 5, V = 1500, wide = 1536;
  const Array x = random({N, wide}, DType::f32, 6);
  const Array targets = Array::ints({N}, {5, 1, -100, 1499, 77});
  for (Isa isa : usable_isas())
    for (float cap : {0.0f, 2.0f}) {
      const Runner run = runner_of(isa, 2, DType::f32);
      Array nll = run.sums({N}), logprob = run.sums({N});
      run.k.cross_entropy(
          run.s,
          {.nll = nll, .logits = x, .targets = targets, .spec = {.vocab = V, .softcap = cap}});
      run.k.logprob(run.s, {.logprob = logprob,
                            .logits = x,
                            .targets = targets,
                            .spec = {.vocab = V, .softcap = cap}});
      for (int64_t i = 0; i < N; ++i)
        EXPECT_EQ(Tensor(logprob).as<float>()[i], -Tensor(nll).as<float>()[i]) << name(isa) << i;
    }
}

TEST(Logprob, KernelsAgainstTheReference) {
  using namespace cpu_test;
  const int64_t N = 6;
  for (DType d : dtypes)
    for (int64_t V : {2, 257, 2500})
      for (float cap : {0.0f, 3.0f}) {
        const int64_t wide = V + 3;
        const Array x = random({N, wide}, DType::f32, 6), dy = random({N}, DType::f32);
        const int32_t last = int32_t(V) - 1;
        const Array targets = Array::ints({N}, {0, last, -1, last / 2, 1, -100});
        const LogprobSpec spec{.vocab = V, .softcap = cap, .temperature = 0.7f};
        check("logprob", d, [&](const Runner& r) {
          Array logprob = r.sums({N}), entropy = r.sums({N}), dx = r.out({N, wide});
          r.k.logprob(r.s, {.logprob = logprob,
                            .entropy = entropy,
                            .logits = x.as(r.acc),
                            .targets = targets,
                            .spec = spec});
          r.k.logprob_bwd(r.s, {.dlogits = dx,
                                .dlogprob = dy.as(r.acc),
                                .logits = x.as(r.acc),
                                .targets = targets,
                                .spec = spec});
          return outputs(std::move(logprob), std::move(entropy), std::move(dx));
        });
      }
}

TEST(Logprob, EqualsTheSamplersToTheBit) {
  for (const auto& backend : cases::fast_backends(2))
    for (const ModelConfig& c : tiny_configs()) {
      if (c.logit_softcap > 0) continue;  // the host samples there, in double
      TinyModel m(*backend, c);
      Engine engine = m.engine({.max_batch = 3, .step_tokens = 7});
      const Request request{.prompt = tiny_prompt(7),
                            .sampling = {.seed = 3, .max_tokens = 9, .logprobs = 0},
                            .n = 4};
      Memory memory(*backend, &m.params);
      LogprobPrograms programs({.model = c}, memory);
      const auto completions = engine.run(std::span(&request, 1));
      ASSERT_EQ(completions[0].size(), 4u);
      for (const Completion& got : completions[0]) {
        ASSERT_FALSE(got.tokens.empty());
        Tokens all = request.prompt;
        all.insert(all.end(), got.tokens.begin(), got.tokens.end());
        const TokenBatch b = one_sequence(all, request.prompt.size(), 20);
        const Logprobs scored = programs.score(b), kept = programs.forward(b, true);
        ASSERT_EQ(scored.logprob.size(), got.tokens.size());
        for (size_t i = 0; i < got.tokens.size(); ++i) {
          EXPECT_EQ(scored.logprob[i], got.logprobs[i].logprob) << i;
          EXPECT_EQ(kept.logprob[i], got.logprobs[i].logprob) << i;
        }
      }
    }
}

std::vector<float> gradients(ParamStore& params) {
  std::vector<float> all;
  for (const ParamSpec& p : params.specs())
    for (const float x : params.values(Part::grad, p.name)) all.push_back(x);
  return all;
}

// The loss of training, by a program of its own, with targets where the batch has rows.
std::vector<float> loss_gradients(TinyModel& m, const TokenBatch& b, bool accumulate) {
  Memory memory(m.backend, &m.params);
  Tape t(m.params.dtype());
  t.accumulate = accumulate;
  const Var x = decoder(t, m.config, declare_inputs(t, b.B, b.T, false), {});
  head_loss(t, x, head_weight(t, m.config), t.input("targets", {b.B, b.T}, DType::i32),
            {.scale = m.config.logit_scale, .softcap = m.config.logit_softcap, .grad = true});
  differentiate(t);
  Exec exec(std::move(t), memory);
  Tokens targets(b.tokens.size(), -100), positions;
  for (size_t i = 0; i < b.rows.size(); ++i) targets[size_t(b.rows[i])] = b.targets[i];
  for (size_t i = 0; i < b.tokens.size(); ++i) positions.push_back(int32_t(int64_t(i) % b.T));
  memory.state.write<int32_t>("main.tokens", b.tokens);
  memory.state.write<int32_t>("main.positions", positions);
  memory.state.write<int32_t>("main.targets", targets);
  const Scalars s{.inv_targets = 1 / float(b.rows.size())};
  memory.state.write<Scalars>("scalars", std::span(&s, 1));
  exec.run();
  return gradients(m.params);
}

TEST(Logprob, GradientsAreThoseOfTheLoss) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : tiny_configs()) {
    TinyModel m(*backend, c);
    TokenBatch b{.B = 2, .T = 9};
    for (int32_t i = 0; i < 18; ++i) b.tokens.push_back((i * 5 + 2) % 23);
    for (int32_t row : {3, 4, 6, 11, 16}) b.rows.push_back(row), b.targets.push_back(row % 23);
    Memory memory(*backend, &m.params);
    LogprobPrograms programs({.model = c}, memory);
    const std::vector<float> d(b.rows.size(), -1 / float(b.rows.size()));
    for (const bool first : {true, false}) {
      programs.forward(b, first);
      programs.backward(d);
      if (!first) break;
      const std::vector<float> got = gradients(m.params), want = loss_gradients(m, b, false);
      double top = 0;
      for (float x : want) top = std::max(top, std::abs(double(x)));
      ASSERT_EQ(got.size(), want.size());
      ASSERT_GT(top, 0);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6 * top) << i;
    }
    const std::vector<float> twice = gradients(m.params);
    programs.forward(b, true);
    programs.backward(d);
    const std::vector<float> once = gradients(m.params);
    for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], 2 * once[i], 1e-5) << i;
  }
}

struct KeptPass {
  Logprobs forward;
  std::vector<float> grads;
  int64_t arena_bytes = 0;
};

// Of a vocabulary whose logits are more than all the rest.
constexpr int64_t kept_wide = 5 * row_tile, kept_logits = 256 * kept_wide * 4;

// A step of two batches whose 256 rows are four chunks of logits.
KeptPass kept_pass(Backend& backend, const ModelConfig& c, DType dtype, Recompute recompute,
                   int64_t keep_bytes) {
  TinyModel m(backend, c, 7, dtype);
  Memory memory(backend, &m.params);
  LogprobPrograms programs({.model = c,
                            .dtype = dtype,
                            .recompute = recompute,
                            .temperature = 0.9f,
                            .entropy = true,
                            .logits_bytes = kept_logits / 4,
                            .keep_bytes = keep_bytes},
                           memory);
  TokenBatch b{.B = 12, .T = 22};
  std::vector<float> d;
  for (int32_t i = 0; i < 264; ++i) {
    b.tokens.push_back((i * 5 + 2) % 23);
    if (i % 33 == 7) continue;
    b.rows.push_back(i), b.targets.push_back(i * 3 % 23);
    d.push_back(0.01f * float(i % 5 - 2));
  }
  KeptPass r;
  for (const bool first : {true, false}) {
    r.forward = programs.forward(b, first);
    programs.backward(d);
  }
  r.grads = gradients(m.params);
  r.arena_bytes = memory.arena_bytes();
  return r;
}

TEST(Logprob, KeptLogitsChangeMemoryAlone) {
  const auto backend = make_cpu_backend(2);
  for (ModelConfig c : tiny_configs()) {
    c.vocab = kept_wide - 9;
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        const auto pass = [&](int64_t keep_bytes) {
          return kept_pass(*backend, c, dtype, recompute, keep_bytes);
        };
        const KeptPass again = pass(0), kept = pass(kept_logits);
        EXPECT_GT(kept.arena_bytes, again.arena_bytes);
        EXPECT_EQ(pass(kept_logits - 1).arena_bytes, again.arena_bytes);
        EXPECT_TRUE(kept.forward.logprob == again.forward.logprob) << to_string(dtype);
        EXPECT_TRUE(kept.forward.entropy == again.forward.entropy) << to_string(dtype);
        EXPECT_TRUE(kept.grads == again.grads) << to_string(dtype);
      }
  }
}

// The CPU with as much memory free as a test says.
class NarrowBackend final : public Backend {
 public:
  explicit NarrowBackend(int64_t free) : free_(free) {}
  const Kernels& kernels() const override { return cpu_->kernels(); }
  Stream& stream() override { return cpu_->stream(); }
  std::string describe() const override { return "narrow"; }
  std::byte* allocate(int64_t n, const std::string& w) override { return cpu_->allocate(n, w); }
  void release(std::byte* p, int64_t n) override { cpu_->release(p, n); }
  void upload(std::byte* d, const void* h, int64_t n) override { cpu_->upload(d, h, n); }
  void download(void* h, const std::byte* d, int64_t n) override { cpu_->download(h, d, n); }
  void synchronize() override { cpu_->synchronize(); }
  int64_t free_bytes() const override { return free_; }

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
  int64_t free_;
};

TEST(Logprob, LogitsAreKeptOnlyWhereThereIsRoom) {
  ModelConfig c = tiny_config();
  c.vocab = kept_wide - 9;
  NarrowBackend wide(int64_t(1) << 30), narrow(kept_logits);
  const auto arena = [&](Backend& b, int64_t keep_bytes) {
    return kept_pass(b, c, DType::f32, Recompute::none, keep_bytes).arena_bytes;
  };
  EXPECT_GT(arena(wide, kept_logits), arena(wide, 0));
  EXPECT_EQ(arena(narrow, kept_logits), arena(wide, 0));
}

TEST(Logprob, WhatWasBegunIsReadUntilTheNext) {
  const auto backend = make_cpu_backend(2);
  TinyModel m(*backend, tiny_config());
  Memory memory(*backend, &m.params);
  LogprobPrograms programs({.model = m.config, .entropy = true}, memory);
  EXPECT_THROW(programs.logprob(), Error);
  for (const int64_t B : {1, 9}) {  // the second has more rows than the first had room for
    TokenBatch b{.B = B, .T = 9};
    std::vector<double> d;
    for (int32_t i = 0; i < int32_t(B) * 9; ++i) {
      b.tokens.push_back((i * 5 + 2) % 23), b.rows.push_back(i), b.targets.push_back(i * 3 % 23);
      d.push_back(0.01 * double(i % 5 - 2));
    }
    const Logprobs whole = programs.forward(b, true);
    programs.backward(std::vector<float>(d.begin(), d.end()));
    const std::vector<float> grads = gradients(m.params);
    programs.begin(b, true);
    programs.backward(d);
    EXPECT_TRUE(std::ranges::equal(programs.logprob(), whole.logprob));
    EXPECT_TRUE(std::ranges::equal(programs.entropy(), whole.entropy));
    EXPECT_TRUE(gradients(m.params) == grads);
  }
}

// What a token beyond the last row asked about is cannot matter, and a row with gradient 0 is as
// good as not asked about.
TEST(Logprob, RowsThatDoNotCountCarryNoGradient) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  Memory memory(*backend, &m.params);
  LogprobPrograms programs({.model = m.config}, memory);
  TokenBatch b{.B = 1, .T = 8, .tokens = {1, 2, 3, 4, 5, 6, 7, 8}};
  b.rows = {2, 4}, b.targets = {4, 9};
  programs.forward(b, true);
  programs.backward(std::vector<float>{-0.5f, 0.0f});
  const std::vector<float> table = m.params.values(Part::grad, "embed.weight");
  const auto moved = [&](int32_t token) {
    const auto row = std::span(table).subspan(size_t(token) * 16, 16);
    return std::ranges::any_of(row, [](float x) { return x != 0; });
  };
  for (const int32_t token : {1, 2, 3}) EXPECT_TRUE(moved(token)) << token;
  for (const int32_t token : {4, 5, 6, 7, 8, 9, 0}) EXPECT_FALSE(moved(token)) << token;
}

TEST(Logprob, RefusesWhatCannotBe) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  Memory memory(*backend, &m.params);
  LogprobPrograms programs({.model = m.config}, memory);
  TokenBatch b{.B = 1, .T = 3, .tokens = {1, 2, 3}};
  EXPECT_ANY_THROW(programs.score(b));  // no row
  b.rows = {3}, b.targets = {1};
  EXPECT_ANY_THROW(programs.score(b));  // a row beyond the last
  b.rows = {2}, b.targets = {23};
  EXPECT_ANY_THROW(programs.score(b));  // a token beyond the vocabulary
  b.targets = {22};
  programs.forward(b, true);
  EXPECT_ANY_THROW(programs.backward(std::vector<float>{1, 1}));
  programs.backward(std::vector<float>{1});
  EXPECT_ANY_THROW(programs.backward(std::vector<float>{1}));  // twice
}

}  // namespace
}  // namespace hearth
