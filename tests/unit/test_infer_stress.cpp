// Many random requests at once through an engine with a thread of its own and far too few blocks:
// each gets its end exactly once, in fair order, and every block is free afterwards.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "unit/infer_model.h"

namespace hearth {
namespace {

// HEARTH_STRESS_REQUESTS asks for another number.
int requests_wanted() {
  const char* told = std::getenv("HEARTH_STRESS_REQUESTS");
  return told ? std::max(4, std::atoi(told) / 4 * 4) : 10000;
}

ModelConfig micro() {
  ModelConfig c = tiny_config();
  c.vocab = 260, c.context = 192, c.layers = 1, c.heads = 2, c.kv_heads = 1, c.hidden = 16;
  return c;
}

Request random_request(std::mt19937& bits) {
  const auto up_to = [&](uint32_t n) { return int64_t(bits() % (n + 1)); };
  Request r;
  const int64_t prompt = bits() % 8 ? 1 + up_to(20) : 1 + up_to(150);
  for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(int32_t('a' + up_to(3)));
  r.sampling.temperature = bits() % 3 ? 1.0f : 0.0f;
  r.sampling.seed = bits();
  r.sampling.max_tokens = bits() % 10 ? up_to(12) : up_to(100);
  r.sampling.logprobs = bits() % 6 ? -1 : 1;
  if (bits() % 4 == 0) r.sampling.stop = {std::string(1, char('a' + up_to(25))), "th"};
  r.prompt_logprobs = bits() % 9 == 0;
  if (bits() % 6 == 0) r.n = int(1 + up_to(7));
  if (bits() % 40 == 0) r.beams = r.n = int(2 + up_to(3));
  return r;
}

// What became of one request.
struct Fate {
  int n = 0, beams = 1;
  std::atomic<int> ends{0};
  std::atomic<int> first{0};  // the how manieth to have a token; 0: had none
  int64_t told = 0;           // tokens
  std::vector<Completion> completions;
  std::string failed;
};

class Crowd {
 public:
  Crowd(Engine& e, int requests)
      : engine_(e), fates_(size_t(requests) + 1), ended_(size_t(requests) + 1) {}

  void submit_some(uint32_t seed, int count) {
    std::mt19937 bits(seed);
    for (int i = 0; i < count; ++i) {
      const Request r = random_request(bits);
      Listener l;
      l.token = [this](const TokenEvent& e) {
        Fate& f = fates_[e.request];
        if (f.first == 0) f.first = ++firsts_;
        ++f.told;
        return f.told < 90;  // now and then a listener has heard enough
      };
      const size_t slot = size_t(taken_.fetch_add(1)) + 1;
      l.done = [this, slot](std::vector<Completion> all, std::exception_ptr e) {
        Fate& f = ended_[slot];
        f.completions = std::move(all);
        try {
          if (e) std::rethrow_exception(e);
        } catch (const std::exception& error) { f.failed = error.what(); }
        ++f.ends;
        ++done_;
      };
      ended_[slot].n = r.n, ended_[slot].beams = r.beams;
      const uint64_t id = engine_.submit(r, std::move(l));
      if (bits() % 10 == 0) engine_.cancel(id);
      if (bits() % 10 == 0) engine_.cancel(1 + bits() % id);
    }
  }

  Engine& engine_;
  std::vector<Fate> fates_;  // by id: what its tokens showed
  std::vector<Fate> ended_;  // in the order they were handed in
  std::atomic<int> taken_{0}, done_{0}, firsts_{0};
};

void crowd_ends_well(const EngineSpec& spec) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, micro());
  Engine engine = m.engine(spec);
  const int requests = requests_wanted();
  Crowd crowd(engine, requests);
  const auto begin = std::chrono::steady_clock::now();
  {
    const EngineThread stepping(engine);
    std::vector<std::jthread> clients;
    for (uint32_t i = 0; i < 4; ++i)
      clients.emplace_back([&crowd, requests, i] { crowd.submit_some(i + 1, requests / 4); });
    clients.clear();
    while (crowd.done_ < requests) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int64_t made = 0;
  for (size_t i = 1; i < crowd.ended_.size(); ++i) {
    const Fate& f = crowd.ended_[i];
    ASSERT_EQ(f.ends, 1) << i;
    ASSERT_EQ(f.failed, "") << i;
    ASSERT_EQ(int(f.completions.size()), f.n) << i;
    for (const Completion& c : f.completions) {
      ASSERT_TRUE(c.finish_reason == "stop" || c.finish_reason == "length" ||
                  c.finish_reason == "cancelled");
      made += int64_t(c.tokens.size());
    }
  }
  int64_t told = 0;
  for (const Fate& f : crowd.fates_) told += f.told;
  EXPECT_EQ(told, made);

  // Nobody is kept waiting by those who came later, beyond what a few batches hold of them: a long
  // prompt comes in over several steps, and may give way on the way.
  std::vector<int> first;
  for (const Fate& f : crowd.fates_)
    if (f.first > 0) first.push_back(f.first);
  EXPECT_GT(int(first.size()), requests / 2);
  for (size_t i = 0; i < first.size(); ++i) {
    int overtaken = 0;
    for (size_t k = i + 1; k < first.size(); ++k) overtaken += first[k] < first[i];
    ASSERT_LE(overtaken, 4 * spec.max_batch) << i;
  }
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.used_blocks, 0);
  EXPECT_GT(s.preemptions, 0);
  EXPECT_GT(s.reused_tokens, 0);
  EXPECT_EQ(s.drafted > 0, spec.speculate > 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{} requests, {} tokens, {} gave way, {:.1f} s; {} of {} blocks free at the end\n",
             requests, made, s.preemptions, took.count(), s.blocks - s.used_blocks, s.blocks);
}

const Tokenizer& tokenizer() {
  static const Tokenizer t = byte_tokenizer();
  return t;
}

int64_t bytes_of(int64_t blocks) { return blocks * 2 * 1 * cache_block * 8 * 4; }

TEST(EngineStress, EveryRequestEndsAndEveryBlockIsFree) {
  crowd_ends_well(
      {.max_batch = 12, .step_tokens = 64, .cache_bytes = bytes_of(6), .tokenizer = &tokenizer()});
}

TEST(EngineStress, AlsoWithSpeculation) {
  crowd_ends_well({.max_batch = 12,
                   .step_tokens = 64,
                   .speculate = 3,
                   .cache_bytes = bytes_of(5),
                   .tokenizer = &tokenizer()});
}

TEST(EngineThread, EndsWithWorkLeft) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, micro());
  Engine engine = m.engine();
  std::atomic<int> cancelled{0};
  {
    const EngineThread stepping(engine);
    for (int i = 0; i < 50; ++i)
      engine.submit({.prompt = {1, 2, 3}},
                    {.done = [&](std::vector<Completion> all, std::exception_ptr) {
                      cancelled += all[0].finish_reason == "cancelled";
                    }});
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(engine.stats().used_blocks, 0);
}

TEST(Engine, RequestsJoinAndLeaveWhileOthersRun) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, micro());
  Engine engine = m.engine({.max_batch = 3});
  std::vector<std::string> order;
  const auto submit = [&](const std::string& name, int64_t tokens) {
    Request r{.prompt = {1, 2, 3}};
    r.sampling.max_tokens = tokens, r.sampling.ignore_eos = true;
    return engine.submit(r,
                         {.done = [&order, name](std::vector<Completion> all, std::exception_ptr) {
                           order.push_back(name + " " + all[0].finish_reason);
                         }});
  };
  EXPECT_FALSE(engine.step());
  submit("long", 40);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(engine.step());
  const uint64_t endless = submit("endless", -1);
  submit("short", 3);
  submit("late", 2);
  EXPECT_TRUE(engine.step());
  EXPECT_EQ(engine.stats().running, 3);
  EXPECT_EQ(engine.stats().waiting, 1);
  while (order.size() < 2) engine.step();
  engine.cancel(endless);
  while (engine.step()) {}
  const std::vector<std::string> want{"short length", "late length", "endless cancelled",
                                      "long length"};
  EXPECT_EQ(order, want);
  EXPECT_FALSE(engine.step());
}

}  // namespace
}  // namespace hearth
