// The engine over a KV cache in fp8: each token's key and value are rounded by themselves, so what
// shares a step, gives way, is found again or copied changes no bit; and the rounding is small.
#include <algorithm>

#include "eval/score.h"
#include "infer/runner.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;
constexpr CacheFormat fp8 = CacheFormat::fp8;

Request fp8_request(int i, int64_t prompt, int64_t made) {
  Request r{.prompt = tiny_prompt(prompt, i),
            .sampling = {.temperature = 0, .max_tokens = made, .logprobs = 1}};
  if (i % 2) r.sampling.temperature = 1.1f, r.sampling.seed = uint64_t(i);
  r.prompt_logprobs = i % 4 == 0;
  r.n = i % 5 == 3 ? 3 : 1;
  return r;
}

std::vector<Request> fp8_requests(int count) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i)
    all.push_back(fp8_request(i, 1 + (i * 37) % 140, 1 + (i * 11) % 70));
  return all;
}

void expect_same_bits(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].logprob, b[i].logprob) << i;
    EXPECT_EQ(a[i].top, b[i].top) << i;
  }
}

void expect_same(const std::vector<std::vector<Completion>>& a,
                 const std::vector<std::vector<Completion>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(a[i].size(), b[i].size());
    for (size_t k = 0; k < a[i].size(); ++k) {
      EXPECT_EQ(a[i][k].tokens, b[i][k].tokens);
      expect_same_bits(a[i][k].logprobs, b[i][k].logprobs);
      expect_same_bits(a[i][k].prompt_logprobs, b[i][k].prompt_logprobs);
    }
  }
}

std::vector<std::vector<Completion>> one_by_one(TinyModel& m, const std::vector<Request>& all) {
  Engine e = m.engine({.max_batch = 1, .reuse_prefixes = false, .cache = fp8});
  std::vector<std::vector<Completion>> r;
  for (const Request& request : all) r.push_back(e.run(std::vector{request})[0]);
  return r;
}

int64_t fp8_blocks(const TinyModel& m, int64_t blocks) {
  return blocks * Runner::block_bytes(m.config, m.params.dtype(), fp8);
}

TEST(PagedFp8, WhatSharesAStepChangesNothing) {
  const auto backend = make_cpu_backend(1);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const ModelConfig& c : long_configs()) {
      TinyModel m(*backend, c, 7, dtype);
      const std::vector<Request> requests = fp8_requests(24);
      const auto want = one_by_one(m, requests);
      for (EngineSpec spec :
           {EngineSpec{.max_batch = 24}, EngineSpec{.max_batch = 5, .step_tokens = 29},
            EngineSpec{.max_batch = 6, .step_tokens = 64, .speculate = 4},
            EngineSpec{.max_batch = 12, .step_tokens = 50, .cache_bytes = fp8_blocks(m, 4)}}) {
        spec.cache = fp8;
        Engine e = m.engine(spec);
        expect_same(e.run(requests), want);
        EXPECT_EQ(e.stats().used_blocks, 0);
        EXPECT_EQ(e.stats().cache, "fp8");
        EXPECT_EQ(e.stats().drafted > 0, spec.speculate > 0);
        if (spec.cache_bytes) {
          EXPECT_GT(e.stats().preemptions, 0);
          EXPECT_EQ(e.stats().blocks, 4);
        }
      }
    }
}

TEST(PagedFp8, PrefixesAreFoundAgain) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : long_configs()) {
    TinyModel m(*backend, c);
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      requests.push_back(fp8_request(1, 130, 30));
      for (int k = 0; k < i * 9; ++k) requests.back().prompt.push_back(int32_t((k * k + i) % 23));
    }
    const auto want = one_by_one(m, requests);
    Engine e = m.engine({.cache = fp8});
    e.run(std::vector{requests[0]});
    expect_same(e.run(requests), want);
    EXPECT_EQ(e.stats().reused_tokens, 5 * 128);
  }
}

// Samples and beams write into copies of shared blocks, exponents and all.
TEST(PagedFp8, SamplesAndBeamsCopyWhatTheyShare) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : long_configs()) {
    TinyModel m(*backend, c);
    Request samples = fp8_request(1, 100, 50), beams = fp8_request(0, 90, 20);
    samples.n = 6, beams.n = beams.beams = 4;
    const std::vector<Request> requests{samples, beams};
    Engine wide = m.engine({.max_batch = 10, .cache = fp8});
    const auto want = wide.run(requests);
    Engine one = m.engine({.max_batch = 4, .cache_bytes = fp8_blocks(m, 5), .cache = fp8});
    expect_same(one.run(requests), want);
    // Each sample by a plain run of its own tokens as a prompt.
    Engine alone = m.engine({.max_batch = 1, .reuse_prefixes = false, .cache = fp8});
    for (const Completion& s : want[0]) {
      Request again{.prompt = samples.prompt, .sampling = {.max_tokens = 0, .logprobs = 0}};
      again.prompt.insert(again.prompt.end(), s.tokens.begin(), s.tokens.end());
      again.prompt_logprobs = true;
      const Completion scored = alone.run(std::vector{again})[0][0];
      for (size_t i = 0; i < s.tokens.size(); ++i)
        EXPECT_EQ(scored.prompt_logprobs[samples.prompt.size() + i - 1].logprob,
                  s.logprobs[i].logprob)
            << i;
    }
  }
}

// hearth eval --kv fp8 scores what the engine says.
TEST(PagedFp8, ScoringIsTheEngines) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : long_configs()) {
    TinyModel m(*backend, c);
    Scorer rounded(c, m.params, *backend, {.batch_tokens = 300, .cache = fp8});
    Scorer exact(c, m.params, *backend, {.batch_tokens = 300});
    std::vector<ScoreItem> items;
    for (const int64_t n : {200, 3, 65, 130, 70})
      items.push_back({.tokens = tiny_prompt(n, int(n))});
    const std::vector<Score> got = rounded.score(items), plain = exact.score(items);
    Engine e = m.engine({.cache = fp8});
    for (size_t i = 0; i < items.size(); ++i) {
      Request r{.prompt = items[i].tokens, .sampling = {.max_tokens = 0, .logprobs = 0}};
      r.prompt_logprobs = true;
      double sum = 0;
      const Completion scored = e.run(std::vector{r})[0][0];
      for (const TokenLogprob& p : scored.prompt_logprobs) sum += p.logprob;
      EXPECT_NEAR(got[i].logprob, sum, 1e-4 * std::abs(sum)) << i;
      EXPECT_NE(got[i].logprob, plain[i].logprob) << i;
      EXPECT_NEAR(got[i].logprob, plain[i].logprob, 0.05 * std::abs(plain[i].logprob)) << i;
    }
  }
}

TEST(PagedFp8, HoldsNearlyTwiceTheTokensOfBf16) {
  const auto backend = make_cpu_backend(1);
  ModelConfig c = long_configs()[0];
  c.head_dim = 64, c.dim = 256;
  const int64_t bytes = 64 * Runner::block_bytes(c, DType::bf16);
  TinyModel m(*backend, c, 7, DType::bf16);
  Engine plain = m.engine({.cache_bytes = bytes});
  Engine rounded = m.engine({.cache_bytes = bytes, .cache = fp8});
  EXPECT_EQ(plain.stats().blocks, 64);
  EXPECT_EQ(plain.stats().cache, "bf16");
  EXPECT_EQ(rounded.stats().blocks, 64 * 128 / 65);
  EXPECT_LE(rounded.stats().cache_bytes, bytes);
}

}  // namespace
}  // namespace hearth
