// A short run of every fuzz target (tests/fuzz): its seeds must be taken, and a fixed number of
// changed ones must be taken or refused, nothing else.
#include "fuzz.h"

#include <gtest/gtest.h>

namespace hearth::fuzz {
namespace {

class Fuzz : public testing::TestWithParam<Target> {};

int run(const Target& target, const std::string& input) {
  return target.run(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

TEST_P(Fuzz, SeedsAndChangedSeeds) {
  constexpr uint64_t changed = 2000;
  const Target target = GetParam();
  const Seeds seeds = target.seeds();
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i) EXPECT_EQ(run(target, seeds[i]), 1) << "seed " << i;
  size_t refused = run(target, "") == 0;
  for (uint64_t i = 0; i < changed; ++i) {
    const std::string& seed = seeds[i % seeds.size()];
    refused += run(target, mutated(seed, seeds[(i + 1) % seeds.size()], i)) == 0;
  }
  EXPECT_GT(refused, changed / 20) << "a parser that takes nearly everything checks nothing";
}

TEST(FuzzMutation, IsTheSameForTheSameSeed) {
  EXPECT_EQ(mutated("some input", "other", 7), mutated("some input", "other", 7));
  EXPECT_NE(mutated("some input", "other", 7), mutated("some input", "other", 8));
}

INSTANTIATE_TEST_SUITE_P(Parsers, Fuzz, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth::fuzz
