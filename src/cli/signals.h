// Signals. SIGINT, SIGTERM and SIGHUP ask a command that trains to save and end; a later one ends
// it at once. What comes within a second of the first is the same request made twice: timeout(1)
// signals a process and then its group, launchers pass on what the terminal has already sent.
#pragma once

#include <atomic>
#include <string_view>

namespace hearth {

// Of every command, from the start: a write to a closed pipe or beyond the file size limit returns
// an error instead of ending the process, and a mapped file that shrinks is named.
void survive_write_signals();

// Counts the signals that ask for an end, from now on. A SIGHUP that nohup(1) has had ignored stays
// ignored.
const std::atomic<int>* count_stop_signals();

// A run that a signal ended, after it has saved: the process exits with 128 + signal.
struct StoppedBySignal {
  int signal;
};

// Throws StoppedBySignal where the reason that a run ended is "stopped" and a signal was the cause.
void expect_not_signalled(std::string_view reason);

}  // namespace hearth
