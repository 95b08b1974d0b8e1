#include "http/request_log.h"
#include "sys/terminal.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <future>

namespace hearth::inline http {
namespace {

constexpr int64_t most_waiting = 10000;  // lines
constexpr size_t most_path = 256;        // bytes of a path that are logged

std::string printable(std::string_view s) {
  if (s.empty()) return "-";
  std::string r;
  for (const char c : s.substr(0, most_path)) {
    const bool plain = c > ' ' && c < 0x7f && c != '\\' && c != '"';
    r += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return r + (s.size() > most_path ? "..." : "");
}

std::string known(int64_t count) { return count < 0 ? "-" : std::to_string(count); }

}  // namespace

std::string log_line(std::chrono::system_clock::time_point at, const RequestRecord& r) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch());
  const std::time_t second = std::chrono::system_clock::to_time_t(at);
  std::tm utc{};
  gmtime_r(&second, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z {} {} {} {} {} {:.1f} {} {}", time, since.count() % 1000,
                     printable(r.client), printable(r.method), printable(r.path), r.status, r.bytes,
                     r.milliseconds, known(r.prompt_tokens), known(r.completion_tokens));
}

// Writes the pending lines first.
RequestLog::~RequestLog() {
  if (!enabled_) return;
  std::promise<void> written;
  writer_.post([&] { written.set_value(); });
  written.get_future().wait();
}

void RequestLog::add(const RequestRecord& r) {
  if (!enabled_) return;
  if (waiting_ >= most_waiting) {
    ++dropped_;
    return;
  }
  ++waiting_;
  writer_.post([this, line = log_line(std::chrono::system_clock::now(), r)] {
    if (const int64_t lost = dropped_.exchange(0); lost > 0)
      say("hearth: dropped {} lines of the request log, because stderr is too slow\n", lost);
    put_stderr(line + "\n");
    --waiting_;
  });
}

}  // namespace hearth::inline http
