#include "formats/toml.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/utf8.h"

namespace hearth::inline formats {
namespace {

bool is_bare(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-';
}

class TomlReader {
 public:
  TomlReader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  std::vector<TomlItem> all() {
    std::vector<TomlItem> items;
    std::set<std::pair<std::string, std::string>> seen;
    std::string section;
    while (skip_lines(), at_ < text_.size()) {
      if (take('[')) {
        section = heading();
      } else {
        items.push_back({.section = section, .key = key(), .values = {}});
        skip_spaces();
        if (!take('=')) error("= after a key");
        skip_spaces();
        items.back().begin = at_;
        items.back().values = value();
        items.back().end = at_;
        if (!seen.emplace(section, items.back().key).second)
          error(fmt::format("each key once, got {} twice,", items.back().key));
      }
      skip_spaces();
      if (at_ < text_.size() && peek() != '#' && peek() != '\n' && peek() != '\r')
        error("the end of the line");
    }
    return items;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void skip_spaces() {
    while (take(' ') || take('\t')) {}
  }
  void skip_lines() {
    for (;; ++at_) {
      skip_spaces();
      if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
      if (peek() != '\n' && peek() != '\r') return;
    }
  }

  [[noreturn]] void error(std::string_view expected) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + std::ptrdiff_t(at_), '\n');
    const std::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_);
    fail(where_, "expected {} in line {}, got {}", expected, line,
         rest.empty() ? "its end" : in_quotes(rest.substr(0, 40)));
  }

  std::string heading() {
    skip_spaces();
    const size_t begin = at_;
    while (is_bare(peek()) || peek() == '.') ++at_;
    std::string name(text_.substr(begin, at_ - begin));
    skip_spaces();
    if (name.empty() || !take(']')) error("a heading such as [name]");
    return name;
  }

  std::string key() {
    const size_t begin = at_;
    std::string name;
    if (peek() == '"' || peek() == '\'') {
      name = peek() == '"' ? basic_string() : literal_string();
    } else {
      while (is_bare(peek())) ++at_;
      name = text_.substr(begin, at_ - begin);
    }
    if (!name.empty()) return name;
    at_ = begin;
    error("a key");
  }

  std::vector<std::string> value() {
    if (!take('[')) return {scalar()};
    std::vector<std::string> values;
    while (skip_lines(), !take(']')) {
      values.push_back(scalar());
      skip_lines();
      if (!take(',') && peek() != ']') error(", or ] in a list");
    }
    return values;
  }

  std::string scalar() {
    if (peek() == '"') return basic_string();
    if (peek() == '\'') return literal_string();
    const size_t begin = at_;
    while (is_bare(peek()) || peek() == '.' || peek() == '+') ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    if (word.empty()) error("a string, a number, true or false");
    if (word[0] == '+') word.erase(0, 1);
    if (word[0] >= '0' && word[0] <= '9') std::erase(word, '_');  // 1_000
    return word;
  }

  std::string literal_string() {
    const size_t end = text_.find('\'', at_ + 1);
    if (end == text_.npos || end > text_.find('\n', at_))
      error("the end of the string on the same line");
    std::string s(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return s;
  }

  std::string basic_string() {
    std::string s;
    for (++at_; peek() != '"'; ++at_) {
      if (at_ == text_.size() || peek() == '\n') error("the end of the string on the same line");
      if (peek() == '\\')
        escape(s);
      else
        s += peek();
    }
    ++at_;
    return s;
  }

  // Reads an escape from its backslash to its last character.
  void escape(std::string& out) {
    constexpr std::string_view names = "btnfr\"\\", means = "\b\t\n\f\r\"\\";
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (const size_t known = names.find(c); known != names.npos) {
      out += means[known];
      ++at_;
      return;
    }
    const size_t digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const std::string_view hex = text_.substr(std::min(at_ + 2, text_.size()), digits);
    uint32_t code = 0;
    const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (digits == 0 || hex.size() != digits || read.ptr != hex.data() + digits || surrogate ||
        code > 0x10ffff)
      error("a TOML escape sequence");
    append_utf8(out, code);
    at_ += 1 + digits;
  }

  std::string_view text_, where_;
  size_t at_ = 0;
};

}  // namespace

std::vector<TomlItem> parse_toml(std::string_view text, std::string_view where) {
  return TomlReader(text, where).all();
}

std::string with_toml_value(std::string text, std::string_view key, std::string_view value) {
  const std::vector<TomlItem> items = parse_toml(text, "settings");
  if (const auto it = std::ranges::find(items, key, &TomlItem::key); it != items.end())
    return text.replace(it->begin, it->end - it->begin, value);
  const auto heading =
      std::ranges::find_if(items, [](const TomlItem& i) { return !i.section.empty(); });
  size_t at = 0;
  if (heading != items.begin()) {
    at = text.find('\n', std::prev(heading)->end);
    if (at == text.npos) at = text.size(), text += '\n';
    ++at;
  }
  return text.insert(at, fmt::format("{} = {}\n", key, value));
}

std::vector<TomlItem> read_toml(const std::filesystem::path& path) {
  return parse_toml(read_file(path), path.string());
}

}  // namespace hearth::inline formats
