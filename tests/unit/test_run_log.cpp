// What a run tells while it runs.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "data_files.h"
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

}  // namespace
}  // namespace hearth
