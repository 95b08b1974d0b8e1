// Ids below the vocabulary's size that have no token: generation never samples them, and rollouts,
// which sample as they train, give them no text.
#include "unit/drawing_backend.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

// Byte i has the id 2 i; odd ids have no token.
Tokenizer sparse_tokenizer() {
  VocabularyParts parts{.where = "test"};
  for (int i = 0; i < 256; ++i) parts.tokens.push_back({std::string(1, char(i)), int32_t(2 * i)});
  parts.added = {{"<|end|>", 512}};
  parts.eos = 512;
  return Tokenizer(make_vocabulary(std::move(parts)));
}

// With rows beyond the tokenizer's last id.
ModelConfig config() {
  ModelConfig c = tiny_config();
  c.vocab = 520, c.context = 64;
  return c;
}

Request random_text(uint64_t seed, int n) {
  return {.prompt = {2, 4, 6},
          .sampling = {.temperature = 100, .seed = seed, .max_tokens = 20, .ignore_eos = true},
          .n = n};  // almost uniform
}

class UnusedIds : public testing::Test {
 protected:
  void expect_used(const Completion& c) const {
    EXPECT_EQ(c.tokens.size(), 20u);
    for (const int32_t id : c.tokens) EXPECT_TRUE(tokenizer.has(id)) << id;
    EXPECT_EQ(c.text, tokenizer.decode(c.tokens));
  }

  const Tokenizer tokenizer = sparse_tokenizer();
};

TEST_F(UnusedIds, AreNeverSampled) {
  const auto cpu = make_cpu_backend(1);
  DrawingBackend drawing;
  for (Backend* backend : {cpu.get(), static_cast<Backend*>(&drawing)}) {
    TinyModel m(*backend, config());
    Engine e = m.engine({.max_batch = 4, .tokenizer = &tokenizer});
    std::vector<Request> requests{random_text(1, 1), random_text(2, 3), random_text(3, 1)};
    requests[2].sampling.logprobs = 1;
    for (const bool greedy : {false, true}) {
      Request liked = random_text(4, 1);  // an unused id is the likeliest
      liked.sampling.logit_bias = {{1, 1000}};
      if (greedy) liked.sampling.temperature = 0;
      requests.push_back(liked);
    }
    Request plain = random_text(5, 1), beams = random_text(6, 1);
    plain.sampling.temperature = 0, beams.beams = 3;
    requests.push_back(plain), requests.push_back(beams);
    const auto all = e.run(requests);
    for (const auto& samples : all)
      for (const Completion& c : samples) expect_used(c);

    Engine drafts = m.engine({.max_batch = 4, .speculate = 3, .tokenizer = &tokenizer});
    const auto same = drafts.run(requests);
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t k = 0; k < all[i].size(); ++k)
        EXPECT_EQ(same[i][k].tokens, all[i][k].tokens) << i;
  }
}

// Their mask never changes: it is sent once per row, not at every step.
TEST_F(UnusedIds, MasksStayOnTheDevice) {
  DrawingBackend drawing;
  TinyModel m(drawing, config());
  Engine e = m.engine({.max_batch = 4, .tokenizer = &tokenizer});
  const std::vector<Request> requests{random_text(1, 1), random_text(2, 3)};
  for (const auto& samples : e.run(requests))
    for (const Completion& c : samples) expect_used(c);
  const int64_t once = drawing.mask_bytes, row = (config().vocab + 31) / 32 * 4;
  EXPECT_GT(once, 0);
  EXPECT_LE(once, 2 * 4 * row);
  e.run(requests);
  EXPECT_EQ(drawing.mask_bytes, once);
  // A token that stops the text may come next although it has none: another mask.
  Request stops = random_text(3, 1);
  stops.sampling.stop_ids = {1};
  e.run(std::vector{stops});
  EXPECT_EQ(drawing.mask_bytes, once + 2 * row);
  EXPECT_GT(e.stats().followed, 30);
}

TEST_F(UnusedIds, MayStopTheText) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, config());
  Engine e = m.engine({.tokenizer = &tokenizer});
  Request r = random_text(1, 1);
  r.sampling.logit_bias = {{1, 1000}, {3, 2000}};
  r.sampling.stop_ids = {1};
  r.sampling.temperature = 0, r.sampling.min_tokens = 2;
  const Completion c = e.run(std::vector{r})[0][0];
  ASSERT_EQ(c.tokens.size(), 3u);
  EXPECT_EQ(c.tokens[2], 1);
  EXPECT_EQ(c.finish_reason, "stop");
  EXPECT_EQ(c.text, tokenizer.decode(std::span(c.tokens).first(2)));
}

// Their probability in training is not zero, and neither is it in what is trained on.
TEST_F(UnusedIds, AreSampledWithoutTextInRollouts) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, config());
  Engine e = m.engine({.max_batch = 8, .tokenizer = &tokenizer});
  Request r = random_text(7, 8);
  r.sampling.temperature = 1;
  r.sampling.logprobs = 0, r.sampling.logprobs_at_temperature = true;
  int64_t unused = 0;
  const auto all = e.run(std::vector{r});
  for (const Completion& c : all[0]) {
    ASSERT_EQ(c.tokens.size(), 20u);
    Tokens whole = r.prompt, with_text;
    whole.insert(whole.end(), c.tokens.begin(), c.tokens.end());
    for (const int32_t id : c.tokens)
      if (tokenizer.has(id))
        with_text.push_back(id);
      else
        ++unused;
    EXPECT_EQ(c.text, tokenizer.decode(with_text));
    const std::vector<float> nll = m.nll(whole);
    for (size_t k = 0; k < c.tokens.size(); ++k)
      EXPECT_EQ(c.logprobs[k].logprob, -nll[r.prompt.size() + k - 1]);
  }
  EXPECT_GT(unused, 10);
}

}  // namespace
}  // namespace hearth
