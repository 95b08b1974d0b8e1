// Constraints whose masks several threads compute while others advance.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "grammar/constraint.h"
#include "grammar/json_schema.h"
#include "unit/infer_model.h"
#include "unit/schema_cases.h"

namespace hearth {
namespace {

const char* list = R"({"type": "array", "maxItems": 3, "items": {"type": "object",
  "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": ["xy", 12, null]}},
  "required": ["b"]}})";

TEST(TaskThreads, RunSeveralTasksAtOnce) {
  std::atomic<int> begun = 0;
  std::promise<void> all;
  const std::shared_future<void> met = all.get_future().share();
  std::promise<bool> results[3];
  TaskThreads threads(3);
  for (std::promise<bool>& r : results)
    threads.post([&] {
      if (++begun == 3) all.set_value();
      r.set_value(met.wait_for(std::chrono::minutes(1)) == std::future_status::ready);
    });
  for (std::promise<bool>& r : results) EXPECT_TRUE(r.get_future().get());
}

// Each thread makes states that the others look for.
TEST(TokenTrie, ThreadsWalkOneAutomaton) {
  const Tokenizer t = byte_tokenizer();
  const TokenTrie trie(t);
  const auto network =
      std::make_shared<const Network>(schema_grammar(SchemaJson::parse(list), "schema"));
  Automaton alone(network);
  std::string text;
  std::mt19937 random(5);
  for (StateId s = alone.start(); !alone.ended(s) && text.size() < 60;) {
    std::string next;
    for (char b = 1; b < 127; ++b)
      if (alone.step(s, uint8_t(b)) != Automaton::dead) next += b;
    text += next[random() % next.size()];
    s = alone.step(s, uint8_t(text.back()));
  }
  const auto masks_after = [&](Automaton& a, size_t length) {
    int64_t work = 1'000'000;
    const StateId s = a.read(a.start(), std::string_view(text).substr(0, length), work);
    return trie.allowed(a, s, false, work).bits;
  };
  std::vector<std::vector<uint32_t>> want;
  for (size_t n = 0; n <= text.size(); ++n) want.push_back(masks_after(alone, n));
  for (int round = 0; round < 10; ++round) {
    Automaton shared(network);
    std::atomic<int> wrong = 0;
    {
      std::vector<std::jthread> threads;
      for (size_t k = 0; k < 4; ++k)
        threads.emplace_back([&, k] {
          for (size_t i = 0; i <= text.size(); ++i) {
            const size_t n = (i * 7 + k * 13) % (text.size() + 1);
            wrong += masks_after(shared, n) != want[n];
          }
        });
    }
    EXPECT_EQ(wrong.load(), 0);
  }
}

// With states that are forgotten all the time, and with states that are kept.
TEST(Constraint, ManyTextsAdvanceWhileMasksAreComputed) {
  const SchemaJson schema = SchemaJson::parse(list);
  for (const int64_t bytes : {int64_t(1) << 14, int64_t(24) << 20}) {
    ConstraintMaker maker(byte_tokenizer(), {.state_bytes = bytes, .threads = 3});
    const auto c = maker.make({.kind = ConstraintSpec::Kind::json_schema, .text = list});
    std::atomic<int> wrong = 0;
    {
      std::vector<std::jthread> threads;
      for (uint64_t k = 0; k < 4; ++k)
        threads.emplace_back([&, k] {
          std::mt19937_64 random(k);
          for (int i = 0; i < 6; ++i) {
            ConstraintCursor cursor(c, false);
            std::string text;
            while (!cursor.ended()) {
              const TokenMask& mask = cursor.mask();
              std::vector<int32_t> some;
              for (int32_t id = 0; id < 128; ++id)
                if (mask.has(id)) some.push_back(id);
              if (some.empty()) break;
              const int32_t next = some[random() % some.size()];
              text += char(next);
              cursor.accept(next);
            }
            wrong += !SchemaJudge(schema).fits(SchemaJson::parse(text, nullptr, false));
          }
        });
    }
    EXPECT_EQ(wrong.load(), 0);
  }
}

}  // namespace
}  // namespace hearth
