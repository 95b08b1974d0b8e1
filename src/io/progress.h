// How far a long command is, on stderr: a bar with rate and time left, redrawn on a terminal, else
// a line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hearth {

class ProgressLine {
 public:
  // `total` of what is to be done, 0 where nobody knows, `done` before; `work` is what the rate
  // counts, in bytes.
  struct Start {
    int64_t total = 0, done = 0, work = 0;
  };
  ProgressLine(std::string name, Start, bool on);

  bool due() const;  // whether a line would be shown now
  void show(int64_t done, int64_t work, const std::string& detail);
  void finish(int64_t done, int64_t work, const std::string& detail);  // always, and ends the line

 private:
  using clock = std::chrono::steady_clock;
  std::string line(int64_t done, int64_t work, const std::string& detail) const;

  std::string name_;
  Start start_;
  bool on_, terminal_;
  clock::time_point began_, shown_;
};

}  // namespace hearth
