// SIGINT and SIGTERM for commands that train: the first asks the run to save and end, the second
// ends it at once.
#pragma once

#include <atomic>

namespace hearth {

// Counts signals from now on.
const std::atomic<int>* count_stop_signals();

}  // namespace hearth
