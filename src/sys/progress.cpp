#include "sys/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "sys/terminal.h"

namespace hearth::inline sys {

size_t terminal_width() {
  winsize size{};
  return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

// A line that wraps could not be cleared when the next one is drawn.
std::string fitted(std::string text, size_t width) {
  size_t end = 0;
  for (size_t columns = 0; end < text.size(); ++end)
    if ((uint8_t(text[end]) & 0xC0) != 0x80 && ++columns >= width) break;
  text.resize(end);
  return text;
}

StatusLine::StatusLine(bool on) : on_(on), terminal_(::isatty(2)), shown_(clock::now()) {}

StatusLine::~StatusLine() {
  if (open_) put_stderr("\n");
}

bool StatusLine::due() const {
  return on_ && clock::now() - shown_ >= std::chrono::milliseconds(terminal_ ? 200 : 5000);
}

void StatusLine::clear() {
  if (open_) put_stderr("\r\x1b[K");
  open_ = false;
}

void StatusLine::show(const std::string& text) {
  if (due()) show_now(text);
}

void StatusLine::show_now(const std::string& text) {
  if (!on_) return;
  shown_ = clock::now();
  clear();
  put_stderr(terminal_ ? fitted(visible(text), terminal_width()) : visible(text) + "\n");
  open_ = terminal_;
}

void StatusLine::finish(const std::string& text) {
  if (!on_) return;
  clear();
  put_stderr(visible(text) + "\n");
}

ProgressLine::ProgressLine(std::string name, Start start, bool on)
    : name_(std::move(name)), start_(start), status_(on), began_(clock::now()) {}

std::string ProgressLine::line(int64_t done, int64_t work, const std::string& detail) const {
  const double seconds = std::chrono::duration<double>(clock::now() - began_).count() + 1e-9;
  std::string text = name_ + ": ";
  const double share =
      start_.total > 0 ? std::clamp(double(done) / double(start_.total), 0.0, 1.0) : 0;
  if (start_.total > 0) {
    constexpr int width = 20;
    const int full = int(share * width);
    if (status_.on_terminal()) text += fmt::format("[{:#<{}}{:.<{}}] ", "", full, "", width - full);
    text += fmt::format("{:.1f}% ", 100 * share);
  }
  text += fmt::format("{:.1f} MB{}, {:.1f} MB/s", double(work) / 1e6, detail,
                      double(work - start_.work) / 1e6 / seconds);
  if (const int64_t made = done - start_.done; start_.total > done && made > 0) {
    const int64_t left = int64_t(seconds * double(start_.total - done) / double(made));
    text += fmt::format(", {}:{:02}:{:02} left", left / 3600, left / 60 % 60, left % 60);
  }
  return text;
}

void ProgressLine::show(int64_t done, int64_t work, const std::string& detail) {
  if (due()) status_.show(line(done, work, detail));
}

void ProgressLine::finish(int64_t done, int64_t work, const std::string& detail) {
  status_.finish(line(done, work, detail));
}

}  // namespace hearth::inline sys
