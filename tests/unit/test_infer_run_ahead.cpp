// Steps launched before the host has seen the tokens of the one before: a device that draws, played
// by the CPU, makes the same completions as a host that draws, whatever ends in between.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <stdexcept>

#include "infer/block_pool.h"
#include "infer/runner.h"
#include "unit/drawing_backend.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

struct Wish {
  Request request;
  int64_t cancel_after = -1;  // tokens; -1: never
};

std::vector<Wish> wishes(int count, uint64_t seed, float temperature) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return int64_t(random() % uint64_t(n)); };
  std::vector<Wish> all;
  for (int i = 0; i < count; ++i) {
    Request r{.prompt = tiny_prompt(1 + below(60)),
              .sampling = {.temperature = temperature,
                           .seed = uint64_t(below(1000)),
                           .max_tokens = 1 + below(90)}};
    r.prompt[0] = int32_t(below(11));
    if (below(3) == 0) r.sampling.stop_ids = {int32_t(below(11)), int32_t(11 + below(11))};
    if (below(3) == 0) r.sampling.logprobs = 0;
    if (below(4) == 0) r.n = 2;
    // How far the second sample is when the first one is cancelled is a matter of scheduling.
    const bool cancelled = below(5) == 0 && r.n == 1;
    all.push_back({std::move(r), cancelled ? 1 + below(8) : -1});
  }
  return all;
}

// All of them, begun a few at a time while others run; the tokens of cancelled ones that were told.
std::vector<std::vector<Tokens>> run_all(Engine& e, const std::vector<Wish>& all) {
  std::vector<std::vector<Tokens>> made(all.size());
  size_t done = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    made[i].resize(size_t(all[i].request.n));
    e.submit(all[i].request, {.token =
                                  [&, i](const TokenEvent& t) {
                                    Tokens& mine = made[i][size_t(t.sample)];
                                    mine.push_back(t.token);
                                    return t.sample != 0 ||
                                           int64_t(mine.size()) != all[i].cancel_after;
                                  },
                              .done = [&](auto, std::exception_ptr error) { done += !error; }});
    if (i % 3 == 2) e.step(), e.step();
  }
  while (e.step()) {}
  EXPECT_EQ(done, all.size());
  return made;
}

TEST(RunAhead, MakesTheSameTokens) {
  for (const int64_t blocks : {blocks_for(256), int64_t(64)})  // the fewer are fought for
    for (const ModelConfig& c : cached_configs()) {
      if (c.logit_softcap > 0) continue;
      const std::vector<Wish> all = wishes(24, 7, 0);
      const auto cpu = make_cpu_backend(1);
      TinyModel plain(*cpu, c);
      DrawingBackend drawing;
      TinyModel ahead(drawing, c);
      const auto spec = [&](TinyModel& m) {
        return EngineSpec{.max_batch = 5,
                          .step_tokens = 16,
                          .cache_bytes = blocks * Runner::block_bytes(c, m.params.dtype())};
      };
      Engine host = plain.engine(spec(plain)), device = ahead.engine(spec(ahead));
      EXPECT_TRUE(run_all(device, all) == run_all(host, all));
      EXPECT_GT(device.stats().followed, 10);
      EXPECT_EQ(host.stats().followed, 0);
      EXPECT_EQ(device.stats().used_blocks, 0);
      EXPECT_EQ(device.stats().running, 0);
    }
}

// A prompt whose samples do not fit beside the running ones waits, and finds its tokens in the
// cache at every step.
TEST(RunAhead, APromptThatWaitsIsCountedOnce) {
  DrawingBackend drawing;
  TinyModel m(drawing, cached_configs()[0]);
  Engine e = m.engine({.max_batch = 4, .step_tokens = 4});
  Request first{.prompt = tiny_prompt(65)}, running{.prompt = tiny_prompt(3)};
  first.sampling.max_tokens = 1, running.sampling.max_tokens = 20;
  run_all(e, {{first}});
  EXPECT_EQ(e.stats().reused_tokens, 0);
  first.n = 2;
  run_all(e, {{running}, {running}, {running}, {first}});
  EXPECT_EQ(e.stats().reused_tokens, 64);
}

// A cache that is full for a while, with a request that waits for blocks, before it has started or
// after it was preempted: steps run ahead until it can start.
TEST(RunAhead, GoesOnBesideRequestsThatCannotStart) {
  const ModelConfig c = cached_configs()[0];
  for (const int64_t prompt : {130, 100}) {
    DrawingBackend drawing;
    TinyModel m(drawing, c);
    Engine e = m.engine({.max_batch = 8,
                         .context = 4 * cache_block,
                         .reuse_prefixes = false,
                         .cache_bytes = 6 * Runner::block_bytes(c, m.params.dtype())});
    Request first{.prompt = tiny_prompt(prompt)};
    first.sampling.temperature = 0, first.sampling.max_tokens = 190 - prompt;
    Request last = first;
    last.prompt = tiny_prompt(prompt, 1), last.sampling.max_tokens = 60;
    const auto want = m.engine({.max_batch = 1}).run(std::vector{first, last});
    std::vector<Completion> got(3);
    const auto ask = [&](const Request& r, size_t i) {
      e.submit(r,
               {.done = [&got, i](auto all, std::exception_ptr) { got[i] = std::move(all[0]); }});
    };
    ask(first, 0), ask(first, 1), ask(last, 2);
    // The first two need all six blocks from 129 tokens each.
    while (got[0].tokens.empty()) e.step();
    EXPECT_GT(e.stats().followed, 45) << prompt;
    EXPECT_EQ(e.stats().preemptions, prompt < 128 ? 1 : 0);
    while (e.step()) {}
    EXPECT_EQ(got[0].tokens, want[0][0].tokens);
    EXPECT_EQ(got[1].tokens, want[0][0].tokens);
    EXPECT_EQ(got[2].tokens, want[1][0].tokens);
    EXPECT_EQ(e.stats().used_blocks, 0);
  }
}

// Whoever speculates plans every step with the tokens at hand: the draws must be the same.
TEST(RunAhead, DrawsByTheBitsOfEachPlace) {
  for (const ModelConfig& c : cached_configs()) {
    if (c.logit_softcap > 0) continue;
    const std::vector<Wish> all = wishes(24, 9, 1.4f);
    DrawingBackend drawing;
    TinyModel m(drawing, c);
    Engine ahead = m.engine({.max_batch = 5, .step_tokens = 16});
    Engine planned = m.engine({.max_batch = 5, .step_tokens = 16, .speculate = 1});
    const auto made = run_all(ahead, all);
    EXPECT_TRUE(made == run_all(planned, all));
    EXPECT_GT(ahead.stats().followed, 10);
    EXPECT_EQ(planned.stats().followed, 0);
    EXPECT_GT(planned.stats().drafted, 0);
    std::set<Tokens> distinct;
    for (const auto& samples : made) distinct.insert(samples.begin(), samples.end());
    EXPECT_GT(distinct.size(), 20u);
  }
}

// With a launch under way: requests cancelled from outside, listeners that throw, new weights.
TEST(RunAhead, LeavesNothingBehind) {
  DrawingBackend drawing;
  TinyModel m(drawing, long_configs()[0]);
  Engine e = m.engine({.max_batch = 4, .step_tokens = 16});
  std::mt19937_64 random(3);
  int ends = 0, begun = 0, thrown = 0;
  for (int round = 0; round < 60; ++round) {
    const Request r{.prompt = tiny_prompt(1 + int64_t(random() % 40)),
                    .sampling = {.temperature = 0, .max_tokens = 40}};
    int told = 0;
    const bool throws = round % 4 == 1;
    const uint64_t id = e.submit(
        r, {.token =
                [&told, throws](const TokenEvent&) {
                  if (throws && ++told == 5) throw std::runtime_error("enough");
                  return true;
                },
            .done = [&](auto, std::exception_ptr error) { ++ends, thrown += bool(error); }});
    ++begun;
    const int64_t before = e.stats().followed;
    for (int i = 0; i < 8; ++i) e.step();
    EXPECT_GT(e.stats().followed, before);
    if (round % 4 == 3) e.cancel(id);
    while (e.step()) {}
    EXPECT_EQ(e.stats().used_blocks, 0);
    EXPECT_EQ(e.stats().running, 0);
    if (round % 7 == 0) e.forget();
  }
  EXPECT_EQ(ends, begun);
  EXPECT_EQ(thrown, 15);
}

}  // namespace
}  // namespace hearth
