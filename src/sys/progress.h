// How far a long command is, on stderr: a line that is redrawn on a terminal, else a new line every
// few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hearth {

// The text without what a terminal of `width` columns could not show on one line.
std::string fitted(std::string text, size_t width);

// Any text.
class StatusLine {
 public:
  explicit StatusLine(bool on = true);
  ~StatusLine();  // ends a line that is still open
  StatusLine(const StatusLine&) = delete;

  bool due() const;                    // whether a line would be shown now
  void show(const std::string& text);  // if it is due
  void show_now(const std::string& text);
  void finish(const std::string& text);  // always, and ends the line
  void clear();                          // takes an open line away

  bool on_terminal() const { return terminal_; }

 private:
  using clock = std::chrono::steady_clock;
  bool on_, terminal_, open_ = false;
  clock::time_point shown_;
};

// Bytes, with a bar, their rate and the time left.
class ProgressLine {
 public:
  // `total` of what is to be done, 0 where nobody knows, `done` before; `work` is what the rate
  // counts, in bytes.
  struct Start {
    int64_t total = 0, done = 0, work = 0;
  };
  ProgressLine(std::string name, Start, bool on);

  bool due() const { return status_.due(); }
  void show(int64_t done, int64_t work, const std::string& detail);
  void finish(int64_t done, int64_t work, const std::string& detail);  // always, and ends the line

 private:
  using clock = std::chrono::steady_clock;
  std::string line(int64_t done, int64_t work, const std::string& detail) const;

  std::string name_;
  Start start_;
  StatusLine status_;
  clock::time_point began_;
};

}  // namespace hearth
