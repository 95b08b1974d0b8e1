// A checkpoint whose state has a number that no run could have: one line that names the field.
#include <fmt/format.h>

#include <regex>

#include "e2e/short_runs.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "sys/hash/hash.h"

namespace hearth {
namespace {

using nlohmann::json;

// Changes the state of a checkpoint and its sum in the manifest.
void rewrite_state(const fs::path& checkpoint, const std::string& field, const json& value) {
  json trainer = read_json(checkpoint / "state/trainer.json");
  trainer[json::json_pointer("/" + field)] = value;
  write_file_atomic(checkpoint / "state/trainer.json", trainer.dump());
  json manifest = read_json(checkpoint / "manifest.json");
  const FileDigest d = digest_file(checkpoint, "state/trainer.json");
  manifest["files"][d.file] = {{"size", d.size}, {"sha256", d.sha256}};
  write_file_atomic(checkpoint / "manifest.json", manifest.dump());
  ASSERT_FALSE(verify_checkpoint(checkpoint));
}

class ResumedState : public TaskTest {};

TEST_P(ResumedState, OutOfRangeIsOneLine) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path whole = runs.folder / "whole", copy = runs.folder / "copy";
  ASSERT_EQ(
      run(runs.folder, runs.arguments(task, whole) + Arguments{"--stop-after-step", "3"}).status,
      0);
  std::vector<std::pair<std::string, json>> bad{
      {"run/step", -1}, {"run/step", INT64_MIN}, {"run/tokens", -1}, {"run/update", {1}}};
  if (task == "grpo") bad.push_back({"task/beta", 0.5});
  for (const auto& [field, value] : bad) {
    SCOPED_TRACE(field + " = " + value.dump());
    fs::copy(whole, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    rewrite_state(copy / "checkpoints/step-00000003", field, value);
    const Ran r = run(runs.folder, runs.arguments(task, copy) + Arguments{"--resume"});
    EXPECT_EQ(r.status, 1) << r.err;
    std::string name = field;
    std::ranges::replace(name, '/', '.');
    EXPECT_NE(r.err.find("trainer.json] expected " + name), std::string::npos) << r.err;
    fs::remove_all(copy);
  }
}

// A cut log is said, once, and the run goes on.
TEST_P(ResumedState, ACutLogIsSaid) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path whole = runs.folder / "whole";
  const auto resumed = [&](const char* stop) {
    return run(runs.folder,
               runs.arguments(task, whole) + Arguments{"--resume", "--stop-after-step", stop});
  };
  ASSERT_EQ(resumed("2").status, 0);
  const auto size = fs::file_size(whole / "log.jsonl");
  fs::resize_file(whole / "log.jsonl", size - 5);
  const Ran cut = resumed("3");
  EXPECT_EQ(cut.status, 0) << cut.err;
  EXPECT_NE(cut.err.find("hearth: log.jsonl is shorter than the checkpoint recorded (" +
                         std::to_string(size - 5) + " of " + std::to_string(size) + " bytes)"),
            std::string::npos)
      << cut.err;
  const Ran after = resumed("4");
  EXPECT_EQ(after.status, 0) << after.err;
  EXPECT_EQ(after.err.find("log.jsonl"), std::string::npos) << after.err;
}

// A validation loss is shown with the step that it is of, unless that is the last one.
TEST_P(ResumedState, AnOldValidationIsNotTheResult) {
  const ShortRuns runs;
  const std::string task = GetParam();
  if (task == "grpo") return;  // its evaluations have no loss
  const fs::path folder = runs.folder / "run";
  Arguments call = runs.arguments(task, folder);
  *(std::find(call.begin(), call.end(), "--eval-every") + 1) = "2";
  const Ran part = run(runs.folder, call + Arguments{"--stop-after-step", "3"});
  EXPECT_EQ(part.status, 0) << part.err;
  EXPECT_TRUE(std::regex_search(part.out, std::regex("validation [0-9.]+ \\(step 2\\), ")))
      << part.out;
  EXPECT_TRUE(std::regex_search(part.err, std::regex("step 1/5 .* val [0-9.]+ \\(step 0\\)  lr")))
      << part.err;
  const Ran whole = run(runs.folder, call + Arguments{"--resume"});
  EXPECT_TRUE(std::regex_search(whole.out, std::regex("validation [0-9.]+, "))) << whole.out;
  const json again = json_of(run(runs.folder, call + Arguments{"--resume", "--json"}));
  EXPECT_EQ(again["val_step"], 5);
}

// By the keys of its config.toml alone.
TEST_P(ResumedState, ARunOfAnotherCommandIsNamed) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path folder = runs.folder / "run";
  ASSERT_EQ(
      run(runs.folder, runs.arguments(task, folder) + Arguments{"--stop-after-step", "1"}).status,
      0);
  for (const char* other : {"pretrain", "sft", "dpo", "grpo"}) {
    if (other == task) continue;
    const Ran r = run(runs.folder, {other, "--run", folder.string(), "--resume"});
    expect_error(r, 2,
                 folder.string() + " is a run of " + task + ": hearth " + task + " --run " +
                     folder.string() + " --resume");
  }
}

// Whatever flags are missing: the first thing missing is --resume.
TEST_P(ResumedState, AForgottenResumeIsNamed) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path folder = runs.folder / "run";
  const Arguments call = runs.arguments(task, folder) + Arguments{"--stop-after-step", "1"};
  ASSERT_EQ(run(runs.folder, call).status, 0);
  for (const Arguments& again : {call, Arguments{task, "--run", folder, "--steps", "9"}})
    expect_error(run(runs.folder, again), 1,
                 "[" + folder.string() + "] has a run in it: add --resume (and --steps N");
}

// Its last numbers are those of the run; what nobody measured is not there.
TEST_P(ResumedState, AFinishedRunSaysSo) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path folder = runs.folder / "run";
  const Arguments call = runs.arguments(task, folder);
  const json ended = json_of(run(runs.folder, call + Arguments{"--json"}));
  const std::string said =
      folder.string() +
      " is already finished (5 of 5 steps); nothing was done; --steps N makes it longer";
  const Ran again = run(runs.folder, call + Arguments{"--resume", "--json"});
  EXPECT_NE(again.err.find(said), std::string::npos) << again.err;
  const json j = json_of(again);
  if (task == "grpo") {
    EXPECT_EQ(j["reward"], ended["reward"]);
    for (const char* key : {"logprob_gap_max", "rollout_tokens_per_s", "train_tokens_per_s"})
      EXPECT_TRUE(j[key].is_null() && ended[key].is_number()) << key;
  } else {
    EXPECT_FLOAT_EQ(j["train_loss"].get<float>(), ended["train_loss"].get<float>());
    EXPECT_EQ(j["val_loss"], ended["val_loss"]);
    EXPECT_TRUE(j["tokens_per_s"].is_null() && ended["tokens_per_s"].is_number());
  }
  const Ran line = run(runs.folder, call + Arguments{"--resume"});
  EXPECT_EQ(line.status, 0) << line.err;
  if (task != "grpo") {
    const std::string loss = fmt::format("loss {:.4f},", ended["train_loss"].get<double>());
    EXPECT_NE(line.out.find(loss), std::string::npos) << line.out;
  }
  EXPECT_EQ(line.out.find("tokens/s"), std::string::npos) << line.out;
  EXPECT_EQ(line.out.find("no reward"), std::string::npos) << line.out;
  // One that has steps left says nothing of the kind.
  const Ran part = run(runs.folder, runs.arguments(task, runs.folder / "part") +
                                        Arguments{"--stop-after-step", "2"});
  EXPECT_EQ(part.err.find("already finished"), std::string::npos) << part.err;
}

INSTANTIATE_TEST_SUITE_P(Tasks, ResumedState, testing::Values("pretrain", "sft", "dpo", "grpo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hearth
