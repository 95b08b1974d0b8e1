// Everything a run has computed, as bytes: its log and the tensors of one of its checkpoints.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "sys/files/files.h"

namespace hearth {

// A folder lists its files in the order of their creation, which may differ where several are
// written at once, so they are sorted.
inline std::string run_trace(const std::filesystem::path& run, const std::string& checkpoint) {
  std::set<std::filesystem::path> files;
  for (const auto& e :
       std::filesystem::recursive_directory_iterator(run / "checkpoints" / checkpoint))
    if (e.path().extension() == ".safetensors") files.insert(e.path());
  std::string all = read_file(run / "log.jsonl");
  for (const std::filesystem::path& file : files) all += read_file(file);
  return all;
}

}  // namespace hearth
