#include "text/chat/lexer.h"

#include <algorithm>
#include <charconv>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/utf8.h"
#include "text/chat/python_str.h"

namespace hearth::jinja {
namespace {

using Kind = Token::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         uint8_t(c) >= 0x80;
}

std::string plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view where)
      : source_(plain_newlines(source)), text_(source_), where_(where) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_text();
    emit(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void complain(std::string_view what, std::string_view got) const {
    hearth::fail(fmt::format("{}:{}", where_, line_), "expected {}, got {}", what, got);
  }
  void emit(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool follows(std::string_view s) const { return text_.substr(at_).starts_with(s); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void skip(size_t n) {
    line_ += int(std::ranges::count(text_.substr(at_, n), '\n'));
    at_ += n;
  }
  void skip_spaces() {
    while (at_ < text_.size() && is_space(char_code(text_, at_))) skip(char_bytes(text_, at_));
  }

  // Emits the text before a tag, minus the whitespace that its sign or lstrip_blocks removes.
  void emit_text(std::string_view data, char sign, bool print) {
    if (sign == '-') {
      data = data.substr(0, strip(MarkedText(data), Side::right).size());
    } else if (sign != '+' && !print) {
      const size_t start = data.rfind('\n') + 1;  // npos + 1 is 0
      const std::string_view last = data.substr(start);
      if ((start > 0 || line_start_) && strip(MarkedText(last), Side::left).empty())
        data = data.substr(0, start);
    }
    if (!data.empty()) emit(Kind::text, std::string(data));
  }

  // Reads the end of a tag and the whitespace after it that `-` or trim_blocks removes.
  bool take_end(std::string_view mark, bool trim) {
    const bool minus = peek() == '-', sign = minus || (trim && peek() == '+');
    if (!text_.substr(std::min(at_ + sign, text_.size())).starts_with(mark)) return false;
    const size_t before = at_;
    skip(sign + mark.size());
    if (minus)
      skip_spaces();
    else if (trim && !sign && peek() == '\n')
      skip(1);
    line_start_ = at_ > before && text_[at_ - 1] == '\n';
    return true;
  }

  void read_text() {
    size_t tag = at_;
    while ((tag = text_.find('{', tag)) != text_.npos) {
      const char next = tag + 1 < text_.size() ? text_[tag + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const std::string_view data = text_.substr(at_, tag - std::min(at_, tag));
    if (tag == text_.npos) {
      emit(Kind::text, std::string(text_.substr(at_)));
      at_ = text_.size();
      return;
    }
    const char kind = text_[tag + 1], after = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const bool sign = after == '-' || after == '+';
    emit_text(data, sign ? after : ' ', kind == '{');
    skip(tag - at_ + 2 + sign);
    if (kind == '#')
      read_comment();
    else if (kind == '{')
      read_tag(Kind::print_begin, Kind::print_end, "}}");
    else if (!read_raw())
      read_tag(Kind::block_begin, Kind::block_end, "%}");
  }

  void read_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == text_.npos) complain("#} after {#", "the end of the template");
    const char sign = end > at_ ? text_[end - 1] : ' ';
    skip(end - at_ - (sign == '-' || sign == '+'));
    take_end("#}", true);
  }

  // {% raw %} ... {% endraw %}; false for any other tag.
  bool read_raw() {
    const size_t start = at_;
    const int line = line_;
    const auto word = [&](std::string_view name) {
      skip_spaces();
      const bool same = follows(name);
      if (same) skip(name.size());
      skip_spaces();
      return same;
    };
    if (!word("raw") || !take_end("%}", false)) {
      at_ = start;
      line_ = line;
      return false;
    }
    const size_t body = at_;
    for (;;) {
      const size_t tag = text_.find("{%", at_);
      if (tag == text_.npos) complain("{% endraw %} after {% raw %}", "the end of the template");
      skip(tag - at_ + 2);
      const bool sign = peek() == '-' || peek() == '+';
      const char which = sign ? peek() : ' ';
      skip(sign);
      if (!word("endraw") || !take_end("%}", true)) continue;
      emit_text(text_.substr(body, tag - body), which, false);
      return true;
    }
  }

  void read_tag(Kind begin, Kind end, std::string_view mark) {
    const int opened = line_;
    int brackets = 0;
    emit(begin, "");
    for (;;) {
      skip_spaces();
      if (at_ >= text_.size()) {
        line_ = opened;
        complain(fmt::format("{} to close the tag opened here", mark), "the end of the template");
      }
      if (brackets == 0 && take_end(mark, end == Kind::block_end)) break;
      read_token(brackets);
    }
    emit(end, "");
  }

  void read_token(int& brackets) {
    const char c = peek();
    if (c == '"' || c == '\'') return read_string(c);
    if (is_digit(c)) return read_number();
    if (is_word(c)) {
      const size_t start = at_;
      while (is_word(peek())) ++at_;
      return emit(Kind::name, std::string(text_.substr(start, at_ - start)));
    }
    for (const std::string_view two : {"**", "//", "==", "!=", "<=", ">="})
      if (follows(two)) {
        at_ += 2;
        return emit(Kind::op, std::string(two));
      }
    if (std::string_view("+-*/%~[](){}.:,|=<>").find(c) == std::string_view::npos)
      complain("an expression", in_quotes(text_.substr(at_, 1)));
    brackets += c == '(' || c == '[' || c == '{';
    brackets -= c == ')' || c == ']' || c == '}';
    brackets = std::max(brackets, 0);
    ++at_;
    emit(Kind::op, std::string(1, c));
  }

  void read_number() {
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    std::string digits;
    Kind kind = Kind::integer;
    const auto take_digits = [&] {
      for (; is_digit(peek()) || (peek() == '_' && is_digit(peek(1))); ++at_)
        if (peek() != '_') digits += peek();
    };
    take_digits();
    if (!after_dot && peek() == '.' && is_digit(peek(1))) {
      kind = Kind::real;
      digits += '.';
      ++at_;
      take_digits();
    }
    const bool sign = peek(1) == '-' || peek(1) == '+';
    if (!after_dot && (peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
      kind = Kind::real;
      digits += text_.substr(at_, 1 + sign);
      at_ += 1 + sign;
      take_digits();
    }
    emit(kind, std::move(digits));
  }

  void read_string(char quote) {
    const int opened = line_;
    std::string out;
    skip(1);
    while (peek() != quote || at_ >= text_.size()) {
      if (at_ >= text_.size()) {
        line_ = opened;
        complain("the end of the string opened here", "the end of the template");
      }
      if (peek() == '\\' && at_ + 1 < text_.size()) {
        skip(1);
        read_escape(out);
      } else {
        out += peek();
        skip(1);
      }
    }
    skip(1);
    tokens_.push_back({Kind::string, std::move(out), opened});
  }

  // Reads the escape after a backslash like Python; unknown escapes stay unchanged.
  void read_escape(std::string& out) {
    constexpr std::string_view letters = "nrtabfv\\'\"", values = "\n\r\t\a\b\f\v\\'\"";
    const char c = peek();
    if (const size_t i = letters.find(c); i != std::string_view::npos) {
      out += values[i];
      return skip(1);
    }
    if (c == '\n') return skip(1);
    const int hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (hex) {
      skip(1);
      return append_utf8(out, read_code(size_t(hex), 16));
    }
    if (c >= '0' && c <= '7') {
      size_t n = 1;
      while (n < 3 && peek(n) >= '0' && peek(n) <= '7') ++n;
      return append_utf8(out, read_code(n, 8));
    }
    out += '\\';
  }

  uint32_t read_code(size_t digits, int base) {
    uint32_t code = 0;
    const std::string_view text = text_.substr(at_, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, base);
    if (error != std::errc() || end != text.data() + digits || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000))
      complain("a code point after the backslash", in_quotes(text));
    skip(digits);
    return code;
  }

  std::string source_;
  std::string_view text_;
  std::string_view where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // the next text is at the start of a line
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view where) {
  return Lexer(source, where).run();
}

}  // namespace hearth::jinja
