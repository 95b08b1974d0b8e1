// StepLines: a file of JSON lines that begin with {"step":N,. Checkpoints have no mark of it: a
// resumed run drops the lines of later steps at its end, and writes them again.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline formats {

class StepLines {
 public:
  // Continues after `step`. The file is created with the first line.
  StepLines(std::filesystem::path, int64_t step);
  void append(std::string_view line);

 private:
  std::filesystem::path path_;
  std::optional<AppendLog> log_;
};

}  // namespace hearth::inline formats
