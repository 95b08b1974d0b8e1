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
#include <utility>

#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline http {
namespace {

constexpr int64_t most_waiting = 10000;         // lines
constexpr size_t most_path = 256;               // bytes of a path that are logged
constexpr std::chrono::seconds longest_end{5};  // for lines that wait

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
  // A pipe without a reader, or with a slow one, must not stall whoever writes.
  const int next =
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
  if (next < 0) return false;
  if (file_ >= 0) ::close(file_);
  file_ = next, torn_ = false;
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
  if (!write((torn_ ? "\n" : "") + std::string(line))) return false;
  torn_ = false;
  return true;
}

// A write that ends early, as on a full disk, is continued; if that fails, a part of a line is
// left.
bool LineFile::write(std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      torn_ |= done > 0;
      return false;
    }
    done += size_t(n);
  }
  return true;
}

RequestLog::RequestLog(bool lines, const std::string& path)
    : out_(std::make_shared<Output>(lines,
                                    path.empty() ? nullptr : std::make_unique<LineFile>(path))),
      writer_(enabled() ? std::make_unique<Workers>(1) : nullptr) {}

// Writes the pending lines first. If that stalls, the thread is left to the end of the process.
RequestLog::~RequestLog() {
  if (!writer_) return;
  const auto written = std::make_shared<std::promise<void>>();
  writer_->post([written] { written->set_value(); });
  if (written->get_future().wait_for(longest_end) == std::future_status::timeout)
    static_cast<void>(writer_.release());
}

void RequestLog::add(const RequestRecord& r) {
  if (!enabled()) return;
  if (out_->waiting >= most_waiting) {
    ++out_->dropped;
    return;
  }
  ++out_->waiting;
  const auto now = std::chrono::system_clock::now();
  writer_->post([out = out_, line = out_->lines ? log_line(now, r) + "\n" : "",
                 json = out_->file ? json_log_line(now, r) + "\n" : ""] { out->put(line, json); });
}

void RequestLog::Output::put(const std::string& line, const std::string& json) {
  if (const int64_t lost = dropped.exchange(0); lost > 0)
    say("hearth: dropped {} lines of the request log, because it is written too slowly\n", lost);
  if (lines) put_stderr(line);
  if (!file || file->append(json))
    told = false;
  else if (!std::exchange(told, true))
    say("hearth: lines of the request log could not be written: {}\n", std::strerror(errno));
  --waiting;
}

}  // namespace hearth::inline http
