#include "cli/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>

#include <fmt/format.h>

#include "sys/files/lost_mapping.h"

namespace hearth::inline cli {
namespace {

std::atomic<int> stop_signals{0};
std::atomic<int> first_number{0};      // number of the first stop signal; 0: none yet
std::atomic<int64_t> first_signal{0};  // its time in ns (monotonic clock); 0: none yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
constexpr int64_t second = 1'000'000'000;

// Calls only functions that are async-signal-safe.
void on_stop_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * second + now.tv_nsec;
  int64_t first = 0;
  if (first_signal.compare_exchange_strong(first, at))
    first_number = number;
  else if (at - first > second)
    _exit(128 + number);
  ++stop_signals;
}

bool is_ignored(int number) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

void survive_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  explain_lost_mappings();
}

const std::atomic<int>* count_stop_signals() {
  stop_signals = 0;
  first_number = 0;
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
  return &stop_signals;
}

void expect_not_signalled(Ending ending) {
  if (const int number = first_number; ending == Ending::stopped && number)
    throw StoppedBySignal{.signal = number};
}

void stop_benchmark_if_signalled(const std::string& runs) {
  const int number = first_number;
  if (!number) return;
  const std::string kept = runs.empty() ? "" : fmt::format("; {} keeps its runs", runs);
  throw StoppedBySignal{number, "a benchmark cannot be resumed, it begins anew" + kept};
}

void stop_if_signalled() {
  if (const int number = first_number) throw StoppedBySignal{number, "nothing was written"};
}

}  // namespace hearth::inline cli
