#include "http/request_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>

#include "sys/error.h"
#include "sys/terminal.h"

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

std::string utc_time(std::chrono::system_clock::time_point at) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch());
  const std::time_t second = std::chrono::system_clock::to_time_t(at);
  std::tm utc{};
  gmtime_r(&second, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", time, since.count() % 1000);
}

std::string known(int64_t count) { return count < 0 ? "-" : std::to_string(count); }

}  // namespace

std::string log_line(std::chrono::system_clock::time_point at, const RequestRecord& r) {
  return fmt::format("{} {} {} {} {} {} {:.1f} {} {}", utc_time(at), printable(r.client),
                     printable(r.method), printable(r.path), r.status, r.bytes, r.milliseconds,
                     known(r.answer.prompt_tokens), known(r.answer.completion_tokens));
}

std::string json_log_line(std::chrono::system_clock::time_point at, const RequestRecord& r) {
  using Json = nlohmann::ordered_json;
  const auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  const auto count = [](int64_t n) { return n < 0 ? Json() : Json(n); };
  const auto ms = [](double x) { return x < 0 ? Json() : Json(std::round(x * 100) / 100); };
  const Json j{{"time", utc_time(at)},
               {"id", text(r.answer.id)},
               {"route", printable(r.method) + " " + printable(r.path)},
               {"model", text(r.answer.model)},
               {"prompt_tokens", count(r.answer.prompt_tokens)},
               {"completion_tokens", count(r.answer.completion_tokens)},
               {"queue_ms", ms(r.answer.queue_ms)},
               {"first_token_ms", ms(r.answer.first_token_ms)},
               {"total_ms", ms(r.milliseconds)},
               {"finish_reason", text(r.answer.finish_reason)},
               {"status", r.status}};
  return j.dump(-1, ' ', true, Json::error_handler_t::replace);
}

LineFile::LineFile(std::string path) : path_(std::move(path)) {
  if (!open()) fail_usage("--request-log", "cannot append to {}: {}", path_, std::strerror(errno));
}

LineFile::~LineFile() { ::close(file_); }

bool LineFile::open() {
  const int next = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (next < 0) return false;
  if (file_ >= 0) ::close(file_);
  file_ = next;
  return true;
}

bool LineFile::moved() const {
  struct stat mine {
  }, there{};
  return ::fstat(file_, &mine) != 0 || ::stat(path_.c_str(), &there) != 0 ||
         mine.st_ino != there.st_ino || mine.st_dev != there.st_dev;
}

bool LineFile::append(std::string_view line) {
  if (moved() && !open()) return false;
  return ::write(file_, line.data(), line.size()) == ssize_t(line.size());
}

RequestLog::RequestLog(bool lines, const std::string& path)
    : lines_(lines),
      file_(path.empty() ? nullptr : std::make_unique<LineFile>(path)),
      writer_(enabled() ? 1 : 0) {}

// Writes the pending lines first.
RequestLog::~RequestLog() {
  if (!enabled()) return;
  std::promise<void> written;
  writer_.post([&] { written.set_value(); });
  written.get_future().wait();
}

void RequestLog::add(const RequestRecord& r) {
  if (!enabled()) return;
  if (waiting_ >= most_waiting) {
    ++dropped_;
    return;
  }
  ++waiting_;
  const auto now = std::chrono::system_clock::now();
  writer_.post([this, line = lines_ ? log_line(now, r) + "\n" : "",
                json = file_ ? json_log_line(now, r) + "\n" : ""] {
    if (const int64_t lost = dropped_.exchange(0); lost > 0)
      say("hearth: dropped {} lines of the request log, because it is written too slowly\n", lost);
    if (lines_) put_stderr(line);
    if (file_ && !file_->append(json) && !std::exchange(told_, true))
      say("hearth: lines of the request log could not be written: {}\n", std::strerror(errno));
    --waiting_;
  });
}

}  // namespace hearth::inline http
