// Beam search against an exhaustive search, greedy decoding, and itself.
#include <algorithm>

#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

ModelConfig narrow() {
  ModelConfig c = tiny_config();
  c.vocab = 5;
  return c;
}

Request beams(int width, int64_t max_tokens, float length_penalty = 1) {
  Request r{.prompt = {1, 3, 0}, .beams = width, .length_penalty = length_penalty};
  r.sampling.max_tokens = max_tokens;
  r.sampling.logprobs = 0;
  return r;
}

struct Scored {
  Tokens tokens;
  double score;
};

// Every sequence of up to `limit` tokens that ends in eos or at the limit.
void enumerate(TinyModel& m, Tokens prompt, Tokens made, double score, int32_t eos, size_t limit,
               float penalty, std::vector<Scored>& out) {
  if (made.size() == limit || (!made.empty() && made.back() == eos)) {
    out.push_back({made, score / std::pow(double(made.size()), double(penalty))});
    return;
  }
  Tokens all = prompt;
  all.insert(all.end(), made.begin(), made.end());
  const auto logits = m.logits(all);
  for (int32_t id = 0; id < m.config.vocab; ++id) {
    made.push_back(id);
    enumerate(m, prompt, made, score + token_logprob(logits, id, 0).logprob, eos, limit, penalty,
              out);
    made.pop_back();
  }
}

TEST(Beam, AsWideAsTheTreeFindsTheBest) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, narrow());
  for (const float penalty : {0.0f, 1.0f}) {
    std::vector<Scored> all;
    enumerate(m, {1, 3, 0}, {}, 0, 4, 3, penalty, all);
    std::stable_sort(all.begin(), all.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    Engine e = m.engine({.max_batch = 128, .eos = 4});
    Request r = beams(125, 3, penalty);
    r.n = 4;
    const auto best = e.run(std::vector{r})[0];
    ASSERT_EQ(best.size(), 4u);
    for (size_t i = 0; i < best.size(); ++i) {
      EXPECT_EQ(best[i].tokens, all[i].tokens) << i;
      EXPECT_NEAR(best[i].score, all[i].score, 1e-5) << i;
      EXPECT_EQ(best[i].finish_reason, best[i].tokens.back() == 4 ? "stop" : "length");
    }
  }
}

TEST(Beam, ScoresAreTheSumsOfLogprobs) {
  for (const auto& backend : exact_backends())
    for (const ModelConfig& c : tiny_configs()) {
      TinyModel m(*backend, c);
      Engine e = m.engine({.max_batch = 4, .eos = 2});
      Request r = beams(4, 9, 0.7f);
      r.n = 4;
      const auto best = e.run(std::vector{r})[0];
      ASSERT_EQ(best.size(), 4u);
      for (size_t k = 0; k < best.size(); ++k) {
        Tokens all = r.prompt;
        double sum = 0;
        for (size_t i = 0; i < best[k].tokens.size(); ++i) {
          const auto want = m.logprob(m.logits(all), best[k].tokens[i], 0);
          EXPECT_EQ(best[k].logprobs[i].logprob, want.logprob);  // the cache followed its beam
          sum += want.logprob;
          all.push_back(best[k].tokens[i]);
        }
        EXPECT_NEAR(best[k].score, sum / std::pow(double(best[k].tokens.size()), 0.7), 1e-5);
        EXPECT_GE(best[k ? k - 1 : 0].score, best[k].score);
        for (size_t j = 0; j < k; ++j) EXPECT_NE(best[j].tokens, best[k].tokens);
      }
    }
}

TEST(Beam, WiderIsNoWorseThanGreedyHere) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 8});
  Request greedy = beams(1, 8);
  greedy.sampling.temperature = 0;
  const Completion one = e.run(std::vector{greedy})[0][0];
  double sum = 0;
  for (const TokenLogprob& p : one.logprobs) sum += p.logprob;
  const Completion eight = e.run(std::vector{beams(8, 8)})[0][0];
  EXPECT_GT(eight.score, sum / 8);
}

TEST(Beam, IsTheSameEveryTimeAndBesideOthers) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 4, .eos = 2});
  Request plain{.prompt = tiny_prompt(5)};
  plain.sampling.max_tokens = 4;
  const std::vector<Request> requests{plain, beams(3, 10), plain, beams(4, 6)};
  const auto a = e.run(requests), b = e.run(requests);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i][0].tokens, b[i][0].tokens);
  EXPECT_EQ(a[1][0].tokens, e.run(std::vector{requests[1]})[0][0].tokens);
}

TEST(Beam, LengthPenaltyPrefersLength) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, narrow());
  Engine e = m.engine({.max_batch = 8, .eos = 4});
  const size_t shorter = e.run(std::vector{beams(8, 12, -2)})[0][0].tokens.size();
  const size_t longer = e.run(std::vector{beams(8, 12, 3)})[0][0].tokens.size();
  EXPECT_LT(shorter, longer);
}

TEST(Beam, HonoursBiasMinTokensAndTheContext) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 4, .context = 9, .eos = 2});
  Request r = beams(4, -1);
  r.sampling.min_tokens = 6;
  r.sampling.logit_bias = {{0, -1000}};
  Completion c = e.run(std::vector{r})[0][0];
  EXPECT_EQ(c.tokens.size(), 6u);
  EXPECT_EQ(c.finish_reason, "length");
  EXPECT_EQ(std::count(c.tokens.begin(), c.tokens.end(), 0), 0);
  r = beams(4, 0);
  r.n = 2;
  EXPECT_EQ(e.run(std::vector{r})[0].size(), 2u);
}

}  // namespace
}  // namespace hearth
