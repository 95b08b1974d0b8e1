// --z-loss of the commands that train by cross-entropy: a second term of the loss, in every log.
#include "e2e/short_runs.h"
#include "formats/json.h"

namespace hearth {
namespace {

using nlohmann::json;

class ZLossCommand : public testing::TestWithParam<const char*> {
 protected:
  std::vector<json> log(const fs::path& run) const {
    std::vector<json> lines;
    std::istringstream in(read_file(run / "log.jsonl"));
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  Arguments call(const fs::path& run, const Arguments& more) const {
    return runs.arguments(GetParam(), run) + more;
  }
  const ShortRuns runs;
  const Folder& folder = runs.folder;
};

TEST_P(ZLossCommand, IsLoggedByNameAndResumesToTheBit) {
  const fs::path whole = folder / "whole", parts = folder / "parts", plain = folder / "plain";
  const Ran r = run(folder, call(whole, {"--z-loss", "1e-3"}));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("  z_loss "), std::string::npos) << r.err;
  int steps = 0, validations = 0;
  for (const json& j : log(whole)) {
    const bool validation = j.contains("val_loss");
    validation ? ++validations : ++steps;
    EXPECT_GT(j.value(validation ? "val_z_loss" : "z_loss", 0.0), 0) << j;
    EXPECT_EQ(j.contains("z_loss"), !validation) << j;
  }
  EXPECT_EQ(steps, 5);
  EXPECT_GE(validations, 5);
  EXPECT_NE(read_file(whole / "config.toml").find("\nz_loss = 0.001"), std::string::npos);

  ASSERT_EQ(run(folder, call(parts, {"--z-loss", "1e-3", "--stop-after-step", "3"})).status, 0);
  expect_error(run(folder, {GetParam(), "--run", parts.string(), "--resume", "--z-loss", "0.5"}), 1,
               "z_loss");
  const Ran rest = run(folder, {GetParam(), "--run", parts.string(), "--resume"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  for (const char* file : {"log.jsonl", "latest/model.safetensors"})
    EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;

  // Step 1 has the loss of a run without the term, and changes other weights.
  ASSERT_EQ(run(folder, call(plain, {})).status, 0);
  const auto losses = [&](const fs::path& run) {
    std::vector<double> all;
    for (const json& j : log(run))
      if (j.contains("loss")) all.push_back(j["loss"]);
    return all;
  };
  EXPECT_EQ(losses(whole)[0], losses(plain)[0]);
  EXPECT_NE(losses(whole)[1], losses(plain)[1]);
  for (const json& j : log(plain)) EXPECT_FALSE(j.contains("z_loss") || j.contains("val_z_loss"));
}

TEST_P(ZLossCommand, RefusesAWeightThatIsNone) {
  for (const auto& [bad, expected] :
       {std::pair{"-1e-4", "a weight of 0 or more"}, {"nan", "a number"}, {"inf", "a number"}})
    expect_error(run(folder, call(folder / "run", {std::string("--z-loss=") + bad})), 2,
                 std::string("[--z-loss] expected ") + expected);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

INSTANTIATE_TEST_SUITE_P(Tasks, ZLossCommand, testing::Values("pretrain", "sft"),
                         [](const auto& info) { return std::string(info.param); });

// The weight of further tokens by step: a run that is resumed between two changes keeps the bits.
TEST(FurtherLoss, FollowsItsSchedule) {
  const ShortRuns runs;
  const auto terms = [&](const fs::path& run) {
    std::vector<double> all;  // of each step, 0 where there is none
    std::istringstream in(read_file(run / "log.jsonl"));
    for (std::string line; std::getline(in, line);)
      if (const json j = json::parse(line); j.contains("loss"))
        all.push_back(j.value("further_2", 0.0));
    return all;
  };
  const auto trained = [&](const char* name, const std::string& flags) {
    const fs::path folder = runs.folder / name;
    const Ran r = run(runs.folder, runs.arguments("pretrain", folder) + words(flags));
    EXPECT_EQ(r.status, 0) << r.err;
    return folder;
  };
  const std::string schedule = "--further-loss-schedule 0:0.5,2:0.25,80%:0";
  const fs::path whole = trained("whole", schedule), same = trained("same", "--further-loss 0.5"),
                 parts = trained("parts", schedule + " --stop-after-step 3");
  const Ran rest = run(runs.folder, {"pretrain", "--run", parts.string(), "--resume"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  for (const char* file : {"log.jsonl", "latest/model.safetensors"})
    EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;
  const std::vector<double> changed = terms(whole), kept = terms(same);
  ASSERT_EQ(changed.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(changed[i] > 0, i < 4) << i;
    EXPECT_EQ(changed[i] == kept[i], i < 3) << i;  // the third step begins with equal weights
  }
  expect_error(run(runs.folder, {"pretrain", "--run", parts.string(), "--resume", "--steps", "9"}),
               2, "--further-loss-schedule is in shares of its 5 steps");
}

TEST(ZLoss, IsNotATermOfOtherTasks) {
  const ShortRuns runs;
  expect_error(
      run(runs.folder, runs.arguments("dpo", runs.folder / "run") + Arguments{"--z-loss", "0"}), 2,
      "--z-loss");
}

}  // namespace
}  // namespace hearth
