// Pretraining runs in fp8 on the CPU: they learn, stop and resume, and log their scales.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "cpu/backend.h"
#include "data/shards.h"
#include "fp8_case.h"
#include "optim/fp8_scales.h"
#include "run_trace.h"
#include "sys/files/files.h"
#include "train/pretrain/pretrain.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using namespace cases;
namespace fs = std::filesystem;

class Fp8Run : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "hearth-fp8-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    std::vector<int32_t> ids{1};
    for (int i = 1; i < 20000; ++i) ids.push_back((5 * ids.back() + 3 + (i % 11 == 0)) % 29);
    write_tokens(folder / "data.bin", TokenFormat::llmc, 29, ids);
  }
  void TearDown() override { fs::remove_all(folder); }

  PretrainSpec spec(const std::string& run, TrainDType dtype) const {
    PretrainSpec s;
    s.model = fp8_models()[1].config;
    s.model.vocab = 29, s.model.context = 16, s.model.init_std = 0.02f;
    s.model = s.model.resolve();
    s.train.data = s.train.val = {(folder / "data.bin").string()};
    s.train.dtype = dtype;
    s.train.steps = 60, s.train.batch = 4, s.train.seq = "16", s.train.tokens_per_step = "128";
    s.train.lr = 1e-2, s.train.checkpoint_every = 20, s.train.eval_every = 20;
    s.train.eval_tokens = 1024;
    s.run = folder / run;
    s.quiet = true;
    return s;
  }
  RunTrace trace(const std::string& run) const { return run_trace(folder / run, "step-00000060"); }

  fs::path folder;
};

TEST_F(Fp8Run, LearnsLikeBf16) {
  const auto cpu = make_cpu_backend(2);
  const RunResult bf16 = pretrain(spec("bf16", TrainDType::bf16), *cpu);
  const RunResult fp8 = pretrain(spec("fp8", TrainDType::fp8), *cpu);
  ASSERT_TRUE(bf16.val_loss && fp8.val_loss);
  EXPECT_LT(*bf16.val_loss, 2.5);  // ln 29 is 3.37: both have learned
  EXPECT_NEAR(*fp8.val_loss, *bf16.val_loss, 0.1);
  EXPECT_NE(*fp8.val_loss, *bf16.val_loss);
}

TEST_F(Fp8Run, ResumesToTheByte) {
  const auto cpu = make_cpu_backend(2);
  pretrain(spec("whole", TrainDType::fp8), *cpu);
  PretrainSpec part = spec("parts", TrainDType::fp8);
  part.stop_after_step = 33;  // scales come from the previous step there
  EXPECT_EQ(pretrain(part, *cpu).reason, Ending::stopped);
  part.stop_after_step.reset(), part.resume = true;
  pretrain(part, *cpu);
  EXPECT_EQ(difference_of_runs(trace("whole"), trace("parts")), "");
}

TEST(Fp8Scales, AreSummarised) {
  const auto site = [](float scale, float previous, float unfinished = 0) {
    Fp8Site s;
    s.scale = scale, s.previous = previous, s.largest = std::bit_cast<uint32_t>(unfinished);
    return s;
  };
  const DType e4m3 = DType::e4m3, e5m2 = DType::e5m2;
  const auto summary = [](const std::vector<Fp8Site>& sites, const std::vector<DType>& formats) {
    return fp8_summary(sites, formats).dump();
  };
  EXPECT_EQ(summary({site(0.5f, 224), site(0.25f, 112.5f), site(2, 114688), site(2, 114689)},
                    {e4m3, e4m3, e5m2, e5m2}),
            R"({"fp8_scale_min":0.25,"fp8_scale_max":2.0,"fp8_saturated":2})");
  // A skipped update leaves the largest value of its step where it was found.
  EXPECT_EQ(summary({site(1, 448, 500), site(1, 500, 448)}, {e4m3, e4m3}),
            R"({"fp8_scale_min":1.0,"fp8_scale_max":1.0,"fp8_saturated":1})");
  // The scale of the gradient of the logits is not measured; a site may have been of no use yet.
  EXPECT_EQ(summary({site(1e-9f, 0), site(4, 1), site(0, 0)}, {e5m2, e4m3, e5m2}),
            R"({"fp8_scale_min":4.0,"fp8_scale_max":4.0,"fp8_saturated":0})");
  EXPECT_EQ(summary({}, {}), "{}");
}

TEST_F(Fp8Run, LogsItsScales) {
  const auto cpu = make_cpu_backend(2);
  PretrainSpec s = spec("fp8", TrainDType::fp8), plain = spec("bf16", TrainDType::bf16);
  s.train.steps = plain.train.steps = 20;
  pretrain(s, *cpu), pretrain(plain, *cpu);
  const auto steps_of = [](const PretrainSpec& run) {
    std::istringstream log(read_file(run.run / "log.jsonl"));
    std::vector<nlohmann::json> steps;
    for (std::string line; std::getline(log, line);)
      if (const auto j = nlohmann::json::parse(line); j.contains("loss")) steps.push_back(j);
    return steps;
  };
  const std::vector<nlohmann::json> steps = steps_of(s);
  ASSERT_EQ(steps.size(), 20u);
  for (const nlohmann::json& j : steps) {
    EXPECT_GT(j.at("fp8_scale_min"), 0) << j;
    EXPECT_LT(j.at("fp8_scale_min"), j.at("fp8_scale_max")) << j;
    // While scales are measured no number is beyond them.
    EXPECT_GE(j.at("fp8_saturated"), 0) << j;
    if (j.at("step") <= int64_t(fp8_measured_steps)) { EXPECT_EQ(j.at("fp8_saturated"), 0) << j; }
  }
  for (const nlohmann::json& j : steps_of(plain)) EXPECT_FALSE(j.contains("fp8_scale_min")) << j;
}

TEST_F(Fp8Run, SettingsBelongToTheRun) {
  const auto cpu = make_cpu_backend(2);
  for (const bool head : {true, false}) {
    PretrainSpec s = spec(head ? "head" : "wgrad", TrainDType::fp8);
    s.train.steps = 4;
    (head ? (void)(s.train.fp8.head = Fp8Head::off) : (void)(s.train.fp8.wgrad = Fp8Wgrad::bf16));
    EXPECT_TRUE(pretrain(s, *cpu).val_loss);
    const std::string toml = read_file(s.run / "config.toml");
    EXPECT_NE(toml.find(head ? "fp8_head = \"off\"" : "fp8_wgrad = \"bf16\""), std::string::npos);
  }
  PretrainSpec s = spec("plain", TrainDType::bf16);
  s.train.fp8.head = Fp8Head::off;
  EXPECT_NE(message_of([&] { pretrain(s, *cpu); }).find("needs --dtype fp8"), std::string::npos);
  EXPECT_NE(message_of([] { to_dtype(TrainDType::fp8); }).find("a type of training"),
            std::string::npos);
}

}  // namespace
}  // namespace hearth
