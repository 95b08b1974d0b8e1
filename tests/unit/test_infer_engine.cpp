// The engine: the tokens of a sequence are the same without a cache, with it, in chunks, in a batch
// and beside samples of the same prompt; and it stops where it should.
#include <algorithm>
#include <map>
#include <set>

#include "sys/error.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

Request greedy(Tokens prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt), .sampling = {.temperature = 0, .max_tokens = max_tokens}};
}

Request sampled(Tokens prompt, int64_t max_tokens, uint64_t seed) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 1.3f,
                       .top_p = 0.95f,
                       .seed = seed,
                       .max_tokens = max_tokens,
                       .logprobs = 2}};
}

Completion only(Engine& e, const Request& r) { return e.run(std::vector{r})[0][0]; }

// Everything computed anew for each token.
Tokens greedy_without_cache(TinyModel& m, Tokens tokens, int64_t count) {
  Tokens made;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = m.logits(tokens);
    made.push_back(int32_t(std::max_element(x.begin(), x.end()) - x.begin()));
    tokens.push_back(made.back());
  }
  return made;
}

void expect_equal(const Completion& a, const Completion& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob);
    EXPECT_EQ(a.logprobs[i].top, b.logprobs[i].top);
  }
}

TEST(Engine, GreedyEqualsFullRecompute) {
  for (const auto& backend : exact_backends())
    for (const ModelConfig& c : tiny_configs()) {
      TinyModel m(*backend, c);
      Engine e = m.engine();
      const Tokens prompt = tiny_prompt(6);
      const Completion got = only(e, greedy(prompt, 12));
      EXPECT_EQ(got.tokens, greedy_without_cache(m, prompt, 12));
      EXPECT_EQ(got.finish_reason, "length");
      const std::set<int32_t> distinct(got.tokens.begin(), got.tokens.end());
      EXPECT_GT(distinct.size(), 2u) << "a path too dull to prove anything";
    }
}

TEST(Engine, LogprobsEqualFullRecomputeToTheBit) {
  for (const auto& backend : exact_backends())
    for (const ModelConfig& c : tiny_configs()) {
      TinyModel m(*backend, c);
      Engine e = m.engine({.max_batch = 1, .step_tokens = 4});
      Request r = sampled(tiny_prompt(7), 5, 3);
      r.prompt_logprobs = true;
      const Completion got = only(e, r);
      Tokens all = r.prompt;
      all.insert(all.end(), got.tokens.begin(), got.tokens.end());
      ASSERT_EQ(got.prompt_logprobs.size(), 6u);
      ASSERT_EQ(got.logprobs.size(), 5u);
      for (size_t i = 1; i < all.size(); ++i) {
        const TokenLogprob want =
            m.logprob(m.logits({all.begin(), all.begin() + int64_t(i)}), all[i], 2);
        const TokenLogprob& have = i < 7 ? got.prompt_logprobs[i - 1] : got.logprobs[i - 7];
        EXPECT_EQ(have.token, all[i]);
        EXPECT_EQ(have.logprob, want.logprob) << i;
        EXPECT_EQ(have.top, want.top) << i;
      }
    }
}

TEST(Engine, ChunksOfAnySizeGiveTheSame) {
  for (const auto& backend : exact_backends()) {
    TinyModel m(*backend, tiny_configs()[2]);
    const Request r = sampled(tiny_prompt(11), 6, 5);
    Engine whole = m.engine();
    const Completion want = only(whole, r);
    for (int64_t chunk = 1; chunk <= 12; ++chunk) {
      Engine e = m.engine({.max_batch = 1, .step_tokens = chunk});
      SCOPED_TRACE(chunk);
      expect_equal(only(e, r), want);
    }
  }
}

std::vector<Request> mixed_requests() {
  std::vector<Request> all;
  for (int i = 0; i < 7; ++i) {
    const Tokens prompt = tiny_prompt(1 + (i * 5) % 9, i);
    all.push_back(i % 2 ? greedy(prompt, 3 + i) : sampled(prompt, 9 - i, uint64_t(i)));
  }
  all[2].n = 3;
  all[4].sampling.repetition_penalty = 1.5f;
  all[4].sampling.frequency_penalty = 0.5f;
  return all;
}

TEST(Engine, BatchesOfAnySizeGiveTheSame) {
  for (const auto& backend : exact_backends())
    for (const ModelConfig& c : {tiny_configs()[0], tiny_configs()[1]}) {
      TinyModel m(*backend, c);
      const std::vector<Request> requests = mixed_requests();
      Engine one = m.engine({.max_batch = 1});
      std::vector<std::vector<Completion>> want;
      for (const Request& r : requests) want.push_back(one.run(std::vector{r})[0]);
      for (int64_t batch : {1, 2, 3, 4, 8, 16}) {
        SCOPED_TRACE(batch);
        Engine e = m.engine({.max_batch = batch, .step_tokens = 3});
        const auto got = e.run(requests);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].size(), want[i].size());
          for (size_t k = 0; k < got[i].size(); ++k) expect_equal(got[i][k], want[i][k]);
        }
      }
    }
}

TEST(Engine, SamplesOfOnePromptDifferAndShareItsPrefill) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 3});
  Request r = sampled(tiny_prompt(5), 8, 9);
  r.n = 5;
  const auto five = e.run(std::vector{r})[0];
  ASSERT_EQ(five.size(), 5u);
  EXPECT_EQ(e.stats().prompt_tokens, 5);
  EXPECT_EQ(e.stats().generated_tokens, 40);
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(five[i].tokens, five[0].tokens);
  expect_equal(only(e,
                    [&] {
                      Request one = r;
                      one.n = 1;
                      return one;
                    }()),
               five[0]);

  r.sampling.temperature = 0;
  const auto same = e.run(std::vector{r})[0];
  for (const Completion& c : same) EXPECT_EQ(c.tokens, same[0].tokens);
}

TEST(Engine, SamplesOfOnePromptHaveItsQueueTime) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 2});
  for (const int64_t tokens : {1, 4}) {
    Request r = sampled(tiny_prompt(5), tokens, 3);
    r.n = 4;
    const std::vector<Completion> all = e.run(std::vector{r})[0];
    EXPECT_GE(all[0].queue_ms, 0);
    for (const Completion& c : all) EXPECT_EQ(c.queue_ms, all[0].queue_ms);
  }
}

TEST(Engine, SeedsDecide) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine();
  const Request r = sampled(tiny_prompt(4), 12, 1);
  Request other = r;
  other.sampling.seed = 2;
  EXPECT_EQ(only(e, r).tokens, only(e, r).tokens);
  EXPECT_NE(only(e, r).tokens, only(e, other).tokens);
}

TEST(Engine, StopIdsEosAndMinTokens) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine plain = m.engine();
  const Tokens path = only(plain, greedy(tiny_prompt(6), 12)).tokens;
  const int32_t third = path[2];
  const size_t first = size_t(std::find(path.begin(), path.end(), third) - path.begin());
  const Tokens cut(path.begin(), path.begin() + int64_t(first) + 1);

  Request r = greedy(tiny_prompt(6), 12);
  r.sampling.stop_ids = {third};
  Completion c = only(plain, r);
  EXPECT_EQ(c.tokens, cut);
  EXPECT_EQ(c.finish_reason, "stop");

  Engine with_eos = m.engine({.eos = third});
  c = only(with_eos, greedy(tiny_prompt(6), 12));
  EXPECT_EQ(c.tokens, cut);
  EXPECT_EQ(c.finish_reason, "stop");

  r = greedy(tiny_prompt(6), 12);
  r.sampling.ignore_eos = true;
  EXPECT_EQ(only(with_eos, r).tokens, path);

  r = greedy(tiny_prompt(6), 12);
  r.sampling.min_tokens = 8;
  c = only(with_eos, r);
  ASSERT_GE(c.tokens.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NE(c.tokens[i], third);
}

TEST(Engine, EndsWithTheContext) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.context = 10});
  Completion c = only(e, greedy(tiny_prompt(6), -1));
  EXPECT_EQ(c.tokens.size(), 4u);
  EXPECT_EQ(c.finish_reason, "length");
  Engine whole = m.engine();
  EXPECT_EQ(only(whole, greedy(tiny_prompt(6), -1)).tokens,
            greedy_without_cache(m, tiny_prompt(6), 18));
  c = only(e, greedy(tiny_prompt(10), 5));
  EXPECT_TRUE(c.tokens.empty());
  EXPECT_EQ(c.finish_reason, "length");
}

TEST(Engine, ScoresAPromptWithoutMakingAnything) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine();
  Request r = greedy(tiny_prompt(6), 0);
  r.prompt_logprobs = true;
  const Completion c = only(e, r);
  EXPECT_TRUE(c.tokens.empty());
  EXPECT_EQ(c.prompt_logprobs.size(), 5u);
}

TEST(Engine, TellsOfEachTokenAndCancels) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 2});
  std::vector<Request> requests(3, sampled(tiny_prompt(4), 6, 4));
  requests[1].n = 3;
  std::map<std::pair<uint64_t, int>, Tokens> told;
  int ends = 0;
  const auto all = e.run(requests, [&](const TokenEvent& t) {
    told[{t.request, t.sample}].push_back(t.token);
    EXPECT_EQ(t.logprob->token, t.token);
    ends += !t.finish_reason.empty();
    return true;
  });
  EXPECT_EQ(ends, 5);
  for (const auto& [key, tokens] : told)
    EXPECT_EQ(tokens, all[key.first][size_t(key.second)].tokens);

  int seen = 0;
  const auto some =
      e.run(requests, [&](const TokenEvent& t) { return t.request != 1 || ++seen < 3; });
  EXPECT_EQ(some[0][0].tokens, all[0][0].tokens);
  EXPECT_EQ(some[2][0].tokens, all[2][0].tokens);
  size_t made = 0;
  for (const Completion& c : some[1]) {
    EXPECT_EQ(c.finish_reason, "cancelled");
    made += c.tokens.size();
  }
  EXPECT_EQ(made, 3u);
}

void expect_error(Engine& e, const Request& r, const std::string& field) {
  try {
    e.run(std::vector{r});
    ADD_FAILURE() << field << " passed";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("[" + field + "]"), 0u) << error.what();
    EXPECT_TRUE(error.usage());
  }
}

// A listener that throws while requests are taken in: those behind it are told of the failure.
TEST(Engine, TellsTheRequestsBehindAListenerThatThrows) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({});
  int told = 0, failed = 0;
  e.submit(greedy({1, 2}, 0),
           {.done = [](auto, std::exception_ptr) { throw std::runtime_error("enough"); }});
  for (int i = 0; i < 2; ++i)
    e.submit(greedy({1, 2}, 3),
             {.done = [&](auto, std::exception_ptr error) { ++told, failed += bool(error); }});
  EXPECT_THROW(e.step(), std::runtime_error);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(failed, 2);
  EXPECT_EQ(e.stats().used_blocks, 0);
  EXPECT_EQ(only(e, greedy({1, 2}, 3)).tokens.size(), 3u);
}

TEST(Engine, RefusesWhatItCannotRun) {
  const auto backend = make_reference_backend();
  TinyModel m(*backend, tiny_config());
  Engine e = m.engine({.max_batch = 2, .context = 8});
  expect_error(e, greedy({}, 1), "prompt");
  expect_error(e, greedy({1, 23}, 1), "prompt");
  expect_error(e, greedy({1, -1}, 1), "prompt");
  expect_error(e, greedy(tiny_prompt(9), 1), "prompt");
  Request r = greedy({1}, 1);
  r.n = 0;
  expect_error(e, r, "n");
  r.n = 1, r.beams = 3;
  expect_error(e, r, "beams");
  r.n = 3, r.beams = 2;
  expect_error(e, r, "n");
  r = greedy({1}, 1);
  r.sampling.stop = {"x"};
  expect_error(e, r, "stop");
  r = greedy({1}, 1);
  r.sampling.top_k = -4;
  expect_error(e, r, "top_k");
  EXPECT_THROW(m.engine({.context = 25}), Error);
  EXPECT_THROW(m.engine({.max_batch = 0}), Error);

  Engine with_bos = m.engine({.bos = 3});
  EXPECT_EQ(only(with_bos, greedy({}, 4)).tokens, only(with_bos, greedy({3}, 4)).tokens);
}

// --- text ---

// The model has three tokens more than the vocabulary, which stand for nothing.
class EngineText : public testing::Test {
 protected:
  static ModelConfig config() {
    ModelConfig c = tiny_config();
    c.vocab = 260;
    return c;
  }
  // Greedy, printable text.
  Request request(int64_t max_tokens) const {
    Request r = greedy({'o', 'n', 'c', 'e'}, max_tokens);
    for (int32_t i = 0; i < 257; ++i)
      if (i < 32 || i > 126) r.sampling.logit_bias[i] = -1000;
    r.sampling.frequency_penalty = 0.5f;  // so that text does not repeat itself
    return r;
  }

  Tokenizer tokenizer = byte_tokenizer();
  std::unique_ptr<Backend> backend = make_reference_backend();
  TinyModel model{*backend, config()};
  Engine engine = model.engine({.tokenizer = &tokenizer});
};

TEST_F(EngineText, TextIsTheDecodedTokens) {
  std::string streamed;
  const auto c = engine.run(std::vector{request(15)}, [&](const TokenEvent& t) {
    streamed += t.text;
    return true;
  })[0][0];
  EXPECT_EQ(c.tokens.size(), 15u);
  EXPECT_EQ(c.text, tokenizer.decode(c.tokens));
  EXPECT_EQ(streamed, c.text);
}

TEST_F(EngineText, StopStringsEndTheTextBeforeThem) {
  const Completion whole = only(engine, request(15));
  for (size_t at = 0; at < 15; ++at)
    for (size_t size = 1; at + size <= 15 && size <= 4; ++size) {
      Request r = request(15);
      r.sampling.stop = {"\x01never", whole.text.substr(at, size)};
      std::string streamed;
      const Completion c = engine.run(std::vector{r}, [&](const TokenEvent& t) {
        streamed += t.text;
        return true;
      })[0][0];
      const size_t found = whole.text.find(r.sampling.stop[1]);
      EXPECT_EQ(c.text, whole.text.substr(0, found));
      EXPECT_EQ(streamed, c.text);
      EXPECT_EQ(c.tokens.size(), found + size);
      EXPECT_EQ(c.finish_reason, "stop");
    }
}

TEST_F(EngineText, HeldBackTextComesOutAtTheEnd) {
  const Completion whole = only(engine, request(15));
  Request r = request(15);
  r.sampling.stop = {whole.text.substr(12) + "!"};
  const Completion c = only(engine, r);
  EXPECT_EQ(c.text, whole.text);
  EXPECT_EQ(c.finish_reason, "length");
}

TEST_F(EngineText, EosIsNoText) {
  Request r = request(15);
  r.sampling.logit_bias[256] = 1000;
  r.sampling.min_tokens = 3;
  const Completion c = only(engine, r);
  ASSERT_EQ(c.tokens.size(), 4u);
  EXPECT_EQ(c.tokens[3], 256);
  EXPECT_EQ(c.text.size(), 3u);
  EXPECT_EQ(c.finish_reason, "stop");
}

TEST_F(EngineText, TokensWithoutTextAreNeverDrawn) {
  Request r = request(18);
  r.sampling.logit_bias.clear();
  r.sampling.temperature = 100;
  r.sampling.ignore_eos = true;
  r.n = 30;  // 540 draws of 260 tokens, almost uniform
  const auto all = engine.run(std::vector{r})[0];
  size_t drawn = 0;
  for (const Completion& c : all) {
    drawn += c.tokens.size();
    for (const int32_t id : c.tokens) EXPECT_LT(id, 257);
  }
  EXPECT_EQ(drawn, 540u);
}

}  // namespace
}  // namespace hearth
