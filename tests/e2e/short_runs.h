// Runs of a few steps of every task, small enough to run hundreds of times, and the data they read.
// Each step has an evaluation and a checkpoint; the learning rate is so high that the best
// checkpoint is not among the last.
#pragma once

#include <sstream>

#include "e2e/command.h"
#include "rewards/regex.h"
#include "served_folder.h"

namespace hearth {

inline Arguments words(const std::string& text) {
  std::istringstream in(text);
  Arguments all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

struct ShortRuns {
  ShortRuns() {
    using nlohmann::json;
    write_chain(folder / "train.bin", 2000, 1);
    write_chain(folder / "val.bin", 200, 2);
    write_served_folder(folder / "model");
    std::string rows, pairs, prompts;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt = "q" + std::to_string(i), good(size_t(1 + i % 3), char('a' + i));
      rows += json{{"prompt", prompt}, {"completion", good}}.dump() + "\n";
      pairs += json{{"prompt", prompt}, {"chosen", good}, {"rejected", "z" + good}}.dump() + "\n";
      prompts += json{{"prompt", prompt}, {"answer", "1"}}.dump() + "\n";
    }
    write_file_atomic(folder / "rows.jsonl", rows);
    write_file_atomic(folder / "pairs.jsonl", pairs);
    write_file_atomic(folder / "prompts.jsonl", prompts);
  }

  // Whether this build has the reward that the grpo task uses.
  static bool can_run(const std::string& task) { return task != "grpo" || *regex_library(); }

  // Without --resume.
  Arguments arguments(const std::string& task, const fs::path& run) const {
    const auto file = [&](const char* name) { return " " + (folder / name).string(); };
    const std::string common = " --run " + run.string() +
                               " --keep 2 --threads 1 --steps 5 --eval-every 1 "
                               "--checkpoint-every 1 --warmup 0";
    if (task == "pretrain")
      return words(task + common + " --data" + file("train.bin") + " --val" + file("val.bin") +
                   " --tokenizer" + file("model") +
                   " --vocab 260 --context 32 --layers 1 --dim 16 --heads 2 --hidden 16 --batch 2"
                   " --seq 16 --lr 0.2 --eval-tokens 64 --sample-every 2 --sample-tokens 3");
    const std::string aligned = task + common + " --clock 1700000000 --model" + file("model");
    if (task == "grpo")
      return words(aligned + " --data" + file("prompts.jsonl") + " --eval-data" +
                   file("prompts.jsonl") +
                   " --eval-prompts 4 --eval-write --reward regex:[a-m] --prompts 2 --group 3"
                   " --max-completion 4 --lr 3e-2 --sample-every 2");
    return words(aligned + " --data" + file(task == "sft" ? "rows.jsonl" : "pairs.jsonl") +
                 " --holdout 0.3 --batch 2 --max-length 32 --lr " +
                 (task == "sft" ? "0.1" : "0.1 --beta 1"));
  }

  Folder folder;
};

// The fixture of tests that run for several tasks: it skips a task that this build cannot run.
class TaskTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!ShortRuns::can_run(GetParam())) GTEST_SKIP() << "built without PCRE2";
  }
};

}  // namespace hearth
