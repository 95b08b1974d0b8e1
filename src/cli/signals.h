// SIGINT and SIGTERM for commands that train: the first asks the run to save and end, a later one
// ends it at once. What comes within a second of the first is the same wish told twice: timeout(1)
// signals a process and then its group, launchers pass on what the terminal has already sent.
#pragma once

#include <atomic>

namespace hearth {

// Counts signals from now on.
const std::atomic<int>* count_stop_signals();

}  // namespace hearth
