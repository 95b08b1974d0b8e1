// Shared by the tests of hearth grpo: a model of one-digit sums, and programs that reward it.
#pragma once

#include "e2e/command.h"

namespace hearth {

// A model of one-digit sums, hardly trained, with its prompts; made once.
struct Sums {
  Sums() {
    const auto must = [&](const Arguments& args) {
      const Ran r = run(folder, args);
      ASSERT_EQ(r.status, 0) << args[0] << ": " << r.err;
    };
    must({"data", "arithmetic", "--digits", "1", "--out", path("sums")});
    must({"tokenizer", "train", "--input", path("sums/pretrain.txt"), "--vocab", "257", "--out",
          path("tokenizer")});
    must({"data", "prepare", "--tokenizer", path("tokenizer"), "--input", path("sums/pretrain.txt"),
          "--out", path("tokens")});
    must({"pretrain",
          "--run",
          path("base"),
          "--data",
          path("tokens/train_000001.bin"),
          "--tokenizer",
          path("tokenizer"),
          "--vocab",
          "257",
          "--context",
          "32",
          "--layers",
          "2",
          "--dim",
          "32",
          "--heads",
          "2",
          "--hidden",
          "64",
          "--batch",
          "8",
          "--seq",
          "32",
          "--steps",
          "60",
          "--lr",
          "1e-2",
          "--eval-every",
          "0",
          "--dtype",
          "fp32",
          "--threads",
          "2"});
  }
  std::string path(const std::string& name) const { return folder / name; }
  Arguments grpo(const std::string& name, int steps) const {
    return {"grpo",
            "--model",
            path("base"),
            "--run",
            path(name),
            "--data",
            path("sums/prompts.jsonl"),
            "--eval-data",
            path("sums/heldout.jsonl"),
            "--reward",
            "exact",
            "--steps",
            std::to_string(steps),
            "--prompts",
            "4",
            "--group",
            "4",
            "--max-completion",
            "4",
            "--dtype",
            "fp32",
            "--lr",
            "1e-3",
            "--eval-every",
            "4",
            "--checkpoint-every",
            "2",
            "--mu",
            "2",
            "--mini-batches",
            "2",
            "--train-equal",
            "--threads",
            "2",
            "--json"};
  }
  std::string log(const std::string& name) const { return read_file(path(name) + "/log.jsonl"); }
  Folder folder;
};

inline const Sums& sums() {
  static const Sums made;
  return made;
}

inline std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    all.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return all;
}

inline std::string reward_script(const Folder& folder, const std::string& name,
                                 const std::string& body) {
  const fs::path file = folder / name;
  std::ofstream(file) << "#!/bin/sh\n" << body;
  fs::permissions(file, fs::perms::owner_all);
  return file.string();
}

}  // namespace hearth
