// What every command that trains can do: speed and memory in its log, a plan before the first step,
// automatic micro-batches, a target, more steps for a finished run; and continued pretraining.
#include "e2e/short_runs.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"

namespace hearth {
namespace {

using nlohmann::json;

class EveryTask : public TaskTest {
 protected:
  std::string task() const { return GetParam(); }
  Arguments call(const fs::path& run, const std::string& more = "") const {
    return runs.arguments(task(), run) + words(more);
  }
  json done(const Ran& r) const {
    EXPECT_EQ(r.status, 0) << r.err;
    return r.status == 0 ? json::parse(r.out) : json();
  }
  static std::string weights(const fs::path& run) {
    return read_file(run / "latest" / "model.safetensors");
  }
  const ShortRuns runs;
  const Folder& folder = runs.folder;
};

TEST_P(EveryTask, LogsItsSpeedAndPlansItsMemory) {
  const Ran r = run(folder, call(folder / "run", "--json"));
  const json j = done(r);
  for (const char* key :
       {"steps", "tokens", "train_loss", "tokens_per_s", "train_seconds", "skipped", "reloads"})
    EXPECT_TRUE(j.value(key, json()).is_number()) << key << " in " << r.out;
  for (const char* phase : {"model", "data", "load", "first_steps", "save", "total"})
    EXPECT_TRUE(j["seconds"].is_object() && j["seconds"].contains(phase)) << phase << r.out;
  // What an evaluation found: a loss, or the reward of GRPO.
  EXPECT_EQ(j.contains("val_loss"), task() != "grpo");
  EXPECT_EQ(j.value(task() == "grpo" ? "eval_step" : "val_step", 0), 5);
  EXPECT_NE(r.err.find("memory: weights "), std::string::npos) << r.err;
  std::istringstream perf(read_file(folder / "run" / "perf.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(perf, line);) {
    const json step = json::parse(line);
    if (!step.contains("ms")) continue;
    ++steps;
    for (const char* key : {"tflops", "mfu", "tokens_per_s", "memory_bytes", "peak_memory_bytes"})
      EXPECT_GT(step.value(key, 0.0), 0) << key << " in " << line;
  }
  EXPECT_EQ(steps, 5);
}

TEST_P(EveryTask, IsExtendedToTheSameWeights) {
  // With a constant learning rate a run of 5 steps that is extended to 8 is one of 8 steps.
  const std::string constant = "--schedule constant --json";
  done(run(folder, call(folder / "whole", constant + " --steps 8")));
  done(run(folder, call(folder / "parts", constant)));
  const json j = done(run(folder, {task(), "--run", (folder / "parts").string(), "--resume",
                                   "--steps", "8", "--json", "--threads", "1"}));
  EXPECT_EQ(j["steps"], 8);
  EXPECT_EQ(weights(folder / "whole"), weights(folder / "parts"));
  expect_error(run(folder, {task(), "--run", (folder / "parts").string(), "--resume", "--steps",
                            "6", "--threads", "1"}),
               1, "steps = 8, not 6");
}

TEST_P(EveryTask, TrainsInFp8AndResumesToTheSameWeights) {
  const std::string settings = "--dtype fp8 --json";
  done(run(folder, call(folder / "whole", settings)));
  done(run(folder, call(folder / "parts", settings + " --stop-after-step 3")));
  const fs::path saved = folder / "parts" / "latest" / "state" / "trainer.json";
  EXPECT_TRUE(json::parse(read_file(saved))["task"].contains("fp8_scales"));
  done(run(folder,
           {task(), "--run", (folder / "parts").string(), "--resume", "--json", "--threads", "1"}));
  EXPECT_EQ(weights(folder / "whole"), weights(folder / "parts"));
  std::string plain = settings;
  plain.replace(plain.find("fp8"), 3, "bf16");
  done(run(folder, call(folder / "plain", plain)));
  EXPECT_NE(weights(folder / "whole"), weights(folder / "plain"));
}

// DPO and GRPO compute the head in bf16 (docs/fp8.md).
TEST_P(EveryTask, ChoosesItsProductsInFp8) {
  const bool has_head = task() == "pretrain" || task() == "sft";
  done(run(folder, call(folder / "all", "--dtype fp8 --json")));
  for (const char* flag : {"--fp8-wgrad", "--fp8-head"}) {
    SCOPED_TRACE(flag);
    const std::string value = std::string(flag) == "--fp8-head" ? "off" : "bf16";
    const std::string choice = std::string(" ") + flag + " " + value + " --json";
    if (value == "off" && !has_head) {
      expect_error(run(folder, call(folder / "none", "--dtype fp8" + choice)), 2,
                   "expected a known flag, got --fp8-head");
      continue;
    }
    done(run(folder, call(folder / value, "--dtype fp8 --stop-after-step 3" + choice)));
    done(run(folder,
             {task(), "--run", (folder / value).string(), "--resume", "--json", "--threads", "1"}));
    EXPECT_NE(weights(folder / value), weights(folder / "all"));
    expect_error(run(folder, call(folder / "none", "--dtype bf16" + choice)), 2,
                 std::string("[") + flag + "] needs --dtype fp8");
  }
}

TEST_P(EveryTask, TakesAnyScheduleAndTheSpikeGuard) {
  done(run(folder, call(folder / "run", "--schedule wsd --decay-steps 2 --spike-z 6 --json")));
  expect_error(run(folder, call(folder / "other", "--schedule wsd")), 2, "--decay-steps");
}

TEST_P(EveryTask, OffloadIsForACard) {
  expect_error(run(folder, call(folder / "run", "--offload --device cpu")), 2, "--offload");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, testing::Values("pretrain", "sft", "dpo", "grpo"),
                         [](const auto& info) { return std::string(info.param); });

class ExampleTasks : public EveryTask {};

TEST_P(ExampleTasks, ChooseTheirMicroBatchOnce) {
  const std::string often = "--json --batch 0 --stop-after-step 2";
  done(run(folder, call(folder / "run", often)));
  const json saved =
      json::parse(read_file(folder / "run" / "latest" / "state" / "trainer.json"))["task"];
  EXPECT_GE(saved["micro_batch"], 1);
  EXPECT_LE(saved["micro_batch"], 8);
  done(run(folder,
           {task(), "--run", (folder / "run").string(), "--resume", "--json", "--threads", "1"}));
}

TEST_P(ExampleTasks, StopAtATargetLoss) {
  const json j = done(run(folder, call(folder / "run", "--json --target-loss 1000")));
  EXPECT_EQ(j["reason"], "target");
  EXPECT_EQ(j["steps"], 0);
  EXPECT_EQ(j["checkpoint"], (folder / "run/checkpoints/step-00000000").string());
  const std::string run_folder = (folder / "run").string();
  const Ran again = run(folder, {task(), "--run", run_folder, "--resume", "--json"});
  done(again);
  EXPECT_NE(again.err.find("already finished (0 of 5 steps, it reached its target)"),
            std::string::npos)
      << again.err;
  const Ran text = run(folder, {"generate", "--model", run_folder, "--prompt", "q1", "--max-tokens",
                                "2", "--threads", "1"});
  EXPECT_EQ(text.status, 0) << text.err;
}

// A run that was begun for epochs has as many steps as they have, and is not cut short by fewer.
TEST_P(ExampleTasks, EpochsAreExtendedNeverCut) {
  Arguments args = call(folder / "run", "--json --epochs 2");
  const auto steps = std::ranges::find(args, "--steps");
  args.erase(steps, steps + 2);
  const json whole = done(run(folder, args));
  const int64_t n = whole["steps"];
  ASSERT_GT(n, 1);
  const auto again = [&](const char* flag, int64_t value) {
    return run(folder, {task(), "--run", (folder / "run").string(), "--resume", "--json",
                        "--threads", "1", flag, std::to_string(value)});
  };
  expect_error(again("--steps", n - 1), 2, "steps that the run was begun for");
  EXPECT_EQ(done(again("--epochs", 4))["steps"], 2 * n);
}

// A run whose length is a number of steps has no use for epochs.
TEST_P(ExampleTasks, EpochsBesideStepsAreRefused) {
  expect_error(run(folder, call(folder / "both", "--epochs 3")), 2,
               "[--epochs] has no effect: the length of the run is --steps 5; leave one of them");
  EXPECT_FALSE(fs::exists(folder / "both"));
  const fs::path begun = folder / "run";
  done(run(folder, call(begun, "--json --stop-after-step 1")));
  const Arguments resume{task(), "--run", begun, "--resume", "--json", "--threads", "1"};
  expect_error(run(folder, resume + Arguments{"--epochs", "50"}), 2,
               "[--epochs] has no effect: the length of the run is --steps 5; leave it out, or "
               "extend the run by a larger --steps");
  // The settings of a run name both, and may be those of another run.
  const Arguments config{"--config", begun / "config.toml"};
  EXPECT_EQ(
      done(run(folder, Arguments{task(), "--run", folder / "again", "--threads", "1", "--json"} +
                           config))["steps"],
      5);
  EXPECT_EQ(done(run(folder, resume))["steps"], 5);
}

INSTANTIATE_TEST_SUITE_P(Tasks, ExampleTasks, testing::Values("sft", "dpo"),
                         [](const auto& info) { return std::string(info.param); });

class GrpoAlone : public EveryTask {};

TEST_P(GrpoAlone, ChoosesItsMicroBatchOnce) {
  done(run(folder, call(folder / "run", "--json --micro-tokens 0 --stop-after-step 2")));
  const json saved =
      json::parse(read_file(folder / "run" / "latest" / "state" / "trainer.json"))["task"];
  EXPECT_GE(saved["micro_tokens"], 6);
  done(run(folder,
           {"grpo", "--run", (folder / "run").string(), "--resume", "--json", "--threads", "1"}));
}

INSTANTIATE_TEST_SUITE_P(Tasks, GrpoAlone, testing::Values("grpo"),
                         [](const auto& info) { return std::string(info.param); });

// Pretraining that begins from a model has its weights, its shape, its tokenizer and its template.
TEST(ContinuedPretraining, BeginsFromAModel) {
  const ShortRuns runs;
  const Folder& folder = runs.folder;
  const std::string common = "pretrain --data " + (folder / "train.bin").string() + " --model " +
                             (folder / "model").string() +
                             " --batch 2 --seq 16 --threads 1 --dtype fp32 --json";
  const auto begin = [&](const char* name, const std::string& more) {
    return run(folder, words(common + " --run " + (folder / name).string() + " " + more));
  };
  ASSERT_EQ(begin("still", "--steps 1 --lr 0").status, 0);
  const auto tensors = [&](const fs::path& dir) { return read_file(dir / "model.safetensors"); };
  EXPECT_EQ(tensors(folder / "still" / "latest"), tensors(folder / "model"));
  EXPECT_TRUE(fs::exists(folder / "still" / "latest" / "tokenizer.json"));

  // Stopped, the model deleted, and resumed: the same run.
  ASSERT_EQ(begin("whole", "--steps 6").status, 0);
  ASSERT_EQ(begin("parts", "--steps 6 --stop-after-step 3").status, 0);
  fs::rename(folder / "model", folder / "gone");
  const Ran resumed = run(folder, {"pretrain", "--run", (folder / "parts").string(), "--resume",
                                   "--json", "--threads", "1"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(tensors(folder / "whole" / "latest"), tensors(folder / "parts" / "latest"));
  EXPECT_EQ(read_file(folder / "whole" / "log.jsonl"), read_file(folder / "parts" / "log.jsonl"));

  fs::rename(folder / "gone", folder / "model");
  // The model's own tokenizer is the one to sample with and to know documents by.
  const Ran sampled = begin("sampled", "--steps 2 --sample-every 1 --document-mask");
  EXPECT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_TRUE(fs::exists(folder / "sampled" / "samples.jsonl"));
  expect_error(begin("both", "--steps 1 --preset tiny"), 2, "--preset");
  expect_error(begin("both", "--steps 1 --dim 32"), 2, "--model");
}

}  // namespace
}  // namespace hearth
