// Independent jobs that run several at a time, such as hashing the files of a checkpoint.
#pragma once

#include <cstddef>
#include <functional>

namespace hearth {

// Runs job(i) for every i below `count` on the calling thread and on further ones, together at most
// one per usable core, and returns when all have ended. Once a job throws, no other starts; the
// exception of the failed job with the lowest number is rethrown.
void in_parallel(size_t count, const std::function<void(size_t)>& job);

}  // namespace hearth
