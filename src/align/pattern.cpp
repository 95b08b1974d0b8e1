#include "align/pattern.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>

#include "core/error.h"
#include "io/json.h"

namespace hearth {
namespace {

using ByteSet = std::bitset<256>;
constexpr size_t most_instructions = 20000;
constexpr int deepest = 200, most_repeats = 1000;

bool is_word(unsigned char c) { return std::isalnum(c) || c == '_'; }

ByteSet named_set(char name) {
  ByteSet s;
  for (int c = 0; c < 256; ++c) {
    const bool ascii = c < 128;
    switch (std::tolower(name)) {
      case 'd':
        s[size_t(c)] = ascii && std::isdigit(c);
        break;
      case 'w':
        s[size_t(c)] = ascii && is_word(static_cast<unsigned char>(c));
        break;
      default:
        s[size_t(c)] = ascii && std::isspace(c);
    }
  }
  return std::isupper(static_cast<unsigned char>(name)) ? ~s : s;
}

}  // namespace

// Reads an expression and emits instructions back to front: each piece knows where it goes on.
struct PatternCompiler {
  using Kind = Pattern::Kind;
  struct Piece {
    enum { empty, bytes, assertion, sequence, either, repeat } kind = empty;
    ByteSet set = {};
    Kind asserts = Kind::begin;
    std::vector<Piece> parts = {};
    int least = 0, most = 0;  // repeats; most -1: no end
  };

  Pattern& pattern;
  std::string_view text;
  size_t at = 0;
  int depth = 0;
  bool folds = false;  // letters of either case

  [[noreturn]] void refuse(const std::string& what) const {
    fail_usage("regex", "expected {} at byte {} of {}", what, at, in_quotes(text));
  }
  bool more() const { return at < text.size(); }
  bool take(std::string_view s) {
    if (!text.substr(at).starts_with(s)) return false;
    at += s.size();
    return true;
  }

  void compile() {
    folds = take("(?i)");
    const Piece all = either();
    if (more()) refuse("no ) without its (");
    pattern.start_ = emit(all, add({.kind = Kind::match}));
  }

  // --- reading ---
  Piece either() {
    if (++depth > deepest) refuse("fewer than 200 nested groups");
    Piece p{.kind = Piece::either, .parts = {sequence()}};
    while (take("|")) p.parts.push_back(sequence());
    --depth;
    return p.parts.size() == 1 ? Piece(p.parts[0]) : p;
  }

  Piece sequence() {
    Piece p{.kind = Piece::sequence};
    while (more() && text[at] != '|' && text[at] != ')') p.parts.push_back(repeated());
    return p;
  }

  Piece repeated() {
    Piece p = atom();
    for (;;) {
      int least = 0, most = -1;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (!bounds(least, most)) {
        return p;
      }
      take("?");
      p = {.kind = Piece::repeat, .parts = {std::move(p)}, .least = least, .most = most};
    }
  }

  // {m}, {m,} or {m,n}; a brace that opens none of them is itself.
  bool bounds(int& least, int& most) {
    const size_t keep = at;
    if (!take("{")) return false;
    if (!number(least)) return at = keep, false;
    most = least;
    if (take(",") && !number(most)) most = -1;
    if (!take("}")) return at = keep, false;
    if (least > most_repeats || most > most_repeats || (most >= 0 && most < least))
      refuse("repeats {m,n} with m <= n <= 1000");
    return true;
  }
  bool number(int& n) {
    const auto r = std::from_chars(text.data() + at, text.data() + text.size(), n);
    if (r.ec != std::errc() || n < 0) return false;
    at = size_t(r.ptr - text.data());
    return true;
  }

  Piece atom() {
    const char c = text[at];
    if (take("(")) {
      if (take("?") && !take(":")) refuse("(?: after (?, for look-around is not known here,");
      Piece p = either();
      if (!take(")")) refuse("a )");
      return p;
    }
    if (c == '*' || c == '+' || c == '?') refuse("something to repeat");
    if (take("^")) return {.kind = Piece::assertion, .asserts = Kind::begin};
    if (take("$")) return {.kind = Piece::assertion, .asserts = Kind::end};
    if (take(".")) {
      ByteSet all;
      all.set(), all.reset('\n');
      return bytes(all);
    }
    if (take("[")) return set();
    if (take("\\b")) return {.kind = Piece::assertion, .asserts = Kind::boundary};
    if (take("\\B")) return {.kind = Piece::assertion, .asserts = Kind::no_boundary};
    if (take("\\")) return bytes(escaped());
    ++at;
    return bytes(ByteSet().set(static_cast<unsigned char>(c)));
  }

  Piece bytes(ByteSet s) const {
    for (int c = 'a'; folds && c <= 'z'; ++c)
      if (s[size_t(c)] || s[size_t(c - 32)]) s.set(size_t(c)), s.set(size_t(c - 32));
    return {.kind = Piece::bytes, .set = s};
  }

  // What stands after a backslash.
  ByteSet escaped() {
    if (!more()) refuse("a character after the last backslash");
    const char c = text[at++];
    if (std::string_view("dDwWsS").find(c) != std::string_view::npos) return named_set(c);
    if (std::isdigit(static_cast<unsigned char>(c)))
      refuse("no back reference, which is not known here,");
    if (c == 'x') {
      int value = 0;
      const char* begin = text.data() + at;
      const auto r =
          std::from_chars(begin, begin + std::min<size_t>(2, text.size() - at), value, 16);
      if (r.ptr != begin + 2) refuse("two hexadecimal digits");
      at += 2;
      return ByteSet().set(size_t(value));
    }
    constexpr std::string_view names = "ntrfv", values = "\n\t\r\f\v";
    const size_t i = names.find(c);
    if (i == names.npos && std::isalpha(static_cast<unsigned char>(c)))
      refuse("a known escape before this byte,");
    return ByteSet().set(static_cast<unsigned char>(i == names.npos ? c : values[i]));
  }

  Piece set() {
    const bool inverted = take("^");
    ByteSet s;
    for (bool first = true; first || !take("]"); first = false) {
      if (!more()) refuse("a ]");
      const ByteSet low = one_of_set();
      if (text.substr(at).starts_with("-") && !text.substr(at).starts_with("-]")) {
        ++at;
        if (!more()) refuse("a ]");
        const ByteSet high = one_of_set();
        const size_t a = low._Find_first(), b = high._Find_first();
        if (low.count() != 1 || high.count() != 1 || a > b) refuse("a range from low to high");
        for (size_t c = a; c <= b; ++c) s.set(c);
      } else {
        s |= low;
      }
    }
    const Piece p = bytes(s);
    return inverted ? Piece{.kind = Piece::bytes, .set = ~p.set} : p;
  }
  ByteSet one_of_set() {
    if (take("\\")) return escaped();
    return ByteSet().set(static_cast<unsigned char>(text[at++]));
  }

  // --- emitting: the instruction where a piece begins, given where what follows it does ---
  int32_t add(Pattern::Instruction i) {
    if (pattern.program_.size() >= most_instructions)
      fail_usage("regex", "expected at most {} instructions, got more from {}", most_instructions,
                 in_quotes(text));
    pattern.program_.push_back(i);
    return int32_t(pattern.program_.size()) - 1;
  }

  int32_t emit(const Piece& p, int32_t next) {
    switch (p.kind) {
      case Piece::empty:
        return next;
      case Piece::bytes:
        pattern.sets_.push_back(p.set);
        return add({.kind = Kind::bytes, .bytes = int32_t(pattern.sets_.size()) - 1, .next = next});
      case Piece::assertion:
        return add({.kind = p.asserts, .next = next});
      case Piece::sequence:
        for (size_t i = p.parts.size(); i-- > 0;) next = emit(p.parts[i], next);
        return next;
      case Piece::either: {
        int32_t begin = emit(p.parts.back(), next);
        for (size_t i = p.parts.size() - 1; i-- > 0;) {
          const int32_t one = emit(p.parts[i], next);
          begin = add({.kind = Kind::split, .next = one, .or_ = begin});
        }
        return begin;
      }
      case Piece::repeat:
        return emit_repeat(p, next);
    }
    return next;
  }

  int32_t emit_repeat(const Piece& p, int32_t next) {
    const Piece& body = p.parts[0];
    int32_t begin = next;
    if (p.most < 0) {
      begin = add({.kind = Kind::split, .or_ = next});
      const int32_t again = emit(body, begin);
      pattern.program_[size_t(begin)].next = again;
    }
    for (int i = p.least; i < p.most; ++i)
      begin = add({.kind = Kind::split, .next = emit(body, begin), .or_ = next});
    for (int i = 0; i < p.least; ++i) {
      const int32_t one = emit(body, begin);
      if (one == begin) break;  // of nothing: a nest of such counts would never end
      begin = one;
    }
    return begin;
  }
};

Pattern::Pattern(std::string_view expression) {
  PatternCompiler{.pattern = *this, .text = expression}.compile();
}

// Adds to the list every instruction that reads a byte and can be reached from `at` without one.
void Pattern::follow(std::vector<int32_t>& list, std::vector<uint32_t>& seen, uint32_t mark,
                     int32_t at, std::string_view text, size_t place) const {
  const auto word_at = [&](size_t i) {
    return i < text.size() && is_word(static_cast<unsigned char>(text[i]));
  };
  std::vector<int32_t> stack{at};
  while (!stack.empty()) {
    const int32_t i = stack.back();
    stack.pop_back();
    if (seen[size_t(i)] == mark) continue;
    seen[size_t(i)] = mark;
    const Instruction& in = program_[size_t(i)];
    const bool boundary = (place > 0 && word_at(place - 1)) != word_at(place);
    switch (in.kind) {
      case Kind::bytes:
      case Kind::match:
        list.push_back(i);
        break;
      case Kind::split:
        stack.push_back(in.or_), stack.push_back(in.next);
        break;
      case Kind::begin:
        if (place == 0) stack.push_back(in.next);
        break;
      case Kind::end:
        if (place == text.size()) stack.push_back(in.next);
        break;
      case Kind::boundary:
        if (boundary) stack.push_back(in.next);
        break;
      case Kind::no_boundary:
        if (!boundary) stack.push_back(in.next);
        break;
    }
  }
}

bool Pattern::found_in(std::string_view text) const {
  std::vector<int32_t> now, next;
  std::vector<uint32_t> seen(program_.size(), 0);
  uint32_t mark = 0;
  for (size_t place = 0;; ++place) {
    // A match may begin anywhere: at every place the paths of a new one join those under way.
    if (place == 0) ++mark;
    follow(now, seen, mark, start_, text, place);
    for (const int32_t i : now)
      if (program_[size_t(i)].kind == Kind::match) return true;
    if (place == text.size()) return false;
    next.clear();
    ++mark;
    const unsigned char c = static_cast<unsigned char>(text[place]);
    for (const int32_t i : now) {
      const Instruction& in = program_[size_t(i)];
      if (sets_[size_t(in.bytes)][c]) follow(next, seen, mark, in.next, text, place + 1);
    }
    now.swap(next);
  }
}

}  // namespace hearth
