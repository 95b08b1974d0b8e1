// Runs independent jobs in parallel, such as hashing the files of a checkpoint.
#pragma once

#include <cstddef>
#include <functional>

namespace hearth::inline sys {

// Runs job(i) for every i below `count` on the calling thread and on more threads, at most one per
// usable core, and returns when all have finished. After a job throws, no new job starts; the
// exception of the failed job with the lowest number is rethrown.
void in_parallel(size_t count, const std::function<void(size_t)>& job);

}  // namespace hearth::inline sys
