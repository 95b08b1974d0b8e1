// The run that every task shares, driven by a task whose losses the test chooses.
#include "train/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/backend.h"
#include "formats/checkpoint_dir.h"
#include "formats/run_folder.h"
#include "sys/files/files.h"
#include "test_io_support.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

using namespace test;
namespace fs = std::filesystem;

ModelConfig small_model() {
  ModelConfig c;
  c.vocab = 16, c.context = 8, c.layers = 1, c.dim = 8, c.heads = 1, c.hidden = 8;
  return c.resolve();
}

// Steps without arithmetic: what the update program is told of its loss is all there is.
class ChosenLosses : public Task {
 public:
  explicit ChosenLosses(TrainedModel& m) : update_("chosen", m.memory, {}) {}
  std::string_view kind() const override { return "chosen"; }
  int64_t steps() const override { return total; }
  UpdateProgram& update() override { return update_; }
  std::optional<StepReport> step(StepContext& c) override {
    data_steps.push_back(c.data_step);
    if (c.step == fails_at) break_down();
    StepReport r{.tokens = 10, .flops = 1e6};
    const double x = loss(c.data_step);
    c.guard.update(update_, c.scalars, x);
    tell(fmt::format("launched {}", c.step + 1));
    const auto read = [this, x, step = c.step + 1](StepReport& report) {
      report.loss = x;
      tell(fmt::format("read {}", step));
    };
    if (late)
      r.complete = read;
    else
      read(r);
    rates.push_back(c.lr);
    return r;
  }
  bool evaluates() const override { return bool(evaluation); }
  bool evaluates_first() const override { return first; }
  bool at_target(const RunState& s) const override {
    return target && s.last_eval && *s.last_eval <= *target;
  }
  std::optional<EvalReport> evaluate(const RunState& s,
                                     const std::function<void(const std::string&)>&) override {
    return loss_report(evaluation(s.step));
  }
  nlohmann::json save() const override {
    if (cannot_be_saved) throw std::bad_alloc();
    return {{"seen", data_steps.size()}};
  }

  int64_t total = 20;
  std::function<double(int64_t)> loss = [](int64_t) { return 1.0; };
  std::function<double(int64_t)> evaluation;
  std::function<void(const std::string&)> tell = [](const std::string&) {};
  bool late = false;   // the loss is read when the step has been made
  bool first = false;  // evaluates before the first step
  std::optional<double> target;
  std::optional<int64_t> fails_at;
  std::function<void()> break_down = [] { fail("task", "the program broke"); };
  bool cannot_be_saved = false;
  std::vector<int64_t> data_steps;
  std::vector<double> rates;

 private:
  UpdateProgram update_;
};

// A CPU that may run ahead of the host, as a GPU does.
class Ahead final : public WrappedBackend {
 public:
  explicit Ahead(bool ahead) : ahead_(ahead) {}
  bool runs_ahead() const override { return ahead_; }

 private:
  const bool ahead_;
};

class RunTest : public testing::Test {
 protected:
  RunTest() {
    spec.run = dir / "run", spec.quiet = true;
    spec.warn = [this](const std::string& line) { said += line + "\n"; };
    config.checkpoint_every = 5, config.schedule = Schedule::constant, config.eval_every = 4;
  }
  // One process: what `prepare` sets of the task, then the run.
  RunResult go(const std::function<void(ChosenLosses&)>& prepare = {}) {
    Ahead backend(runs_ahead);
    TrainedModel model(small_model(), {}, backend, DType::f32, false);
    ChosenLosses task(model);
    if (prepare) prepare(task);
    const struct Keep {
      ~Keep() { to = from.data_steps, rates = from.rates; }
      ChosenLosses& from;
      std::vector<int64_t>& to;
      std::vector<double>& rates;
    } keep{task, data_steps, rates};
    const RunSettings settings{.values = {{"steps", task.total}, {"lr", config.lr}}};
    return run_task(spec, config, settings, model, task);
  }

  const TempDir dir;
  RunSpec spec;
  RunConfig config;
  std::string said;
  bool runs_ahead = true;
  std::vector<int64_t> data_steps;
  std::vector<double> rates;
};

TEST_F(RunTest, GoesBackPastBadDataInAnyTask) {
  const RunResult r = go([](ChosenLosses& t) {
    t.loss = [](int64_t data_step) { return data_step >= 12 && data_step < 15 ? NAN : 1.0; };
  });
  EXPECT_EQ(r.steps, 20);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_EQ(r.tokens, 200);
  // Back from step 15 to step 10, but on with the data after the bad one.
  ASSERT_EQ(data_steps.size(), 25u);
  for (size_t i = 0; i < data_steps.size(); ++i) EXPECT_EQ(data_steps[i], int64_t(i));
  EXPECT_NE(said.find("going back to step-00000010, past the data that did it"), said.npos) << said;
}

// While one step runs the next is launched; what reads the state of a step waits for its results.
TEST_F(RunTest, ReadsTheResultsOfAStepWhileTheNextOneRuns) {
  std::vector<std::string> happened;
  go([&](ChosenLosses& t) {
    t.total = 7, t.late = true;
    t.tell = [&](const std::string& what) { happened.push_back(what); };
  });
  const std::vector<std::string> want{"launched 1", "launched 2", "read 1", "launched 3",
                                      "read 2",     "launched 4", "read 3", "launched 5",
                                      "read 4",
                                      "read 5",  // a checkpoint is due
                                      "launched 6", "launched 7", "read 6", "read 7"};
  EXPECT_EQ(happened, want);
}

// A device that has made a step when it was launched has its results at once.
TEST_F(RunTest, ReadsTheResultsOfAStepAtOnceWhereNothingRunsAhead) {
  std::vector<std::string> happened;
  runs_ahead = false;
  go([&](ChosenLosses& t) {
    t.total = 3, t.late = true;
    t.tell = [&](const std::string& what) { happened.push_back(what); };
  });
  const std::vector<std::string> want{"launched 1", "read 1",     "launched 2",
                                      "read 2",     "launched 3", "read 3"};
  EXPECT_EQ(happened, want);
}

// The log has the same bytes whenever the host reads a loss.
TEST_F(RunTest, ALateLossIsLoggedAsAnyOther) {
  const auto lossy = [](bool late) {
    return [late](ChosenLosses& t) {
      t.late = late;
      t.loss = [](int64_t s) { return s == 6 || s == 11 ? NAN : 2 + 0.1 * std::sin(double(s)); };
    };
  };
  const RunResult now = go(lossy(false));
  const std::string log = read_file(spec.run / "log.jsonl");
  EXPECT_EQ(std::ranges::count(log, '\n'), 20);
  spec.run = dir / "late";
  const RunResult late = go(lossy(true));
  EXPECT_EQ(read_file(spec.run / "log.jsonl"), log);
  EXPECT_EQ(late.skipped, 2);
  EXPECT_EQ(late.train_loss, now.train_loss);
  EXPECT_GT(late.seconds.value("steps", 0.0), 0);
}

TEST_F(RunTest, SkipsASpikeInAnyTask) {
  config.spike_z = 6;
  const RunResult r = go([](ChosenLosses& t) {
    t.total = 140;
    t.loss = [](int64_t s) { return s == 133 ? 50.0 : 2 + 0.1 * std::sin(double(s)); };
  });
  EXPECT_EQ(r.skipped, 1);
  EXPECT_NE(read_file(spec.run / "log.jsonl").find("\"spike\":true"), std::string::npos);
}

TEST_F(RunTest, AWarmupLongerThanTheRunIsSaidOnce) {
  config.lr = 1, config.warmup = 40;
  go([](ChosenLosses& t) { t.total = 4; });
  EXPECT_EQ(
      said,
      "--warmup 40 is longer than the run of 4 steps: the learning rate ends at 0.1 and never "
      "reaches --lr 1\n");
  said.clear();
  spec.run = dir / "reached", config.warmup = 4;
  go([](ChosenLosses& t) { t.total = 4; });
  EXPECT_EQ(said, "");
}

TEST_F(RunTest, WithoutACheckpointBadStepsAreAnError) {
  expect_error(error_of([&] { go([](ChosenLosses& t) { t.loss = [](int64_t) { return NAN; }; }); }),
               "no checkpoint to go back to; try a lower --lr or a longer --warmup in a new run: "
               "delete " +
                   spec.run.string() + " or choose another --run");
}

TEST_F(RunTest, AnErrorInAStepCostsNothingLearnedBefore) {
  expect_error(error_of([&] { go([](ChosenLosses& t) { t.fails_at = 7, t.late = true; }); }),
               "the program broke");
  EXPECT_EQ(linked_step(spec.run, "latest"), 7);
  spec.resume = true;
  EXPECT_EQ(go().steps, 20);
  EXPECT_EQ(data_steps.front(), 7);
}

// Not only our own errors: memory may run out, and libraries have exceptions of their own.
TEST_F(RunTest, AnyExceptionInAStepCostsNothingLearnedBefore) {
  const auto without_memory = [](ChosenLosses& t) {
    t.fails_at = 7, t.late = true;
    t.break_down = [] { throw std::bad_alloc(); };
  };
  EXPECT_THROW(go(without_memory), std::bad_alloc);
  EXPECT_EQ(linked_step(spec.run, "latest"), 7);
  spec.resume = true;
  EXPECT_EQ(go().steps, 20);
  EXPECT_EQ(data_steps.front(), 7);
}

TEST_F(RunTest, AnyExceptionInAnEvaluationCostsNothingLearnedBefore) {
  const auto without_memory = [](ChosenLosses& t) {
    t.evaluation = [](int64_t step) { return step < 8 ? 1.0 : throw std::bad_alloc(); };
  };
  EXPECT_THROW(go(without_memory), std::bad_alloc);
  EXPECT_EQ(linked_step(spec.run, "latest"), 8);
}

// The error of the step is the one that the user has to know.
TEST_F(RunTest, WhatFailsAfterAnErrorIsToldBesideIt) {
  const auto broken = [](bool saving) {
    return [saving](ChosenLosses& t) {
      t.fails_at = 4, t.late = true, t.cannot_be_saved = saving;
      if (saving) return;
      t.tell = [](const std::string& what) {
        if (what == "read 4") throw std::bad_alloc();
      };
    };
  };
  for (const bool saving : {false, true}) {
    spec.run = dir / (saving ? "saving" : "reading");
    said.clear();
    expect_error(error_of([&] { go(broken(saving)); }), "the program broke");
    EXPECT_NE(said.find("std::bad_alloc\n"), said.npos) << said;
    EXPECT_EQ(linked_step(spec.run, "latest"), -1);
  }
}

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

TEST_F(RunTest, AnEvaluationWithoutANumberIsNotTheResult) {
  const RunResult r = go(
      [](ChosenLosses& t) { t.evaluation = [](int64_t step) { return step == 20 ? NAN : 2.5; }; });
  EXPECT_EQ(*r.val_loss, 2.5);
  EXPECT_EQ(*r.val_step, 16);
  EXPECT_TRUE(r.diverged);
}

// A process that finds the run finished evaluates nothing: the checkpoint has to tell.
TEST_F(RunTest, AFinishedRunThatDivergedInItsLastEvaluationStaysDiverged) {
  const auto until = [](int64_t total) {
    return [total](ChosenLosses& t) {
      t.total = total;
      t.evaluation = [](int64_t step) { return step == 8 ? NAN : 2.5; };
    };
  };
  EXPECT_TRUE(go(until(8)).diverged);
  spec.resume = true;
  const RunResult again = go(until(8));
  EXPECT_TRUE(again.diverged);
  EXPECT_EQ(again.reason, Ending::steps);
  EXPECT_TRUE(data_steps.empty());
  EXPECT_FALSE(go(until(12)).diverged);  // extended, it recovers
  EXPECT_FALSE(go(until(12)).diverged);
}

// An evaluation says nothing about later steps, even if none of those is evaluated.
TEST_F(RunTest, AnEarlierBadEvaluationIsForgottenWithoutALaterOne) {
  const auto until = [](int64_t total, bool evaluates) {
    return [=](ChosenLosses& t) {
      t.total = total;
      if (evaluates) t.evaluation = [](int64_t) { return NAN; };
    };
  };
  EXPECT_TRUE(go(until(8, true)).diverged);
  spec.resume = true;
  const RunResult r = go(until(12, false));
  EXPECT_EQ(r.steps, 12);
  EXPECT_FALSE(r.diverged);
  EXPECT_FALSE(go(until(12, false)).diverged);
}

// The steps at the end decide: bad ones before them were skipped, and a spike has a finite loss.
TEST_F(RunTest, KnowsWhetherItDiverged) {
  const auto with = [&](const char* name, int64_t total,
                        const std::function<double(int64_t)>& loss) {
    spec.run = dir / name;
    return go([&](ChosenLosses& t) { t.total = total, t.loss = loss; });
  };
  EXPECT_FALSE(with("good", 20, [](int64_t) { return 1.0; }).diverged);
  EXPECT_FALSE(with("recovered", 20, [](int64_t s) { return s == 17 ? NAN : 1.0; }).diverged);
  const RunResult bad = with("bad", 20, [](int64_t s) { return s >= 18 ? NAN : 1.0; });
  EXPECT_EQ(bad.reason, Ending::steps);
  EXPECT_TRUE(bad.diverged);
  config.spike_z = 6;
  const RunResult spike =
      with("spike", 140, [](int64_t s) { return s == 139 ? 50.0 : 2 + 0.1 * std::sin(double(s)); });
  EXPECT_EQ(spike.skipped, 1);
  EXPECT_FALSE(spike.diverged);
}

// fp16: every update of a step uses the scale that the one before left.
TEST(StepGuardTest, TheLossScaleFollowsEachUpdate) {
  const auto backend = make_cpu_backend(1);
  RunState state;
  const StepGuard plain(state, *backend, {}), scaled(state, *backend, {.fp16 = true});
  EXPECT_EQ(plain.loss_scale(), 1);
  EXPECT_EQ(scaled.loss_scale(), 65536);
  state.loss_scale = 1024;
  EXPECT_EQ(scaled.loss_scale(), 1024);
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

TEST_F(RunTest, LogsSpeedForEveryTask) {
  spec.peak_flops = 1e12;
  go();
  const std::string perf = read_file(spec.run / "perf.jsonl");
  const auto first = nlohmann::json::parse(perf.substr(0, perf.find('\n')));
  for (const char* key : {"tflops", "mfu", "tokens_per_s", "memory_bytes"})
    EXPECT_GT(first.value(key, 0.0), 0) << key;
}

}  // namespace
}  // namespace hearth
