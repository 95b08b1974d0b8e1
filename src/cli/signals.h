// Signals. SIGINT, SIGTERM and SIGHUP ask a training command to save and exit, and convert to
// remove what it has written; a second signal ends the command at once. Signals within a second of
// the first count as the same request: timeout(1) signals a process and then its group, and
// launchers forward signals that the terminal already sent.
#pragma once

#include <atomic>
#include <string>

#include "train/ending.h"

namespace hearth::inline cli {

// Called at the start of every command. A write to a closed pipe or beyond the file size limit then
// returns an error instead of ending the process, and a mapped file that shrinks is reported by
// name.
void survive_write_signals();

// Starts counting stop signals. A SIGHUP that nohup(1) ignores stays ignored.
const std::atomic<int>* count_stop_signals();

// The process exits with 128 + signal. Thrown after a run stopped by a signal has saved, or by a
// command that leaves nothing to resume.
struct StoppedBySignal {
  int signal;
  std::string instead = {};  // said where there is nothing to resume
};

// Throws StoppedBySignal if a run was stopped by a signal.
void expect_not_signalled(Ending);

// Throws it after a counted signal, for a benchmark, whose measurement begins anew. `runs`: the
// folder that keeps its runs; empty: none does.
void stop_benchmark_if_signalled(const std::string& runs);

// Throws it after a counted signal, for a command that then leaves nothing behind.
void stop_if_signalled();

}  // namespace hearth::inline cli
