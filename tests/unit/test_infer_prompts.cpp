// How prompts share steps with sequences that decode: in how many steps a prompt is read, and how
// much of a step prompts may take.
#include <bit>

#include "infer/prefill_budget.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

ModelConfig roomy() {
  ModelConfig c = tiny_config();
  c.context = 2048;
  return c;
}

// The steps from the submission of a prompt to its first token.
int64_t steps_to_first(Engine& e, const std::vector<int32_t>& prompt) {
  bool first = false;
  Request r{.prompt = prompt};
  r.sampling.max_tokens = 1;
  e.submit(r, {.token = [&](const TokenEvent&) { return first = true; }});
  const int64_t before = e.stats().steps;
  while (!first) e.step();
  return e.stats().steps - before;
}

// Programs run a power of two of rows, so a prompt may be divided to leave less padding. Each part
// must be worth a step: beside 63 others a program of 64 rows has a single row for a prompt.
TEST(Prompts, TakeFewStepsBesideAnyNumberOfOthers) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, roomy());
  Engine e = m.engine({.max_batch = 130, .reuse_prefixes = false});
  int64_t decoding = 0;
  for (const int64_t others : {0, 1, 20, 31, 32, 33, 40, 56, 60, 62, 63, 64, 65, 100, 127}) {
    for (; decoding < others; ++decoding) {
      Request r{.prompt = {int32_t(decoding % 23)}};
      r.sampling.temperature = 0, r.sampling.max_tokens = 2000;
      e.submit(r, {});
    }
    e.step();
    ASSERT_EQ(e.stats().running, others);
    for (const int64_t size : {2, 10, 33, 50, 63, 64, 65, 100, 200, 380}) {
      // Each part at least halves the program that the rest needs, down to 64 rows.
      int64_t most = 1;
      for (auto rows = int64_t(std::bit_ceil(uint64_t(others + size))); rows > 64; rows /= 2)
        ++most;
      EXPECT_LE(steps_to_first(e, tiny_prompt(size)), most) << size << " beside " << others;
    }
  }
}

constexpr double target = 0.05;  // seconds

// Steps of a machine take a time that grows with their rows.
struct Machine {
  double base, per_row;
  double step(int64_t rows) const { return base + per_row * double(std::bit_ceil(uint64_t(rows))); }
};
constexpr Machine card{0.005, 0.00001}, processor{0.02, 0.0006}, slow{0.2, 0.005};

// Prompts wait all the time: the rows of the steps beside `decoding` sequences.
std::vector<int64_t> fed(PrefillBudget& budget, const Machine& machine, int64_t decoding,
                         int steps) {
  std::vector<int64_t> all;
  for (int i = 0; i < 3; ++i) budget.note(decoding, machine.step(decoding));
  for (int i = 0; i < steps; ++i) {
    all.push_back(decoding + budget.prompt_rows(decoding));
    budget.note(all.back(), machine.step(all.back()));
  }
  return all;
}

TEST(PrefillBudget, IsAllOfTheStepWithoutATarget) {
  PrefillBudget fixed(512, 0), adaptive(512, target);
  for (PrefillBudget* b : {&fixed, &adaptive}) {
    for (int i = 0; i < 9; ++i) b->note(512, 1);
    EXPECT_EQ(b->prompt_rows(0), 512);
  }
  EXPECT_EQ(fixed.prompt_rows(40), 472);
  EXPECT_LT(adaptive.prompt_rows(40), 472);
}

TEST(PrefillBudget, FillsStepsUpToTheTarget) {
  for (const Machine& machine : {card, processor, slow})
    for (const int64_t decoding : {1, 8, 33, 63, 200}) {
      SCOPED_TRACE(testing::Message() << machine.base << " beside " << decoding);
      PrefillBudget budget(2048, target);
      const double most = std::max(target, 2 * machine.step(decoding));
      const auto least = int64_t(std::bit_ceil(uint64_t(decoding + 16)));
      const std::vector<int64_t> all = fed(budget, machine, decoding, 12);
      for (const int64_t rows : all) {
        EXPECT_GE(rows, decoding + 16);
        EXPECT_TRUE(rows == least || machine.step(rows) <= most) << rows;
      }
      const int64_t last = all.back();
      EXPECT_TRUE(last == 2048 || machine.step(2 * last) > most) << last;
    }
}

TEST(PrefillBudget, FollowsAMachineThatChanges) {
  PrefillBudget budget(2048, target);
  EXPECT_EQ(fed(budget, card, 64, 12).back(), 2048);
  // One step that something else delayed.
  budget.note(2048, 10);
  EXPECT_EQ(budget.prompt_rows(64), 2048 - 64);
  const Machine deep{0.005, 0.0001};  // the texts are long now
  EXPECT_EQ(fed(budget, deep, 64, 40).back(), 256);
  // Sizes that were too slow are tried again after a while.
  for (int i = 0; i < 1100; ++i) budget.note(64, card.step(64));
  EXPECT_EQ(fed(budget, card, 64, 12).back(), 2048);
}

TEST(PrefillBudget, SoonTriesASizeAgainThatOneStepSpeaksAgainst) {
  PrefillBudget budget(2048, target);
  budget.note(8, card.step(8));
  budget.note(64, 0.8);  // disturbed
  EXPECT_EQ(budget.prompt_rows(8), 24);
  EXPECT_EQ(fed(budget, card, 8, 40).back(), 2048);
}

// Under steady load no step is without prompts, so what it would take follows from others, such as
// that of the first prompts.
TEST(PrefillBudget, NeedsNoStepWithoutPrompts) {
  PrefillBudget budget(2048, target);
  const Machine machine{0.09, 0.001};
  budget.note(512, machine.step(512));
  int64_t rows = 0;
  for (int i = 0; i < 40; ++i) {
    rows = 9 + budget.prompt_rows(9);
    budget.note(rows, machine.step(rows));
  }
  EXPECT_EQ(rows, 64);  // 128 would take more than twice the time of 16
}

TEST(Prompts, BudgetsChangeNoToken) {
  for (const auto& backend : exact_backends()) {
    TinyModel m(*backend, roomy());
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back({.prompt = tiny_prompt(1 + i * i * 7 % 90, i)});
      requests.back().sampling.seed = uint64_t(i), requests.back().sampling.max_tokens = 5 + i;
    }
    Engine fixed = m.engine({.max_batch = 6, .step_tokens = 128});
    const auto want = fixed.run(requests);
    EXPECT_LE(fixed.stats().prompt_rows, 128);
    for (const double interval : {1e-9, 1e9}) {
      Engine e = m.engine({.max_batch = 6, .step_tokens = 128, .interval = interval});
      const auto got = e.run(requests);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i][0].tokens, want[i][0].tokens) << i;
      EXPECT_GT(e.stats().prompt_rows, 0);
    }
  }
}

}  // namespace
}  // namespace hearth
