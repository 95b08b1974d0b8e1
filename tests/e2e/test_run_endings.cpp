// How a run of each task ends, and what it says then: divergence, --stop-after-step, targets.
#include "e2e/short_runs.h"

namespace hearth {
namespace {

class RunEndings : public TaskTest {
 protected:
  std::string task() const { return GetParam(); }
  Ran begin(const std::string& name, const std::string& more) const {
    return run(folder, runs.arguments(task(), folder / name) + words(more));
  }
  Ran resume(const std::string& name, const std::string& more) const {
    return run(folder, words(task() + " --resume --threads 1 --run " + (folder / name).string() +
                             " " + more));
  }
  static bool says(const Ran& r, const std::string& text) {
    return r.err.find(text) != std::string::npos;
  }
  const ShortRuns runs;
  const Folder& folder = runs.folder;
};

TEST_P(RunEndings, StoppedAfterStepZeroItSavesItsFirstWeights) {
  const auto none = json_of(begin("run", "--json --stop-after-step 0"));
  EXPECT_EQ(none["steps"], 0);
  EXPECT_EQ(none["reason"], "stopped");
  EXPECT_EQ(none["checkpoint"], (folder / "run/checkpoints/step-00000000").string());
  EXPECT_EQ(json_of(resume("run", "--json"))["steps"], 5);
  expect_error(begin("other", "--stop-after-step=-1"), 2, "expected 0 or more, got -1");
  EXPECT_FALSE(fs::exists(folder / "other"));
}

TEST_P(RunEndings, ResumedAtItsStopItSaysThatItMadeNoStep) {
  const Ran first = begin("run", "--json --stop-after-step 3");
  EXPECT_EQ(json_of(first)["steps"], 3);
  EXPECT_FALSE(says(first, "no step was made")) << first.err;
  const Ran again = resume("run", "--json --stop-after-step 1");
  EXPECT_EQ(json_of(again)["steps"], 3);
  EXPECT_TRUE(says(again, "hearth: " + (folder / "run").string() +
                              " is at step 3, and --stop-after-step is 1: no step was made\n"))
      << again.err;
}

INSTANTIATE_TEST_SUITE_P(Tasks, RunEndings, testing::Values("pretrain", "sft", "dpo", "grpo"),
                         [](const auto& info) { return std::string(info.param); });

// The tasks that have a validation loss.
class LossEndings : public RunEndings {};

// The first step makes the weights so large that the gradients after it are not finite. Two such
// steps are too few for the run to give up before its end.
TEST_P(LossEndings, ARunThatDivergedIsNoSuccess) {
  const Ran r = begin("run", "--steps 3 --lr 1e30 --clip 0");
  EXPECT_EQ(r.status, 1) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(says(r, "[train] the run diverged: ")) << r.err;
  EXPECT_TRUE(says(r, "lower --lr")) << r.err;
  EXPECT_TRUE(says(r, (folder / "run/checkpoints/step-00000003").string())) << r.err;
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step-00000003/model.safetensors"));
  // Nor when it is resumed and there is nothing left to do.
  EXPECT_EQ(resume("run", "").status, 1);
}

TEST_P(LossEndings, AReachedTargetIsSaidOnce) {
  const Ran first = begin("run", "--json --target-loss 1000");
  EXPECT_EQ(json_of(first)["reason"], "target");
  EXPECT_TRUE(says(first, "hearth: stopped at step 0: validation loss ")) << first.err;
  EXPECT_TRUE(says(first, " reached --target-loss 1000\n")) << first.err;
  const Ran again = resume("run", "--json");
  EXPECT_TRUE(says(again, "it reached its target")) << again.err;
  EXPECT_FALSE(says(again, "stopped at step")) << again.err;
}

INSTANTIATE_TEST_SUITE_P(Tasks, LossEndings, testing::Values("pretrain", "sft", "dpo"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RunSummary, CountsOneStep) {
  const ShortRuns runs;
  const Ran r =
      run(runs.folder, runs.arguments("pretrain", runs.folder / "run") + Arguments{"--steps", "1"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.out.starts_with("1 step, 32 tokens, ")) << r.out;
}

}  // namespace
}  // namespace hearth
