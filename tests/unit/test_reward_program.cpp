// Reward programs: what they answer, and what happens when they misbehave.
#include "rewards/reward_program.h"

#include <gtest/gtest.h>

#include "reward_case.h"
#include "sys/error.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

// Answers 1 where the completion holds "good", and misbehaves where it says so.
constexpr const char* judge = R"(while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in
    *'"completion":"hang'*) sleep 100 ;;
    *'"completion":"die'*) exit 3 ;;
    *'"completion":"rubbish'*) echo 'oh well' ;;
    *'"completion":"nan'*) echo "{\"id\":$id,\"reward\":NaN}" ;;
    *'"completion":"other'*) echo '{"id":-1,"reward":1}' ;;
    *'"completion":"none'*) echo "{\"id\":$id,\"reward\":null}" ;;
    *'"completion":"good'*) echo "{\"id\":$id,\"reward\":1}" ;;
    *) echo "{\"id\":$id,\"reward\":0.25}" ;;
  esac
done
)";

TEST(RewardProgram, WhatMisbehavesIsCountedNamedAndReplaced) {
  RewardFolder folder;
  int warnings = 0;
  RewardProgram p({.command = folder.script("judge", judge),
                   .timeout_s = 3,
                   .start_s = 0,
                   .warn = [&](const std::string&) { ++warnings; }});
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", 3}});
  const GroupScores s = p.score(
      row, texts({"good", "bad", "die", "good", "rubbish", "hang", "nan", "other", "none", "good"}),
      0);
  EXPECT_EQ(s, (GroupScores{1, 0.25, {}, 1, {}, {}, {}, {}, {}, 1}));
  const RewardProgramCounts c = p.counts();
  EXPECT_EQ(c.answered, 4);
  EXPECT_EQ(c.failed, 5);
  EXPECT_EQ(c.abstained, 1);
  EXPECT_EQ(c.died, 2);
  EXPECT_EQ(c.hung, 2);
  EXPECT_EQ(c.rubbish, 6);
  EXPECT_EQ(c.other_id, 2);
  EXPECT_EQ(warnings, 4);  // the first of each kind: died, rubbish, hung, another id
  const RewardFailures f = p.failures();
  EXPECT_EQ(f.asked, 10);
  EXPECT_EQ(f.failed, 5);
  const std::vector<std::pair<std::string, int64_t>> kinds{{"answers with another id", 2},
                                                           {"answers without a valid reward", 4},
                                                           {"died", 2},
                                                           {"no answer in time", 2},
                                                           {"answers of null", 1}};
  EXPECT_EQ(f.kinds, kinds);
  EXPECT_EQ(c.missing, 0);
  EXPECT_EQ(c.replaced, 10);
}

TEST(RewardProgram, OneThatIsMissingFailsUpToTheLimit) {
  const PromptRow row = row_of({{"prompt", "q"}});
  const auto fails_after = [&](int64_t limit) {
    RewardProgram p({.command = "/no/such/judge --strict", .max_failures = limit});
    int64_t n = 0;
    try {
      for (; n < 20; ++n) EXPECT_EQ(p.score(row, texts({"x"}), 0), GroupScores(1));
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("/no/such/judge --strict"), std::string::npos);
      EXPECT_NE(std::string(e.what()).find("could not be started"), std::string::npos);
    }
    EXPECT_EQ(p.counts().missing, 2 * p.counts().failed);
    return n;
  };
  EXPECT_EQ(fails_after(3), 3);
  EXPECT_EQ(fails_after(0), 0);
  EXPECT_EQ(fails_after(-1), 20);
}

TEST(RewardProgram, CountsGoOnInAnotherProcessOfTheRun) {
  const PromptRow row = row_of({{"prompt", "q"}});
  const RewardSpec spec{.rewards = {"length:4", "program:/no/such/judge"}, .max_failures = 3};
  nlohmann::json counted;
  {
    Rewards first(spec);
    first.submit(row, texts({"x", "y"})).get();
    counted = nlohmann::json::parse(first.counted().dump());
  }
  Rewards second(spec);
  second.count_on(counted, "here");
  EXPECT_EQ(second.counted(), counted);
  EXPECT_EQ(second.troubles()["program:/no/such/judge"]["failed"], 2);
  second.submit(row, texts({"x"})).get();
  EXPECT_EQ(second.troubles()["program:/no/such/judge"]["missing"], 6);
  second.count_on(counted, "here");  // the run goes back to a checkpoint
  EXPECT_EQ(second.counted(), counted);
  second.submit(row, texts({"x"})).get();
  EXPECT_THROW(second.submit(row, texts({"x"})).get(), Error);  // the fourth of the run
  EXPECT_THROW(second.count_on(nlohmann::json::array(), "here"), Error);
  counted[1]["failed"] = -1;
  EXPECT_THROW(second.count_on(counted, "here"), Error);
}

TEST(RewardProgram, WhatItSaysOnStderrIsHeard) {
  RewardFolder folder;
  const PromptRow row = row_of({{"prompt", "q"}});
  const std::string dies = folder.script(
      "dies",
      "read -r line\necho 'one thing' >&2\nprintf 'no table \\377 there\\n\\n' >&2\nexit 1\n");
  RewardProgram p({.command = dies, .max_failures = 0});
  std::string what;
  try {
    p.score(row, texts({"x"}), 0);
  } catch (const Error& e) { what = e.what(); }
  EXPECT_NE(what.find("its stderr ends with: no table ? there"), what.npos) << what;
  EXPECT_EQ(p.troubles()["stderr"], "no table ? there");
  // More than a pipe holds, before and after each answer, holds nothing up.
  const std::string talks = folder.script("talks", R"(n=0
while read -r line; do
  n=$((n + 1))
  head -c 300000 /dev/zero >&2
  echo "{\"id\":$n,\"reward\":$n}"
  head -c 300000 /dev/zero >&2
done
)");
  RewardProgram q({.command = talks, .timeout_s = 60});
  EXPECT_EQ(q.score(row, texts({"x", "y", "z"}), 0), (GroupScores{1, 2, 3}));
  EXPECT_FALSE(q.troubles().contains("stderr"));
  // One that never stops talking and never answers has hung all the same.
  const std::string floods = folder.script("floods", "while :; do echo x >&2; done\n");
  RewardProgram r({.command = floods, .timeout_s = 0.2, .start_s = 0});
  EXPECT_EQ(r.score(row, texts({"x"}), 0), (GroupScores{{}}));
  EXPECT_GT(r.counts().hung, 0);
}

TEST(RewardProgram, AFailureLeavesNoRewardWhateverTheOthersSay) {
  RewardFolder folder;
  const std::string program = folder.script("judge", judge);
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", "good"}});
  Rewards r({.rewards = {"exact", "program:" + program + "@0.5"}, .workers = 3, .timeout_s = 5});
  std::vector<std::future<GroupRewards>> all;
  for (int i = 0; i < 12; ++i) all.push_back(r.submit(row, texts({"good", "die", "bad"})));
  for (auto& f : all) {
    const GroupRewards g = f.get();
    EXPECT_EQ(g.total, (GroupScores{1.5, {}, 0.125}));
    EXPECT_EQ(g.parts[0].size(), 3u);
    EXPECT_EQ(g.parts[1].size(), 2u);
  }
  EXPECT_EQ(r.troubles()["program:" + program]["failed"], 12);
  EXPECT_EQ(r.troubles()["program:" + program]["died"], 24);
}

// Completions of one group are asked side by side; what they got stays in their order.
TEST(RewardProgram, WorkersShareAGroup) {
  RewardFolder folder;
  const std::string together = (folder.path / "asked").string();
  fs::create_directory(together);
  const std::string program = folder.script("judge", "asked=" + together + R"sh(
while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  r=$(printf '%s' "$line" | sed 's/.*"completion":"\([0-9]*\)".*/\1/')
  : >$asked/$$
  for i in $(seq 400); do [ $(ls $asked | wc -l) -ge 3 ] && break; sleep 0.05; done
  [ $(ls $asked | wc -l) -ge 3 ] || exit 1
  echo "{\"id\":$id,\"reward\":$r}"
done
)sh");
  const PromptRow row = row_of({{"prompt", "q"}});
  Rewards r({.rewards = {"program:" + program}, .workers = 3, .timeout_s = 60});
  const GroupRewards g = r.submit(row, texts({"1", "2", "3"})).get();
  EXPECT_EQ(g.total, (GroupScores{1, 2, 3}));
  EXPECT_EQ(g.parts, (std::vector<std::vector<double>>{{1, 2, 3}}));
}

TEST(RewardProgram, OneThatStartsSlowlyIsWaitedFor) {
  RewardFolder folder;
  const std::string program = folder.script("judge", std::string("sleep 4\n") + judge);
  const PromptRow row = row_of({{"prompt", "q"}});
  RewardProgram p({.command = program, .timeout_s = 3, .start_s = 60});
  EXPECT_EQ(p.score(row, texts({"good", "bad"}), 0), (GroupScores{1, 0.25}));
  EXPECT_EQ(p.counts().hung, 0);
}

}  // namespace
}  // namespace hearth
