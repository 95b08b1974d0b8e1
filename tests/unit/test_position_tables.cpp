// Tables of positions are made for the context in use, whatever context a model's config promises.
#include <gtest/gtest.h>

#include "eval/score.h"
#include "infer/runner.h"
#include "infer_model.h"
#include "sys/error.h"
#include "train/pretrain/programs.h"

namespace hearth {
namespace {

constexpr int64_t promised = int64_t(1) << 24;

ModelConfig offload_config() {
  ModelConfig c = tiny_config();
  c.context = promised, c.head_dim = 64;
  return c.resolve();
}

std::vector<int32_t> completion(const ModelConfig& c, Backend& backend, int64_t context) {
  ParamStore params(backend, decoder_params(c), DType::f32);
  params.initialise(7);
  Engine engine(c, params, backend, {.max_batch = 1, .context = context});
  Request r{.prompt = {1, 2, 3}};
  r.sampling.max_tokens = 15, r.sampling.ignore_eos = true;
  return engine.run(std::span(&r, 1))[0][0].tokens;
}

TEST(PositionTables, OfAnEngineFollowItsContext) {
  const RunnerSpec spec{.rows = 8, .context = 64, .vocab = 23};
  EXPECT_LT(Runner::step_bytes(offload_config(), DType::f32, spec), 1 << 20);
  RunnerSpec longer = spec;
  longer.context = 1 << 20;
  EXPECT_GT(Runner::step_bytes(offload_config(), DType::f32, longer), int64_t(1) << 28);
}

TEST(PositionTables, HoldTheSameNumbersForAnyContext) {
  ModelConfig near = offload_config();
  near.context = 24;
  for (const auto& backend : exact_backends())
    EXPECT_EQ(completion(near, *backend, 24), completion(offload_config(), *backend, 24));
}

TEST(PositionTables, ArePartOfTheMemoryPlan) {
  ProgramSpec s{.model = offload_config(), .B = 2, .T = 48};
  EXPECT_EQ(memory_need(s).tables, 64 * 32 * 2 * 4);  // (64 positions, 32 pairs, cos and sin)
  const int64_t other = memory_need(s).total() - memory_need(s).tables;
  EXPECT_THROW(expect_fit(s, MemoryBudget(other)), Error);
  s.B = 1, s.T = promised;  // planned, and refused, without making the table
  EXPECT_EQ(memory_need(s).tables, promised * 32 * 2 * 4);
  EXPECT_THROW(expect_fit(s, MemoryBudget(int64_t(1) << 30)), Error);
}

TEST(PositionTables, OfAScorerFollowItsTexts) {
  const auto backend = make_cpu_backend(2);
  ModelConfig near = offload_config();
  near.context = 64;
  const std::vector<ScoreItem> items{{{1, 2, 3, 4, 5}, 1}};
  const auto score = [&](const ModelConfig& c, CacheFormat cache) {
    ParamStore params(*backend, decoder_params(c), DType::f32);
    params.initialise(7);
    Scorer scorer(c, params, *backend, {.batch_tokens = 64, .context = 64, .cache = cache});
    return scorer.score(items)[0].logprob;
  };
  for (const CacheFormat cache : {CacheFormat::plain, CacheFormat::fp8})
    EXPECT_EQ(score(offload_config(), cache), score(near, cache));
}

// The engine's table grows with its texts; what it says of a long one is what whole passes say.
TEST(PositionTables, GrowWithTheText) {
  const auto backend = make_cpu_backend(2);
  const ModelConfig c = offload_config();
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(7);
  std::vector<int32_t> text;
  for (int i = 0; i < 700; ++i) text.push_back(i * i % 23);
  Engine engine(c, params, *backend, {.max_batch = 1, .context = 1024, .step_tokens = 100});
  Request r{.prompt = text, .prompt_logprobs = true};
  r.sampling.max_tokens = 1, r.sampling.logprobs = 0;
  double sum = 0;
  const auto done = engine.run(std::span(&r, 1));
  for (const TokenLogprob& p : done[0][0].prompt_logprobs) sum += p.logprob;
  Scorer scorer(c, params, *backend, {.context = 1024});
  const double want = scorer.score(std::vector<ScoreItem>{{text, 1}})[0].logprob;
  EXPECT_NEAR(sum, want, 1e-4 * std::abs(want));
  ModelConfig other = c;  // or positions did not matter
  other.rope_theta = 100;
  Scorer turned(other, params, *backend, {.context = 1024});
  EXPECT_GT(std::abs(turned.score(std::vector<ScoreItem>{{text, 1}})[0].logprob - want),
            1e-3 * std::abs(want));
}

// A context that nobody named is the model's, as far as the cache can hold a sequence of it.
TEST(PositionTables, AnUnnamedContextFitsTheCache) {
  const auto backend = make_cpu_backend(2);
  const ModelConfig c = offload_config();
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(7);
  const int64_t cache = 300 * Runner::block_bytes(c, DType::f32);
  const Engine engine(c, params, *backend, {.max_batch = 1, .cache_bytes = cache});
  EXPECT_EQ(engine.context(), 16384);  // 256 blocks of 64
  EXPECT_THROW(Engine(c, params, *backend, {.context = promised, .cache_bytes = cache}), Error);
  EXPECT_THROW(Engine(c, params, *backend, {.max_batch = 1, .cache_bytes = cache / 100}), Error);
}

}  // namespace
}  // namespace hearth
