// pretrain --head-schedule: which steps tie the two matrices, resuming around every change, and the
// settings that cannot work.
#include <fmt/format.h>

#include "e2e/short_runs.h"
#include "formats/safetensors.h"

namespace hearth {
namespace {

// Five steps, of which the first two and the last are tied.
const Arguments changing{"--tied=false", "--head-schedule", "0:tied,2:untied,4:tied"};

std::string bytes_of(const Safetensors& file, const std::string& ending) {
  for (const auto& [name, tensor] : file.tensors())
    if (name.ends_with(ending)) return std::string(to_text(tensor.bytes));
  ADD_FAILURE() << "no tensor " << ending;
  return {};
}
std::string head_of(const fs::path& checkpoint) {
  return bytes_of(Safetensors(checkpoint / "model.safetensors"), "lm_head.weight");
}
std::string table_of(const fs::path& checkpoint) {
  return bytes_of(Safetensors(checkpoint / "model.safetensors"), "embed_tokens.weight");
}

Arguments with(const ShortRuns& runs, const fs::path& at, const Arguments& more) {
  return runs.arguments("pretrain", at) + more;
}

void expect_same_files(const fs::path& whole, const fs::path& parts) {
  for (const char* file : {"log.jsonl", "samples.jsonl", "latest/model.safetensors",
                           "latest/state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;
}

TEST(HeadSchedule, CheckpointsOfTiedStepsHaveTwoEqualMatrices) {
  const ShortRuns runs;
  const fs::path at = runs.folder / "run";
  const Ran r = run(runs.folder, with(runs, at, changing + Arguments{"--keep", "9"}));
  ASSERT_EQ(r.status, 0) << r.err;
  for (int step = 1; step <= 5; ++step) {
    SCOPED_TRACE(step);
    const fs::path checkpoint = at / fmt::format("checkpoints/step-{:08}", step);
    const bool tied = step <= 2 || step == 5;
    EXPECT_EQ(head_of(checkpoint) == table_of(checkpoint), tied);
    if (!fs::exists(checkpoint / "state/optimizer.safetensors")) continue;  // of the best one
    const Safetensors state(checkpoint / "state", "optimizer");
    for (const std::string moment : {"moment1", "moment2"})
      EXPECT_EQ(
          bytes_of(state, moment + ".head.weight") == bytes_of(state, moment + ".embed.weight"),
          tied)
          << moment;
  }
}

TEST(HeadSchedule, ResumesToTheBitAroundEveryChange) {
  const ShortRuns runs;
  int n = 0;
  for (const auto& [settings, stops] :
       {std::pair{"", std::vector{1, 2, 3, 4}},
        {"--optimizer adamw-8bit --dtype bf16 --tokens-per-step 64", {2, 4}},
        {"--optimizer normuon --dtype fp8", {2, 4}},
        {"--optimizer lion --spike-z 3 --clip 0.1", {2, 3}}}) {
    SCOPED_TRACE(settings);
    const Arguments more = changing + words(settings);
    const fs::path whole = runs.folder / fmt::format("whole-{}", n++);
    const Ran all = run(runs.folder, with(runs, whole, more));
    ASSERT_EQ(all.status, 0) << all.err;
    for (const int stop : stops) {
      SCOPED_TRACE(stop);
      const fs::path parts = runs.folder / fmt::format("parts-{}", n++);
      const Arguments first = with(runs, parts, more);
      ASSERT_EQ(
          run(runs.folder, first + Arguments{"--stop-after-step", std::to_string(stop)}).status, 0);
      const Ran rest = run(runs.folder, {"pretrain", "--run", parts.string(), "--resume"});
      ASSERT_EQ(rest.status, 0) << rest.err;
      expect_same_files(whole, parts);
    }
  }
}

// A run that begins tied begins like a tied model: with the token table as its head. A model that
// has been trained keeps its head.
TEST(HeadSchedule, BeginsWithTheTableOfANewModelAndTheHeadOfAnOldOne) {
  const ShortRuns runs;
  const Arguments still = words("--lr 0 --steps 1"), tied{"--head-schedule", "tied"};
  const auto last_of = [&](const char* name, const Arguments& more) {
    const Ran r = run(runs.folder, with(runs, runs.folder / name, still + more));
    EXPECT_EQ(r.status, 0) << r.err;
    return runs.folder / name / "latest";
  };
  const fs::path apart = last_of("apart", {"--tied=false"});
  const std::string table = table_of(apart), head = head_of(apart);
  ASSERT_NE(table, head);
  const fs::path fresh = last_of("new", Arguments{"--tied=false"} + tied);
  EXPECT_EQ(table_of(fresh), table);
  EXPECT_EQ(head_of(fresh), table);
  const fs::path one = last_of("one", {});
  const auto losses = [](const fs::path& latest) {
    return read_file(latest.parent_path() / "log.jsonl");
  };
  EXPECT_EQ(losses(fresh), losses(one));

  const Ran r = run(runs.folder,
                    Arguments{"pretrain", "--run", (runs.folder / "old").string(), "--model",
                              (runs.folder / "apart").string(), "--data",
                              (runs.folder / "train.bin").string(), "--batch", "2", "--seq", "16"} +
                        still + tied);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(table_of(runs.folder / "old/latest"), head);
  EXPECT_EQ(head_of(runs.folder / "old/latest"), head);
}

TEST(HeadSchedule, StepsInNumbersStayWhereTheyAreInALongerRun) {
  const ShortRuns runs;
  const fs::path whole = runs.folder / "whole", parts = runs.folder / "parts";
  const Arguments more = words("--tied=false --head-schedule 0:tied,6:untied --schedule constant");
  const Ran all = run(runs.folder, with(runs, whole, more + words("--steps 8")));
  ASSERT_EQ(all.status, 0) << all.err;
  const Ran first = run(runs.folder, with(runs, parts, more));
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string note = "--head-schedule has a change at step 6, but the run ends at step 5";
  EXPECT_NE(first.err.find(note), std::string::npos) << first.err;
  EXPECT_EQ(all.err.find(note), std::string::npos) << all.err;
  EXPECT_EQ(head_of(parts / "latest"), table_of(parts / "latest"));
  const Ran rest =
      run(runs.folder, {"pretrain", "--run", parts.string(), "--resume", "--steps", "8"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(head_of(parts / "latest"), table_of(parts / "latest"));
  expect_same_files(whole, parts);
}

TEST(HeadSchedule, WhatCannotWorkIsOneLine) {
  const ShortRuns runs;
  const fs::path at = runs.folder / "run";
  const auto refused = [&](const std::string& flags, int status, const std::string& line) {
    expect_error(run(runs.folder, with(runs, at, words(flags))), status, line);
    EXPECT_FALSE(fs::exists(at));
  };
  refused("--head-schedule 0:tied,2:untied", 2,
          "[--head-schedule] needs a model with a head of its own (--tied=false); this one is tied "
          "at all times");
  refused("--tied=false --head-schedule 0:tie", 2,
          "[--head-schedule] expected untied or tied or a schedule STEP:NAME,STEP:NAME,..");
  refused("--tied=false --head-schedule 2:tied", 2,
          "[--head-schedule] expected increasing steps that start at 0, got '2:tied'");
  refused("--tied=false --zero-head --head-schedule 0:tied,2:untied", 2,
          "[--head-schedule] a run that begins tied begins with the token embedding as its head");

  ASSERT_EQ(run(runs.folder,
                with(runs, at,
                     words("--tied=false --head-schedule 0:untied,40%:tied --stop-after-step 2")))
                .status,
            0);
  expect_error(run(runs.folder, {"pretrain", "--run", at.string(), "--resume", "--steps", "9"}), 2,
               "this run's --head-schedule is in shares of its 5 steps");
  expect_error(
      run(runs.folder, {"pretrain", "--run", at.string(), "--resume", "--head-schedule", "tied"}),
      1, "head_schedule = 0:untied,40%:tied, not tied");
  const Ran other = run(runs.folder, runs.arguments("sft", runs.folder / "sft") +
                                         Arguments{"--head-schedule", "tied"});
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("--head-schedule"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace hearth
