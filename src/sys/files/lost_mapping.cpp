#include "sys/files/lost_mapping.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "sys/terminal.h"

namespace hearth::inline sys {
namespace {

// Entries are reused, never freed, because the handler may walk the list at any moment. `line`
// changes only while `begin` is null.
struct Mapping {
  std::atomic<const std::byte*> begin{nullptr};
  size_t size = 0;
  std::string line;
  Mapping* next = nullptr;
};
std::atomic<Mapping*> mappings{nullptr};
std::mutex mappings_mutex;  // held by writers only
static_assert(std::atomic<Mapping*>::is_always_lock_free);

std::atomic_flag told;  // some thread reports; the others wait for it to end the process

// Calls only functions that are async-signal-safe.
void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping* m = mappings.load(); m; m = m->next) {
    const std::byte* begin = m->begin.load();
    if (!begin || at < begin || at >= begin + m->size) continue;
    while (told.test_and_set()) pause();
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, m->line.data(), m->line.size());
    _exit(1);
  }
  signal(number, SIG_DFL);  // the instruction is retried and raises the signal again
}

}  // namespace

void note_mapping(const std::byte* begin, size_t size, const std::filesystem::path& path) {
  const std::lock_guard lock(mappings_mutex);
  Mapping* m = mappings.load();
  while (m && m->begin.load()) m = m->next;
  const bool is_new = !m;
  if (is_new) m = new Mapping;
  m->size = size;
  m->line = "hearth: " +
            one_line(fmt::format(
                "[{}] the file was truncated while in use, or its disk failed; restore the "
                "file and start again",
                path.string())) +
            "\n";
  m->begin = begin;
  if (is_new) m->next = mappings.load(), mappings = m;
}

void drop_mapping(const std::byte* begin) {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping* m = mappings.load(); m; m = m->next)
    if (m->begin.load() == begin) m->begin = nullptr;
}

void explain_lost_mappings() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace hearth::inline sys
