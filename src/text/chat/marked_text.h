// Text that records the origin of each byte. Every operation preserves the marks, so that after
// rendering it is still known which bytes may become a special token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hearth::inline text {

// Bits of a mark. Zero: written by the template itself.
namespace mark {
constexpr char content = 1;  // from the request: never a special token
constexpr char foreign = 2;  // not written by the assistant either: never an added token (<think>)
constexpr char answer = 4;   // the assistant's answer, which training learns
}  // namespace mark

struct MarkedText {
  std::string bytes;
  std::string marks;  // one per byte

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

}  // namespace hearth::inline text
