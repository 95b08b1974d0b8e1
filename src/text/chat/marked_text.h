// Text that knows where each of its bytes comes from. Every operation carries the marks along, so
// that after a template has run it is still known what may become a special token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hearth {

// Bits of a mark. Zero is what the template itself wrote.
namespace mark {
constexpr char content = 1;  // came with the request: never a special token
constexpr char foreign = 2;  // nor written by the assistant: never any added token (<think>)
constexpr char answer = 4;   // what the assistant says and training learns
}  // namespace mark

struct MarkedText {
  std::string bytes;
  std::string marks;  // one for each byte

  MarkedText() = default;
  explicit MarkedText(std::string_view text, char mark = 0)
      : bytes(text), marks(text.size(), mark) {}

  size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  void add(const MarkedText& t) {
    bytes += t.bytes;
    marks += t.marks;
  }
  void add(std::string_view text, char mark = 0) {
    bytes += text;
    marks.append(text.size(), mark);
  }
  MarkedText part(size_t from, size_t count = std::string::npos) const {
    MarkedText t;
    t.bytes = bytes.substr(from, count);
    t.marks = marks.substr(from, count);
    return t;
  }
  bool operator==(const MarkedText&) const = default;
};

}  // namespace hearth
