// A program that speaks lines: started without a shell, written to and read from by a deadline. It
// ends, with every process it has started, when its owner goes or this process dies in any way: a
// supervisor (sys/process/supervisor.h) sees to that.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth {

class LineProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  enum class Heard { line, late, ended, too_long };

  enum class Stderr { dropped, kept };

  // An error where the program cannot be started.
  explicit LineProcess(const std::filesystem::path& program, std::vector<std::string> args = {},
                       Stderr = Stderr::dropped);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  Heard say(std::string_view line, Deadline);  // without its newline; line: all was taken
  Heard hear(std::string& line, Deadline);     // without its line end
  // The end of what it has said on stderr so far, where that is kept.
  std::string last_words();
  pid_t pid() const { return pid_; }  // of the program
  // Once it is true, whoever waits is told that it is late, soon.
  void give_up_when(const std::atomic<bool>& abandoned) { abandoned_ = &abandoned; }

 private:
  static constexpr size_t longest_line = size_t(1) << 20;
  static constexpr size_t most_words = 4096;
  bool ready(short events, Deadline);
  void listen();
  void end();

  pid_t supervisor_ = -1, pid_ = -1;
  const std::atomic<bool>* abandoned_ = nullptr;
  Fd leash_;  // of the supervisor, which ends everything when it closes
  Fd line_;   // one socket for both ways: a write to a program that died is an error, no signal
  Fd words_;  // its stderr; read whenever it is waited for, so that it never blocks there for long
  std::string heard_, said_;
};

// Of an answer that was asked for; missing: the program could not be started.
enum class Trouble { none, missing, died, hung, rubbish };
Trouble trouble_of(LineProcess::Heard);

// As a shell would look for it: a name with a slash as it stands, another in PATH and then in
// `last`.
std::optional<std::filesystem::path> find_program(const std::string& name,
                                                  const std::filesystem::path& last = {});

inline LineProcess::Deadline deadline_in(double seconds) {
  constexpr double most = 1e9;  // within what the clock can say
  return std::chrono::steady_clock::now() +
         std::chrono::microseconds(int64_t((seconds < most ? seconds : most) * 1e6));
}

}  // namespace hearth
