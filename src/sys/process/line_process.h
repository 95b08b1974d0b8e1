// A child process that communicates by lines: started without a shell, with deadlines on reads and
// writes. The process and all its descendants end when the owner is destroyed or this process dies
// in any way; the supervisor (sys/process/supervisor.h) ensures that.
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

namespace hearth::inline sys {

class LineProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  enum class Heard { line, late, ended, too_long };

  enum class Stderr { dropped, kept };

  // Throws if the program cannot be started.
  explicit LineProcess(const std::filesystem::path& program, std::vector<std::string> args = {},
                       Stderr = Stderr::dropped);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  Heard say(std::string_view line, Deadline);  // without a newline; Heard::line: all was written
  Heard hear(std::string& line, Deadline);     // without the line end
  // The end of its stderr output so far, if stderr is kept.
  std::string last_words();
  pid_t pid() const { return pid_; }  // of the program
  // When `abandoned` becomes true, a pending wait soon returns as late.
  void give_up_when(const std::atomic<bool>& abandoned) { abandoned_ = &abandoned; }

 private:
  static constexpr size_t longest_line = size_t(1) << 20;
  static constexpr size_t most_words = 4096;
  bool ready(short events, Deadline);
  void listen();
  void end();

  pid_t supervisor_ = -1, pid_ = -1;
  const std::atomic<bool>* abandoned_ = nullptr;
  Fd leash_;  // to the supervisor, which ends everything when it closes
  Fd line_;   // one socket for both directions: a write to a dead program is an error, not a signal
  Fd words_;  // its stderr; read during every wait, so that the program does not block on it
  std::string heard_, said_;
};

// Outcome of a request to the program; missing: the program could not be started.
enum class Trouble { none, missing, died, hung, rubbish };
Trouble trouble_of(LineProcess::Heard);

// Looks up a program like a shell: a name with a slash is used as is, another name is searched in
// PATH and then in `last`.
std::optional<std::filesystem::path> find_program(const std::string& name,
                                                  const std::filesystem::path& last = {});

inline LineProcess::Deadline deadline_in(double seconds) {
  constexpr double most = 1e9;  // within the range of the clock
  return std::chrono::steady_clock::now() +
         std::chrono::microseconds(int64_t((seconds < most ? seconds : most) * 1e6));
}

}  // namespace hearth::inline sys
