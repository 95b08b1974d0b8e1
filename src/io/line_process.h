// A program that speaks lines: started without a shell, written to and read from by a deadline,
// killed with all it started when its owner goes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/files.h"

namespace hearth {

class LineProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  enum class Heard { line, late, ended, too_long };

  // An error where the program cannot be started. What it says on stderr goes nowhere.
  explicit LineProcess(const std::filesystem::path& program, std::vector<std::string> args = {});
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  Heard say(std::string_view line, Deadline);  // without its newline; line: all was taken
  Heard hear(std::string& line, Deadline);     // without its line end
  pid_t pid() const { return pid_; }

 private:
  static constexpr size_t longest_line = size_t(1) << 20;

  pid_t pid_ = -1;
  Fd line_;  // one socket for both ways: a write to a program that died is an error, no signal
  std::string heard_;
};

inline LineProcess::Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::microseconds(int64_t(seconds * 1e6));
}

}  // namespace hearth
