// Sequences over many blocks of the paged cache: their tokens and log-probabilities are those of
// the training forward pass, whatever shares their steps and whatever became of their blocks.
#include <algorithm>
#include <numeric>

#include "infer/runner.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

Request greedy(Tokens prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0, .max_tokens = max_tokens, .logprobs = 1}};
}

Request sampled(Tokens prompt, int64_t max_tokens, uint64_t seed) {
  Request r = greedy(std::move(prompt), max_tokens);
  r.sampling.temperature = 1.2f, r.sampling.top_p = 0.9f, r.sampling.seed = seed;
  return r;
}

Completion only(Engine& e, const Request& r) { return e.run(std::vector{r})[0][0]; }

void expect_equal(const Completion& a, const Completion& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  const auto bits = [](const std::vector<TokenLogprob>& x, const std::vector<TokenLogprob>& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].logprob, y[i].logprob);
      EXPECT_EQ(x[i].top, y[i].top);
    }
  };
  bits(a.logprobs, b.logprobs);
  bits(a.prompt_logprobs, b.prompt_logprobs);
}

// Each request by itself, by an engine that remembers nothing of the others.
std::vector<std::vector<Completion>> alone(TinyModel& m, const std::vector<Request>& requests) {
  Engine e = m.engine({.max_batch = 1, .reuse_prefixes = false});
  std::vector<std::vector<Completion>> all;
  for (const Request& r : requests) all.push_back(e.run(std::vector{r})[0]);
  return all;
}

void expect_equal(const std::vector<std::vector<Completion>>& a,
                  const std::vector<std::vector<Completion>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(a[i].size(), b[i].size());
    for (size_t k = 0; k < a[i].size(); ++k) expect_equal(a[i][k], b[i][k]);
  }
}

// Lengths on both sides of a block's end, greedy and drawn, some with scores or several samples.
std::vector<Request> mixed(int count) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i) {
    const Tokens prompt = tiny_prompt(1 + (i * 37) % 140, i);
    all.push_back(i % 2 ? greedy(prompt, 1 + (i * 11) % 70)
                        : sampled(prompt, 1 + (i * 7) % 70, uint64_t(i)));
    all.back().prompt_logprobs = i % 5 == 0;
    all.back().n = i % 7 == 3 ? 3 : 1;
  }
  return all;
}

int64_t blocks_bytes(const TinyModel& m, int64_t blocks) {
  return blocks * Runner::block_bytes(m.config, m.params.dtype());
}

TEST(Paged, TokensAndLogprobsAreThoseOfTheTrainingForward) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    Engine e = m.engine({.step_tokens = 48});
    for (const Request& request : {greedy(tiny_prompt(100), 60), sampled(tiny_prompt(61), 99, 3)}) {
      Request r = request;
      r.prompt_logprobs = true;
      const Completion got = only(e, r);
      Tokens all = r.prompt;
      all.insert(all.end(), got.tokens.begin(), got.tokens.end());
      const std::vector<float> logits = m.all_logits(all), nll = m.nll(all);
      ASSERT_EQ(got.prompt_logprobs.size() + 1 + got.logprobs.size(), all.size());
      for (size_t i = 0; i + 1 < all.size(); ++i) {
        const std::span row(&logits[i * size_t(c.vocab)], size_t(c.vocab));
        const TokenLogprob want = m.logprob(row, all[i + 1], 1);
        const size_t after = i + 1 - std::min(i + 1, r.prompt.size());
        const TokenLogprob& have =
            i + 1 < r.prompt.size() ? got.prompt_logprobs[i] : got.logprobs[after];
        ASSERT_EQ(have.logprob, want.logprob) << i;
        ASSERT_EQ(have.top, want.top) << i;
        if (c.logit_softcap == 0) {
          ASSERT_EQ(have.logprob, -nll[i]) << i;
        } else {
          ASSERT_NEAR(have.logprob, -nll[i], 1e-5) << i;
        }
        if (r.sampling.temperature == 0 && i + 1 >= r.prompt.size()) {
          ASSERT_EQ(all[i + 1], want.top[0].first) << i;
        }
      }
    }
  }
}

TEST(Paged, SixtyFourTogetherAreAsEachAlone) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    const std::vector<Request> requests = mixed(64);
    const auto want = alone(m, requests);
    Engine wide = m.engine({.max_batch = 64});
    expect_equal(wide.run(requests), want);
    Engine narrow = m.engine({.max_batch = 5, .step_tokens = 29});
    expect_equal(narrow.run(requests), want);
    EXPECT_EQ(wide.stats().used_blocks, 0);
  }
}

TEST(Paged, PreemptionChangesNothing) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    const std::vector<Request> requests = mixed(40);
    Engine e = m.engine({.max_batch = 16, .step_tokens = 50, .cache_bytes = blocks_bytes(m, 4)});
    expect_equal(e.run(requests), alone(m, requests));
    EXPECT_GT(e.stats().preemptions, 0);
    EXPECT_EQ(e.stats().used_blocks, 0);
    EXPECT_EQ(e.stats().blocks, 4);
  }
}

TEST(Paged, SharedPrefixesAreComputedOnce) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) {
      Tokens prompt = tiny_prompt(130);
      for (int k = 0; k < i * 9; ++k) prompt.push_back(int32_t((k * k + i) % 23));
      requests.push_back(i % 2 ? greedy(prompt, 40) : sampled(prompt, 40, 4));
    }
    requests[3].prompt_logprobs = true;  // wants the logits of tokens that are in the cache
    const auto want = alone(m, requests);
    Engine e = m.engine();
    only(e, requests[0]);
    EXPECT_EQ(e.stats().prompt_tokens, 130);
    expect_equal(e.run(requests), want);
    EXPECT_EQ(e.stats().reused_tokens, 5 * 128);
    EXPECT_EQ(e.stats().used_blocks, 0);
    const int64_t before = e.stats().prompt_tokens;
    e.forget();
    expect_equal(only(e, requests[0]), want[0][0]);
    EXPECT_EQ(e.stats().prompt_tokens, before + 130);
  }
}

// Blocks that others need are forgotten, the longest unused first.
TEST(Paged, ForgetsWhatWasUsedLeastRecently) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, long_configs()[0]);
  Engine e = m.engine({.max_batch = 1, .cache_bytes = blocks_bytes(m, 5)});
  const auto reused = [&](int32_t salt, int64_t size) {
    const int64_t before = e.stats().reused_tokens;
    only(e, greedy(tiny_prompt(size, salt), 1));
    return e.stats().reused_tokens - before;
  };
  EXPECT_EQ(reused(1, 100), 0);
  EXPECT_EQ(reused(2, 100), 0);
  EXPECT_EQ(reused(1, 100), 64);  // now 2 is the oldest
  EXPECT_EQ(reused(3, 250), 0);   // four blocks of five: 2 goes, 1 stays
  EXPECT_EQ(reused(1, 100), 64);
  EXPECT_EQ(reused(2, 100), 0);
}

TEST(Paged, SpeculationChangesNothing) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    std::vector<Request> requests = mixed(24);
    for (Request& r : requests)
      if (r.n == 1) r.sampling.frequency_penalty = 0.01f;
    const auto want = alone(m, requests);
    for (int64_t guesses : {1, 4, 9}) {
      Engine e = m.engine({.max_batch = 6, .step_tokens = 64, .speculate = guesses});
      expect_equal(e.run(requests), want);
      EXPECT_GT(e.stats().drafted, 0);
      EXPECT_GT(e.stats().accepted, 0);
      EXPECT_LT(e.stats().accepted, e.stats().drafted);
      EXPECT_EQ(e.stats().used_blocks, 0);
    }
    Engine cramped = m.engine(
        {.max_batch = 6, .step_tokens = 64, .speculate = 4, .cache_bytes = blocks_bytes(m, 4)});
    expect_equal(cramped.run(requests), want);
  }
}

TEST(Paged, SamplesShareTheirPrompt) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    Request r = sampled(tiny_prompt(100), 50, 8);
    r.n = 8;
    Engine e = m.engine({.max_batch = 8, .reuse_prefixes = false});
    int64_t most = 0;
    const auto eight = e.run(std::vector{r}, [&](const TokenEvent&) {
      most = std::max(most, e.stats().used_blocks);
      return true;
    });
    EXPECT_EQ(e.stats().prompt_tokens, 100);
    EXPECT_LE(most, 1 + 8 * 2);  // the prompt's whole block once, then two of each sample's own
    for (const EngineSpec& spec :
         {EngineSpec{.max_batch = 3}, EngineSpec{.max_batch = 8, .cache_bytes = blocks_bytes(m, 4)},
          EngineSpec{.max_batch = 8, .speculate = 3}}) {
      Engine other = m.engine(spec);
      expect_equal(other.run(std::vector{r}), eight);
    }
    r.sampling.temperature = 0;
    const auto same = e.run(std::vector{r})[0];
    ASSERT_EQ(same.size(), 8u);
    Engine plain = m.engine();
    for (const Completion& x : same) EXPECT_EQ(x.tokens, only(plain, greedy(r.prompt, 50)).tokens);
  }
}

TEST(Paged, BeamsShareBlocksAndSurvivePreemption) {
  const auto backend = make_cpu_backend(1);
  for (const ModelConfig& c : cached_configs()) {
    TinyModel m(*backend, c);
    std::vector<Request> requests = mixed(9);
    for (int i = 0; i < 3; ++i) {
      Request r = greedy(tiny_prompt(50 + 20 * i, i), 30);
      r.beams = r.n = 4;
      requests.push_back(r);
    }
    Engine roomy = m.engine({.max_batch = 4});
    const auto want = roomy.run(requests);
    for (size_t i = 9; i < requests.size(); ++i)
      for (const Completion& x : want[i]) {
        Tokens all = requests[i].prompt;
        all.insert(all.end(), x.tokens.begin(), x.tokens.end());
        const std::vector<float> logits = m.all_logits(all);
        for (size_t k = 0; k < x.tokens.size(); ++k) {
          const size_t at = (requests[i].prompt.size() + k - 1) * size_t(c.vocab);
          const std::span row(&logits[at], size_t(c.vocab));
          ASSERT_EQ(x.logprobs[k].logprob, m.logprob(row, x.tokens[k], 0).logprob);
        }
      }
    Engine cramped = m.engine({.max_batch = 6, .cache_bytes = blocks_bytes(m, 4)});
    expect_equal(cramped.run(requests), want);
    EXPECT_GT(cramped.stats().preemptions, 0);
    EXPECT_EQ(cramped.stats().used_blocks, 0);
  }
}

TEST(Paged, WindowsGiveOldBlocksBack) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, long_configs()[4]);
  Engine e = m.engine({.max_batch = 1, .step_tokens = 32});
  int64_t most = 0;
  const Completion long_one =
      e.run(std::vector{greedy(tiny_prompt(120), 136)}, [&](const TokenEvent&) {
        most = std::max(most, e.stats().used_blocks);
        return true;
      })[0][0];
  EXPECT_EQ(long_one.tokens.size(), 136u);
  EXPECT_LE(most, 3);  // 70 tokens back touch two blocks and a new one may begin; all would be four
  // Three blocks and one for a step are enough for any length.
  Engine small = m.engine({.max_batch = 1, .step_tokens = 32, .cache_bytes = blocks_bytes(m, 3)});
  expect_equal(only(small, greedy(tiny_prompt(120), 136)), long_one);
}

TEST(Paged, RefusesACacheThatHoldsNoSequence) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, long_configs()[0]);
  EXPECT_EQ(message_of([&] { m.engine({.cache_bytes = blocks_bytes(m, 3)}); }),
            "[engine] expected a KV cache of at least 0.01 GiB for a context of 256 tokens, got "
            "0.00 GiB: provide more memory or use a shorter --context");
  const std::string huge = message_of([&] { m.engine({.cache_bytes = int64_t(1) << 50}); });
  EXPECT_TRUE(huge.starts_with("[engine] expected a KV cache within the ")) << huge;
  EXPECT_TRUE(huge.ends_with(", got 1048576.00 GiB: use a smaller --cache-gib")) << huge;
  EXPECT_NO_THROW(m.engine({.context = 192, .cache_bytes = blocks_bytes(m, 3)}));
}

// Real widths: products over several blocks of k and panels of every size.
TEST(Paged, RowsOfAWideModelDoNotDependOnTheirBatch) {
  const auto backend = make_cpu_backend(1);
  ModelConfig c = tiny_config();
  c.vocab = 1031, c.context = 128, c.dim = 576, c.heads = 9, c.kv_heads = 3, c.hidden = 1536;
  c.init_std = 0.05f;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TinyModel m(*backend, c, 7, dtype);
    std::vector<Request> requests;
    for (int i = 0; i < 9; ++i) requests.push_back(greedy(tiny_prompt(3 + 11 * i, i), 12));
    const auto want = alone(m, requests);
    Engine e = m.engine({.max_batch = 16, .step_tokens = 100});
    expect_equal(e.run(requests), want);
  }
}

}  // namespace
}  // namespace hearth
