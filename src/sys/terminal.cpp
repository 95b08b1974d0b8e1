#include "sys/terminal.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>

#include "sys/utf8.h"

namespace hearth::inline sys {

std::string visible(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const uint8_t first = uint8_t(text[0]);
    const size_t size = utf8_size(text);
    const bool control = first < 0x20 ? first != '\n' && first != '\t' : first == 0x7f;
    if (size == 0 || control)
      shown += fmt::format("\\x{:02x}", first);
    else if (size == 2 && first == 0xc2 && uint8_t(text[1]) < 0xa0)  // U+0080 to U+009F
      shown += fmt::format("\\u{:04x}", uint8_t(text[1]));
    else
      shown += text.substr(0, size);
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return shown;
}

std::string one_line(std::string_view text, size_t longest) {
  std::string line = visible(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (line.size() <= longest) return line;
  constexpr std::string_view gap = " ... ";
  const auto inside = [&](size_t at) { return at < line.size() && (line[at] & 0xc0) == 0x80; };
  // Keep the beginning, which says where, and the end, which has the value and the remedy.
  const size_t room = longest - std::min(longest, gap.size());
  size_t head = room * 3 / 5, tail = line.size() - (room - head);
  while (head > 0 && inside(head)) --head;
  while (inside(tail)) ++tail;
  return line.substr(0, head) + std::string(gap) + line.substr(tail);
}

void put_stderr(std::string_view raw) {
  if (std::fwrite(raw.data(), 1, raw.size(), stderr) != raw.size()) std::clearerr(stderr);
  std::fflush(stderr);
}

void say_problem(std::string_view text) { put_stderr("hearth: " + one_line(text) + "\n"); }

bool reader_is_gone(int fd) {
  pollfd p{fd, 0, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP));
}

}  // namespace hearth::inline sys
