// Progress of a long command on stderr: one redrawn line on a terminal, else a new line every few
// seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hearth::inline sys {

// Truncates the text to one line of a terminal with `width` columns.
std::string fitted(std::string text, size_t width);

// Columns of the terminal at stderr; 80 if it is none.
size_t terminal_width();

// A status line of arbitrary text.
class StatusLine {
 public:
  explicit StatusLine(bool on = true);
  ~StatusLine();  // ends an open line
  StatusLine(const StatusLine&) = delete;

  bool due() const;                    // whether show() would print now
  void show(const std::string& text);  // only if due()
  void show_now(const std::string& text);
  void finish(const std::string& text);  // always prints, and ends the line
  void clear();                          // erases an open line

  bool on_terminal() const { return terminal_; }

 private:
  using clock = std::chrono::steady_clock;
  bool on_, terminal_, open_ = false;
  clock::time_point shown_;
};

// A byte count with a progress bar, a rate and the remaining time.
class ProgressLine {
 public:
  // `total` is the work to do (0 if unknown) and `done` the part done before; `work` is the byte
  // count that the rate refers to.
  struct Start {
    int64_t total = 0, done = 0, work = 0;
  };
  ProgressLine(std::string name, Start, bool on);

  bool due() const { return status_.due(); }
  void show(int64_t done, int64_t work, const std::string& detail);
  void finish(int64_t done, int64_t work,
              const std::string& detail);  // always prints, and ends the line

 private:
  using clock = std::chrono::steady_clock;
  std::string line(int64_t done, int64_t work, const std::string& detail) const;

  std::string name_;
  Start start_;
  StatusLine status_;
  clock::time_point began_;
};

}  // namespace hearth::inline sys
