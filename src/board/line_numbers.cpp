#include "board/line_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sys/utf8.h"

namespace hearth::inline board {
namespace {

constexpr int max_depth = 16;          // of a line
constexpr size_t max_key = 128;        // bytes
constexpr size_t max_entries = 256;    // of an array
constexpr size_t max_items = 1 << 12;  // of a line

bool is_name(std::string_view key) {
  if (key.empty() || key.size() > max_key) return false;
  for (size_t i = 0; i < key.size();) {
    const size_t n = utf8_size(key.substr(i));
    if (n == 0 || uint8_t(key[i]) < 0x20 || key[i] == 0x7f) return false;
    i += n;
  }
  return true;
}

}  // namespace

char LineNumbers::next() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  return at_ < end_ ? *at_ : '\0';
}

bool LineNumbers::take(char c) {
  if (next() != c || at_ == end_) return false;
  ++at_;
  return true;
}

bool LineNumbers::read(std::string_view line) {
  at_ = line.data(), end_ = at_ + line.size();
  items_.clear();
  joined_.clear();
  const bool good = next() == '{' && object({}, 1) && next() == '\0' && at_ == end_;
  if (!good) items_.clear();
  return good;
}

void LineNumbers::add(std::string_view key, double x) {
  if (!key.empty() && items_.size() < max_items) items_.push_back({key, x});
}

// Empty if the key cannot be the name of a series.
std::string_view LineNumbers::join(std::string_view prefix, std::string_view key) {
  if (!is_name(key)) return {};
  if (prefix.empty()) return key;
  if (prefix.size() + 1 + key.size() > max_key) return {};
  std::string& both = joined_.emplace_back(prefix);
  both += '.';
  both += key;
  return both;
}

// An empty prefix below the first level means that the numbers are not wanted.
bool LineNumbers::object(std::string_view prefix, int depth) {
  if (depth > max_depth) return false;
  ++at_;
  if (take('}')) return true;
  for (;;) {
    std::string_view key;
    if (next() != '"' || !text(key) || !take(':')) return false;
    const bool wanted = depth == 1 || !prefix.empty();
    if (!value(wanted ? join(prefix, key) : std::string_view(), depth)) return false;
    if (take('}')) return true;
    if (!take(',')) return false;
  }
}

bool LineNumbers::array(std::string_view prefix, int depth) {
  if (depth > max_depth) return false;
  ++at_;
  if (take(']')) return true;
  for (size_t i = 0;; ++i) {
    const bool wanted = !prefix.empty() && i < max_entries;
    if (!value(wanted ? join(prefix, std::to_string(i)) : std::string_view(), depth)) return false;
    if (take(']')) return true;
    if (!take(',')) return false;
  }
}

bool LineNumbers::value(std::string_view key, int depth) {
  std::string_view ignored;
  switch (next()) {
    case '{':
      return object(key, depth + 1);
    case '[':
      return array(key, depth + 1);
    case '"':
      return text(ignored);
    case 't':
      if (!word("true")) return false;
      add(key, 1);
      return true;
    case 'f':
      if (!word("false")) return false;
      add(key, 0);
      return true;
    case 'n':
      if (word("null")) {
        add(key, NAN);
        return true;
      }
      return number(key);
    default:
      return number(key);
  }
}

bool LineNumbers::word(std::string_view expected) {
  if (size_t(end_ - at_) < expected.size() ||
      std::memcmp(at_, expected.data(), expected.size()) != 0)
    return false;
  at_ += expected.size();
  return true;
}

// The raw text between the quotes. A text with an escape is not a usable key, so it becomes empty.
bool LineNumbers::text(std::string_view& to) {
  const char* begin = ++at_;
  bool escaped = false;
  for (; at_ < end_; ++at_) {
    if (*at_ == '"') {
      to = escaped ? std::string_view() : std::string_view(begin, size_t(at_ - begin));
      ++at_;
      return true;
    }
    if (*at_ == '\\') escaped = true, ++at_;
  }
  return false;
}

bool LineNumbers::number(std::string_view key) {
  const char* p = at_;
  uint64_t whole = 0;  // steps, tokens and bytes are short whole numbers: no need for from_chars
  while (p < end_ && *p >= '0' && *p <= '9' && p - at_ < 16)
    whole = whole * 10 + uint64_t(*p++ - '0');
  if (p > at_ && p - at_ < 16 && (p == end_ || *p == ',' || *p == '}' || *p == ']')) {
    at_ = p;
    add(key, double(whole));
    return true;
  }
  double x = 0;
  const auto [stop, error] = std::from_chars(at_, end_, x);
  if (stop == at_ || error == std::errc::invalid_argument) return false;
  if (error == std::errc::result_out_of_range) x = NAN;
  at_ = stop;
  add(key, x);
  return true;
}

}  // namespace hearth::inline board
