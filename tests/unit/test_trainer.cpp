// The training loop where it cannot be reached from the command line: losses that turn to NaN or
// jump.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cpu/backend.h"
#include "data/shards.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "train/pretrain/pretrain.h"

namespace hearth {
namespace {

int losses_made = 0;  // calls of mean_loss so far
int first_bad = 0, bad_count = 0;
float bad_loss = 0;
void (*true_mean_loss)(Stream&, const MeanLossArgs&) = nullptr;

void poisoned_mean_loss(Stream& s, const MeanLossArgs& args) {
  true_mean_loss(s, args);
  ++losses_made;
  if (losses_made >= first_bad && losses_made < first_bad + bad_count)
    *args.loss.as<float>() = bad_loss;
}

// The CPU, but some losses are bad.
class Poisoned final : public Backend {
 public:
  Poisoned() : inner_(make_cpu_backend(1)), kernels_(inner_->kernels()) {
    true_mean_loss = kernels_.mean_loss;
    kernels_.mean_loss = poisoned_mean_loss;
  }
  const Kernels& kernels() const override { return kernels_; }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "poisoned"; }
  std::byte* allocate(int64_t n, const std::string& w) override { return inner_->allocate(n, w); }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void upload(std::byte* d, const void* h, int64_t n) override { inner_->upload(d, h, n); }
  void download(void* h, const std::byte* d, int64_t n) override { inner_->download(h, d, n); }
  void synchronize() override { inner_->synchronize(); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }

 private:
  std::unique_ptr<Backend> inner_;
  Kernels kernels_;
};

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "hearth-trainer-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    std::vector<int32_t> ids;
    for (int i = 0; i < 4000; ++i) ids.push_back((i * i + i / 7) % 32);
    write_tokens(folder / "data.bin", TokenFormat::llmc, 32, ids);
    spec.model.vocab = 32, spec.model.context = 16, spec.model.layers = 1, spec.model.dim = 16;
    spec.model.heads = 2, spec.model.hidden = 32;
    spec.model = spec.model.resolve();
    spec.train.data = {(folder / "data.bin").string()};
    spec.train.steps = 40, spec.train.batch = 2, spec.train.seq = "16";
    spec.train.checkpoint_every = 10, spec.train.eval_every = 0;
    spec.run = folder / "run";
    spec.quiet = true;
    losses_made = 0, bad_loss = std::numeric_limits<float>::quiet_NaN();
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string read(const std::string& file) const { return read_file(spec.run / file); }
  bool has_checkpoint(const std::string& step) const {
    return std::filesystem::exists(spec.run / "checkpoints" / step);
  }

  std::filesystem::path folder;
  PretrainSpec spec;
};

TEST_F(TrainerTest, SkipsASingleBadStep) {
  first_bad = 15, bad_count = 2;
  Poisoned backend;
  const RunResult r = pretrain(spec, backend);
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.skipped, 2);
  EXPECT_EQ(r.reloads, 0);
}

TEST_F(TrainerTest, GoesBackAfterThreeInARowAndMovesOn) {
  first_bad = 24, bad_count = 3;
  std::string said;
  spec.warn = [&](const std::string& line) { said += line; };
  Poisoned backend;
  const RunResult r = pretrain(spec, backend);
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_TRUE(std::isfinite(r.train_loss.value()));
  EXPECT_NE(said.find("without a finite gradient: going back to step-00000020"), std::string::npos)
      << said;
  EXPECT_EQ(losses_made, 26 + 20);  // up to the third bad one, then from 20 to 40 on other data
}

TEST_F(TrainerTest, ASampleThatFailsCostsNoTraining) {
  first_bad = 0, bad_count = 0;
  int asked = 0;
  std::string said;
  spec.warn = [&](const std::string& line) { said += line; };
  spec.sample = [&](ParamStore&) -> std::string {
    if (++asked == 1) fail("engine", "expected room, got none");
    return "a text";
  };
  spec.train.sample_every = 20;
  Poisoned backend;
  EXPECT_EQ(pretrain(spec, backend).steps, 40);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(said, "no sample at step 20: [engine] expected room, got none");
  const std::string samples = read("samples.jsonl");
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '\n'), 1) << samples;
}

// A checkpoint taken in the middle of bad steps is neither gone back to nor unreadable.
TEST_F(TrainerTest, ResumesFromACheckpointOfABadStep) {
  first_bad = 19, bad_count = 2;  // step 20 is bad and saved
  spec.stop_after_step = 20;
  Poisoned backend;
  EXPECT_EQ(pretrain(spec, backend).reason, Ending::stopped);
  spec.stop_after_step.reset(), spec.resume = true;
  const RunResult r = pretrain(spec, backend);
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.skipped, 2);
}

// Stopped after the second of three bad steps, a run goes back to where it would have gone
// unbroken, and ends with the same weights and log; the one checkpoint kept does not rotate it
// away.
TEST_F(TrainerTest, ResumedInARowOfBadStepsItGoesBackAsIfUnbroken) {
  first_bad = 19, bad_count = 3;
  spec.train.keep = 1;
  Poisoned backend;
  spec.run = folder / "unbroken";
  EXPECT_EQ(pretrain(spec, backend).reloads, 1);
  const std::string weights = read("latest/model.safetensors"), log = read("log.jsonl");

  losses_made = 0;
  spec.run = folder / "stopped";
  spec.stop_after_step = 20;
  EXPECT_EQ(pretrain(spec, backend).reason, Ending::stopped);
  EXPECT_TRUE(has_checkpoint("step-00000010"));
  EXPECT_TRUE(has_checkpoint("step-00000020"));
  spec.stop_after_step.reset(), spec.resume = true;
  std::string said;
  spec.warn = [&](const std::string& line) { said += line; };
  const RunResult r = pretrain(spec, backend);
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_NE(said.find("going back to step-00000010"), std::string::npos) << said;
  EXPECT_EQ(read("latest/model.safetensors"), weights);
  EXPECT_EQ(read("log.jsonl"), log);
}

// The checkpoint of step 0 holds everything that the first step needs.
TEST_F(TrainerTest, StoppedBeforeItsFirstStepItGoesOnAsIfUnbroken) {
  first_bad = 0, bad_count = 0;
  Poisoned backend;
  spec.run = folder / "unbroken";
  pretrain(spec, backend);
  const std::string weights = read("latest/model.safetensors"), log = read("log.jsonl");

  std::atomic<int> stop = 1;
  spec.run = folder / "stopped", spec.stop = &stop;
  EXPECT_EQ(pretrain(spec, backend).steps, 0);
  EXPECT_TRUE(has_checkpoint("step-00000000"));
  stop = 0, spec.resume = true;
  EXPECT_EQ(pretrain(spec, backend).steps, 40);
  EXPECT_EQ(read("latest/model.safetensors"), weights);
  EXPECT_EQ(read("log.jsonl"), log);
}

// What a run that went back has left behind is not what it goes on from when it stops again.
TEST_F(TrainerTest, HavingGoneBackItForgetsTheCheckpointsOfTheOtherWay) {
  first_bad = 19, bad_count = 3;
  Poisoned backend;
  spec.stop_after_step = 20;
  EXPECT_EQ(pretrain(spec, backend).steps, 20);
  std::atomic<int> stop = 0;
  spec.stop_after_step.reset(), spec.resume = true, spec.stop = &stop;
  spec.warn = [&](const std::string& line) {
    if (line.find("going back") != line.npos) stop = 1;
  };
  const RunResult back = pretrain(spec, backend);
  EXPECT_EQ(back.reloads, 1);
  EXPECT_EQ(back.steps, 10);
  EXPECT_FALSE(has_checkpoint("step-00000020"));
  EXPECT_EQ(std::filesystem::read_symlink(spec.run / "latest").filename(), "step-00000010");
  stop = 0;
  const RunResult whole = pretrain(spec, backend);
  EXPECT_EQ(whole.reloads, 1);
  EXPECT_EQ(whole.steps, 40);
}

TEST_F(TrainerTest, AStopCheckpointWithNothingToGoBackToSaysSo) {
  first_bad = 4, bad_count = 3;
  Poisoned backend;
  spec.stop_after_step = 5;
  EXPECT_EQ(pretrain(spec, backend).steps, 5);
  spec.stop_after_step.reset(), spec.resume = true;
  try {
    pretrain(spec, backend);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no checkpoint to go back to"), std::string::npos);
  }
}

TEST_F(TrainerTest, ACheckpointDueInARowOfBadStepsWaitsForItsEnd) {
  first_bad = 19, bad_count = 2;
  spec.train.keep = 10;
  Poisoned backend;
  EXPECT_EQ(pretrain(spec, backend).skipped, 2);
  for (const char* step : {"step-00000010", "step-00000021", "step-00000030", "step-00000040"})
    EXPECT_TRUE(has_checkpoint(step)) << step;
  EXPECT_FALSE(has_checkpoint("step-00000020"));
}

// Going back to steps of another length: the windows of the place in the data are not theirs.
class LengthChangeTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    std::vector<int32_t> ids;
    for (int i = 0; i < 200; ++i) ids.push_back((i * i + i / 7) % 32);
    write_tokens(folder / "data.bin", TokenFormat::llmc, 32, ids);
    spec.train.order = LoaderSpec::Order::shuffled, spec.train.tokens_per_step = "32";
    first_bad = 27, bad_count = 3;  // the length changes at step 25, the last checkpoint is of 20
  }
  nlohmann::json cursor() const {
    return nlohmann::json::parse(read("latest/state/trainer.json"))["task"]["cursor"];
  }

  // Goes back across the change, is stopped at once, and resumed.
  void expect_same_when_stopped() {
    Poisoned backend;
    spec.run = folder / "unbroken";
    const RunResult unbroken = pretrain(spec, backend);
    EXPECT_EQ(unbroken.steps, 40);
    EXPECT_EQ(unbroken.reloads, 1);
    const std::string weights = read("latest/model.safetensors"), log = read("log.jsonl");

    losses_made = 0;
    spec.run = folder / "stopped";
    std::atomic<int> stop = 0;
    spec.stop = &stop;
    spec.warn = [&](const std::string& line) {
      if (line.find("going back") != std::string::npos) stop = 1;
    };
    EXPECT_EQ(pretrain(spec, backend).steps, 20);
    stop = 0, spec.warn = {}, spec.resume = true;
    const nlohmann::json before = cursor();
    spec.stop_after_step = 21;
    EXPECT_EQ(pretrain(spec, backend).steps, 21);
    EXPECT_EQ(cursor()["epoch"], before["epoch"].get<int64_t>() + 1);
    EXPECT_EQ(cursor()["position"], spec.train.batch);  // of the first step of that epoch
    spec.stop_after_step.reset();
    EXPECT_EQ(pretrain(spec, backend).reloads, 1);
    EXPECT_EQ(read("latest/model.safetensors"), weights);
    EXPECT_EQ(read("log.jsonl"), log);
  }
};

TEST_F(LengthChangeTest, GoesBackFromShorterSequences) {
  spec.train.batch = 2, spec.train.seq = "0:16,25:8";
  expect_same_when_stopped();
}

TEST_F(LengthChangeTest, GoesBackFromLongerSequences) {
  spec.train.batch = 4, spec.train.seq = "0:8,25:16";
  expect_same_when_stopped();
}

// A run of 150 steps, which fill the guard's window of 128 losses, with some of them bad.
class SpikeTest : public TrainerTest {
 protected:
  RunResult run(const std::string& name, double z, int first, int count, float loss) {
    spec.run = folder / name;
    spec.train.steps = 150, spec.train.spike_z = z, spec.train.checkpoint_every = 50;
    losses_made = 0, first_bad = first, bad_count = count, bad_loss = loss;
    Poisoned backend;
    return pretrain(spec, backend);
  }
};

TEST_F(SpikeTest, SkipsALossFarAboveTheOthers) {
  const RunResult r = run("guarded", 6, 140, 2, 50);
  EXPECT_EQ(r.skipped, 2);
  EXPECT_EQ(r.steps, 150);
  EXPECT_EQ(r.reloads, 0);
  EXPECT_EQ(run("clean", 6, 140, 0, 0).skipped, 0);
  EXPECT_EQ(run("off", 0, 140, 2, 50).skipped, 0);
  EXPECT_EQ(run("early", 6, 100, 2, 50).skipped, 0);  // too few to judge by
  EXPECT_EQ(run("low", 6, 140, 2, 0.1f).skipped, 0);  // a loss may fall as it likes
}

TEST_F(SpikeTest, GoesBackAfterThreeInARowAndSaysWhy) {
  std::string said;
  spec.warn = [&](const std::string& line) { said += line; };
  const RunResult r = run("run", 6, 145, 3, 50);
  EXPECT_EQ(r.reloads, 1);
  EXPECT_EQ(r.steps, 150);
  EXPECT_LT(r.train_loss.value(), 50);
  EXPECT_NE(said.find("3 steps in a row with a loss far above"), std::string::npos) << said;
  EXPECT_EQ(said.find("finite"), std::string::npos) << said;
}

// The gradient of such a step is never looked at: it has no norm, least of all the last one's.
TEST_F(SpikeTest, LogsNoNormForAStepLeftOutForItsLoss) {
  run("run", 6, 140, 2, 50);
  std::istringstream lines(read("log.jsonl"));
  int steps = 0, spikes = 0;
  for (std::string line; std::getline(lines, line); ++steps) {
    const nlohmann::json j = nlohmann::json::parse(line);
    const bool spike = j.value("spike", false);
    spikes += spike;
    EXPECT_EQ(j.contains("grad_norm"), !spike) << line;
    EXPECT_EQ(j.value("skipped", false), spike) << line;
  }
  EXPECT_EQ(steps, 150);
  EXPECT_EQ(spikes, 2);
}

}  // namespace
}  // namespace hearth
