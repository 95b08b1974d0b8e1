#include "cli/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>

namespace hearth {
namespace {

std::atomic<int> stop_signals{0};
std::atomic<int64_t> first_signal{0};  // in nanoseconds of the monotonic clock; 0: none yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
constexpr int64_t second = 1'000'000'000;

// Calls only what a signal's handler may.
void on_stop_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * second + now.tv_nsec;
  int64_t first = 0;
  if (!first_signal.compare_exchange_strong(first, at) && at - first > second) _exit(128 + number);
  ++stop_signals;
}

}  // namespace

const std::atomic<int>* count_stop_signals() {
  stop_signals = 0;
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return &stop_signals;
}

}  // namespace hearth
