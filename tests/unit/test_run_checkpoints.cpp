// The checkpoints of a run: which ones it keeps, where it ends, and what goes on from them.
#include <atomic>
#include <cmath>
#include <optional>

#include "formats/checkpoint_dir.h"
#include "formats/run_folder.h"
#include "sys/files/files.h"
#include "unit/run_test.h"

namespace hearth {
namespace {

using namespace test;
namespace fs = std::filesystem;

TEST_F(RunTest, IsExtendedAndSaysWhatTheScheduleDoes) {
  config.schedule = Schedule::linear, config.lr = 1, config.lr_floor = 0;
  EXPECT_EQ(go([](ChosenLosses& t) { t.total = 10; }).reason, Ending::steps);
  spec.resume = true;
  const RunResult r = go([](ChosenLosses& t) { t.total = 20; });
  EXPECT_EQ(r.steps, 20);
  EXPECT_EQ(data_steps.size(), 10u);
  EXPECT_NE(said.find("the run now ends at step 20 instead of 10: at step 10 the learning rate of "
                      "--schedule linear changes from 0 to 0.5"),
            said.npos)
      << said;
  EXPECT_EQ(rates.front(), 0.5);
  EXPECT_NE(read_file(spec.run / "config.toml").find("steps = 20\n"), std::string::npos);
  expect_error(error_of([&] { go([](ChosenLosses& t) { t.total = 15; }); }), "steps = 20, not 15");
}

TEST_F(RunTest, SaysNothingOfALearningRateThatStays) {
  config.schedule = Schedule::linear, config.lr = 1, config.lr_floor = 1;
  go([](ChosenLosses& t) { t.total = 10; });
  spec.resume = true;
  EXPECT_EQ(go([](ChosenLosses& t) { t.total = 20; }).steps, 20);
  EXPECT_EQ(said.find("learning rate"), said.npos) << said;
}

// A length that is refused changes nothing in the folder.
TEST_F(RunTest, ARefusedLengthLeavesTheRunAsItWas) {
  go([](ChosenLosses& t) { t.total = 10; });
  const std::string before = read_file(spec.run / "config.toml");
  spec.resume = true;
  expect_error(error_of([&] { go([](ChosenLosses& t) { t.total = 8; }); }), "not 8");
  EXPECT_EQ(read_file(spec.run / "config.toml"), before);
  EXPECT_EQ(go([](ChosenLosses& t) { t.total = 10; }).steps, 10);
}

TEST_F(RunTest, KeepsTheBestOfItsEvaluations) {
  config.keep = 1;
  const RunResult r = go([](ChosenLosses& t) {
    t.evaluation = [](int64_t step) { return std::abs(double(step) - 8); };
  });
  EXPECT_EQ(linked_step(spec.run, "best"), 8);
  EXPECT_EQ(linked_step(spec.run, "latest"), 20);
  EXPECT_EQ(*r.val_loss, 12);
  EXPECT_EQ(*r.val_step, 20);
}

TEST_F(RunTest, WithoutSaveBestItKeepsTheBestOfItsOtherCheckpoints) {
  config.save_best = false, config.checkpoint_every = 10;
  config.eval_every = 2;
  go([](ChosenLosses& t) {
    t.evaluation = [](int64_t step) { return std::abs(double(step) - 8); };
  });
  EXPECT_EQ(linked_step(spec.run, "best"), 10);
  EXPECT_EQ(linked_step(spec.run, "latest"), 20);
  EXPECT_FALSE(std::filesystem::exists(spec.run / "checkpoints" / step_name(8)));
}

TEST(RunConfigTest, KnowsTheNextStepThatMayBeSaved) {
  RunConfig c;
  c.checkpoint_every = 30, c.eval_every = 20;
  EXPECT_EQ(c.next_save(0, 100, true), 20);
  EXPECT_EQ(c.next_save(20, 100, true), 30);
  EXPECT_EQ(c.next_save(0, 100, false), 30);
  EXPECT_EQ(c.next_save(95, 100, true), 100);
  c.save_best = false;
  EXPECT_EQ(c.next_save(0, 100, true), 30);
  c.checkpoint_every = 0;
  EXPECT_EQ(c.next_save(0, 100, true), 100);
}

// Such a run has its first weights to save. Whoever resumes it without the target goes on from them
// as if it had never stopped.
TEST_F(RunTest, ATargetReachedBeforeTheFirstStepLeavesACheckpoint) {
  const auto evaluated = [](std::optional<double> target) {
    return [target](ChosenLosses& t) {
      t.evaluation = [](int64_t) { return 1.0; };
      t.first = true, t.target = target;
    };
  };
  config.keep = 1;
  go(evaluated({}));
  const std::string log = read_file(spec.run / "log.jsonl");

  spec.run = dir / "target";
  const RunResult r = go(evaluated(2));
  EXPECT_EQ(r.reason, Ending::target);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(r.checkpoint, spec.run / "checkpoints/step-00000000");
  EXPECT_EQ(verify_checkpoint(r.checkpoint), std::nullopt);
  EXPECT_EQ(linked_step(spec.run, "latest"), 0);
  EXPECT_EQ(linked_step(spec.run, "best"), -1);

  spec.resume = true;
  EXPECT_EQ(go(evaluated(2)).reason, Ending::target);
  EXPECT_TRUE(data_steps.empty());
  EXPECT_NE(said.find("already finished (0 of 20 steps, it reached its target)"), said.npos)
      << said;
  EXPECT_EQ(go(evaluated({})).steps, 20);
  EXPECT_EQ(data_steps.front(), 0);
  EXPECT_EQ(read_file(spec.run / "log.jsonl"), log);
  EXPECT_EQ(linked_step(spec.run, "best"), 4);
  EXPECT_FALSE(fs::exists(spec.run / "checkpoints/step-00000000"));
}

TEST_F(RunTest, ARunThatOnlyEvaluatesLeavesNoCheckpoint) {
  const RunResult r = go([](ChosenLosses& t) {
    t.total = 0;
    t.evaluation = [](int64_t) { return 1.5; };
  });
  EXPECT_EQ(r.reason, Ending::steps);
  EXPECT_EQ(r.val_loss, 1.5);
  EXPECT_EQ(r.checkpoint, "");
  EXPECT_FALSE(fs::exists(spec.run / "checkpoints"));
}

TEST_F(RunTest, MakesNoStepPastTheOneItStopsAfter) {
  spec.stop_after_step = 6;
  EXPECT_EQ(go().steps, 6);
  spec.resume = true;
  for (const int64_t stop : {3, 6}) {
    spec.stop_after_step = stop;
    const RunResult r = go();
    EXPECT_EQ(r.steps, 6);
    EXPECT_EQ(r.reason, Ending::stopped);
    EXPECT_TRUE(data_steps.empty());
  }
  spec.stop_after_step.reset();
  EXPECT_EQ(go().steps, 20);
  EXPECT_EQ(data_steps.front(), 6);
  // A finished run has ended by its steps, whatever it is told to stop after.
  spec.stop_after_step = 3;
  EXPECT_EQ(go().reason, Ending::steps);
}

TEST_F(RunTest, StoppedAfterStepZeroItMakesNone) {
  spec.stop_after_step = 0;
  const RunResult r = go();
  EXPECT_EQ(r.reason, Ending::stopped);
  EXPECT_TRUE(data_steps.empty());
  EXPECT_EQ(linked_step(spec.run, "latest"), 0);
}

// A signal that comes before the first step: the checkpoint is that of a run that made none.
TEST_F(RunTest, ASignalBeforeTheFirstStepSavesTheFirstWeights) {
  std::atomic<int> stop = 1;
  spec.stop = &stop;
  const RunResult r = go();
  EXPECT_EQ(r.reason, Ending::stopped);
  EXPECT_EQ(r.steps, 0);
  EXPECT_TRUE(data_steps.empty());
  EXPECT_EQ(linked_step(spec.run, "latest"), 0);
  stop = 0, spec.resume = true;
  EXPECT_EQ(go().steps, 20);
  EXPECT_EQ(data_steps.front(), 0);
}

TEST_F(RunTest, GoesBackToTheFirstWeights) {
  const auto begun = [](std::optional<double> target) {
    return [target](ChosenLosses& t) {
      t.loss = [](int64_t data_step) { return data_step < 3 ? NAN : 1.0; };
      t.evaluation = [](int64_t) { return 1.0; };
      t.first = true, t.target = target;
    };
  };
  go(begun(2));
  spec.resume = true;
  const RunResult r = go(begun({}));
  EXPECT_EQ(r.steps, 20);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_NE(said.find("going back to step-00000000"), said.npos) << said;
}

}  // namespace
}  // namespace hearth
