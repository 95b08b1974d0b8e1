#include "cli/signals.h"

#include <unistd.h>

#include <csignal>

namespace hearth {
namespace {

std::atomic<int> stop_signals{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_stop_signal(int number) {
  if (stop_signals.fetch_add(1) > 0) _exit(128 + number);
}

}  // namespace

const std::atomic<int>* count_stop_signals() {
  stop_signals = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return &stop_signals;
}

}  // namespace hearth
