// Shared by the tests of rewards and prompts: a folder for files and shell programs, rows, texts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "rewards/rewards.h"

namespace hearth {

struct RewardFolder {
  RewardFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hearth-reward-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~RewardFolder() { std::filesystem::remove_all(path); }
  // Writes a program in sh and returns its path.
  std::string script(const std::string& name, const std::string& body) const {
    const std::filesystem::path file = path / name;
    std::ofstream(file) << "#!/bin/sh\n" << body;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  std::filesystem::path path;
};

inline PromptRow row_of(const nlohmann::json& row) {
  return {row, row.value("prompt", ""), "test:1"};
}

inline std::vector<RewardText> texts(std::initializer_list<std::string> all) {
  std::vector<RewardText> r;
  for (const std::string& s : all) r.push_back({s, int64_t(s.size())});
  return r;
}

}  // namespace hearth
