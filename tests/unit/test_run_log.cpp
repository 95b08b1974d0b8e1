// What a run tells while it runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "data_files.h"
#include "formats/step_lines.h"
#include "sys/files/files.h"
#include "train/log.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

uintmax_t event_bytes(const fs::path& run) {
  uintmax_t n = 0;
  for (const auto& entry : fs::directory_iterator(run / "tensorboard")) n += entry.file_size();
  return n;
}

// Without a checkpoint, a validation or an end.
TEST(RunLog, EventsReachTheFileWhileStepsGoOn) {
  const TemporaryFolder run;
  RunLog log(run.path(), {}, {}, 1000, true);
  const uintmax_t before = event_bytes(run.path());
  int64_t step = 0;
  while (step < 6000 && event_bytes(run.path()) == before) {
    log.step({.step = ++step, .loss = 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GT(event_bytes(run.path()), before) << "after " << step << " steps";
}

TEST(RunLog, SyncFlushesTheEvents) {
  const TemporaryFolder run;
  RunLog log(run.path(), {}, {}, 10, true);
  const uintmax_t before = event_bytes(run.path());
  log.step({.step = 1, .loss = 1});
  log.sync();
  EXPECT_GT(event_bytes(run.path()), before);
}

// A resumed run writes the lines of the steps after its checkpoint again.
TEST(StepLines, DropTheLinesOfLaterSteps) {
  const TemporaryFolder run;
  const fs::path file = run.path() / "rollouts.jsonl";
  const auto line = [](int step) { return fmt::format(R"({{"step":{},"x":1}})", step); };
  const auto text = [&](std::initializer_list<int> steps) {
    std::string all;
    for (const int s : steps) all += line(s) + "\n";
    return all;
  };
  {
    StepLines lines(file, 0);
    EXPECT_FALSE(fs::exists(file)) << "a run without rollouts has no such file";
    for (const int step : {1, 1, 2, 2, 3, 3}) lines.append(line(step));
  }
  { const StepLines lines(file, 3); }
  EXPECT_EQ(read_file(file), text({1, 1, 2, 2, 3, 3}));
  {
    StepLines lines(file, 2);
    EXPECT_EQ(read_file(file), text({1, 1, 2, 2}));
    // A run that goes back repeats steps; what it wrote before stays.
    for (const int step : {3, 4, 3}) lines.append(line(step));
  }
  { const StepLines lines(file, 3); }
  EXPECT_EQ(read_file(file), text({1, 1, 2, 2, 3, 4, 3}));
  { const StepLines lines(file, 2); }
  EXPECT_EQ(read_file(file), text({1, 1, 2, 2}));
  write_file_atomic(file, text({1}) + "other\n" + text({5}) + "{\"step\":6");
  { const StepLines lines(file, 0); }
  EXPECT_EQ(read_file(file), text({1}) + "other\n") << "an unknown line is kept";
  { const StepLines lines(file, 0); }
  fs::remove(file);
  write_file_atomic(file, text({1, 2}));
  { const StepLines lines(file, 0); }
  EXPECT_EQ(read_file(file), "");
}

// Every term of the loss stands under its name, in training and in validation.
TEST(RunLog, NamesTheTermsOfTheLoss) {
  const TemporaryFolder run;
  RunLog log(run.path(), {}, {}, 10, true);
  log.step({.step = 1, .loss = 2, .terms = {{"z_loss", 12.5}, {"router_balance", 0.25}}, .lr = 1});
  log.evaluation(1, loss_report(3, {{"z_loss", 9}}, {{"accuracy", 0.5}}), 0);
  log.sync();
  EXPECT_EQ(read_file(run / "log.jsonl"),
            "{\"step\":1,\"tokens\":0,\"loss\":2.0,\"z_loss\":12.5,\"router_balance\":0.25,"
            "\"lr\":1.0}\n"
            "{\"step\":1,\"val_loss\":3.0,\"val_z_loss\":9.0,\"accuracy\":0.5}\n");
  std::string events;
  for (const auto& entry : fs::directory_iterator(run / "tensorboard"))
    events += read_file(entry.path());
  for (const char* tag : {"train/loss", "train/z_loss", "train/router_balance", "val/loss",
                          "val/z_loss", "val/accuracy"})
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
  EXPECT_EQ(loss_report(3, {{"z_loss", 9}}).line, "validation loss 3.0000  z_loss 9");
}

TEST(RunLog, ANarrowTerminalShowsTheTimeLeft) {
  StepRecord r{.step = 12345, .loss = 2.34567, .terms = {{"z_loss", 12.5}}, .lr = 6e-4};
  r.grad_norm = 1.25, r.tokens_per_s = 123456, r.flops = 1e12, r.mfu = 0.41;
  EXPECT_EQ(
      progress_line(r, 100000, 7380, "val 2.3456 (step 100)"),
      "step 12345/100000  loss 2.3457  eta 2h03m  123456 tok/s  z_loss 12.5  val 2.3456 (step "
      "100)  lr 6.00e-04  |g| 1.25  1000.0 GFLOP/s (41% of measured peak)");
  r.line = "reward 0.5000 +- 0.100  equal 50%";
  EXPECT_TRUE(progress_line(r, 100000, 62, "")
                  .starts_with("step 12345/100000  reward 0.5000 +- 0.100  eta 1m02s  123456 tok/s "
                               " equal 50%  z_loss 12.5"))
      << progress_line(r, 100000, 62, "");
}

}  // namespace
}  // namespace hearth
