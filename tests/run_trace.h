// Everything a run has computed, as bytes: its log and the tensors of one of its checkpoints.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "sys/files/files.h"

namespace hearth {

// By the name of the file.
using RunTrace = std::map<std::string, std::string>;

inline RunTrace run_trace(const std::filesystem::path& run, const std::string& checkpoint) {
  const std::filesystem::path folder = run / "checkpoints" / checkpoint;
  RunTrace all{{"log.jsonl", read_file(run / "log.jsonl")}};
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder))
    if (e.path().extension() == ".safetensors")
      all[e.path().lexically_relative(folder).string()] = read_file(e.path());
  return all;
}

// Where two runs differ first, or nothing: lines of the log, else the files and the first bytes.
inline std::string difference_of_runs(const RunTrace& a, const RunTrace& b) {
  std::istringstream lines(a.at("log.jsonl")), others(b.at("log.jsonl"));
  for (std::string line, other; !lines.eof() || !others.eof(); line.clear(), other.clear()) {
    std::getline(lines, line), std::getline(others, other);
    if (line != other) return "log.jsonl: " + line + "\nand: " + other;
  }
  std::string text;
  for (const auto& [name, bytes] : a) {
    const auto it = b.find(name);
    if (it == b.end()) {
      text += name + " is missing\n";
      continue;
    }
    const auto [at, in_b] = std::ranges::mismatch(bytes, it->second);
    if (at != bytes.end() || in_b != it->second.end())
      text += name + " differs from byte " + std::to_string(at - bytes.begin()) + " of " +
              std::to_string(bytes.size()) + "\n";
  }
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) text += name + " is new\n";
  return text;
}

}  // namespace hearth
