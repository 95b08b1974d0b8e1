// The run that every task shares, driven by a task whose losses the test chooses.
#include "train/run.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/backend.h"
#include "formats/run_folder.h"
#include "sys/files/files.h"
#include "unit/run_test.h"

namespace hearth {
namespace {

using namespace test;

TEST_F(RunTest, GoesBackPastBadDataInAnyTask) {
  const RunResult r = go([](ChosenLosses& t) {
    t.loss = [](int64_t data_step) { return data_step >= 12 && data_step < 15 ? NAN : 1.0; };
  });
  EXPECT_EQ(r.steps, 20);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_EQ(r.skipped, 3);
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

TEST(StepGuardTest, TheLossScaleDoublesAfter2000GoodSteps) {
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(small_model()), DType::f32);
  params.initialise(1);
  Memory memory(*backend, &params);
  UpdateProgram program("chosen", memory, {});
  program.set_state({});
  RunState state;
  StepGuard guard(state, *backend, {.fp16 = true});
  for (int step = 1; step <= 4001; ++step) {
    guard.begin_step();
    guard.update(program, {.lr = 0, .clip = 1}, 1.0);
    ASSERT_EQ(state.loss_scale, 65536 << (step / 2000)) << step;
  }
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
