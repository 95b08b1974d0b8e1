#include "align/answers.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace hearth {
namespace {

bool digit(std::string_view s, size_t i) {
  return i < s.size() && std::isdigit(static_cast<unsigned char>(s[i]));
}

// The end of the whole part that begins with the digit at `i`: digits, and commas before three.
size_t whole_end(std::string_view s, size_t i) {
  while (digit(s, i) || (i < s.size() && s[i] == ',' && i > 0 && digit(s, i - 1) &&
                         digit(s, i + 1) && digit(s, i + 2) && digit(s, i + 3) && !digit(s, i + 4)))
    ++i;
  return i;
}

// A minus right before a number, unless it takes that number from another one.
bool negative(std::string_view s, size_t begin) {
  if (begin > 0 && s[begin - 1] == '$') --begin;
  constexpr std::string_view long_minus = "\xe2\x88\x92";
  size_t sign = 0;
  if (begin > 0 && s[begin - 1] == '-')
    sign = 1;
  else if (s.substr(0, begin).ends_with(long_minus))
    sign = long_minus.size();
  if (sign == 0) return false;
  const size_t before = begin - sign;
  return before == 0 || !(digit(s, before - 1) || s[before - 1] == ')');
}

std::string plain(std::string_view whole, std::string_view fraction, bool minus) {
  std::string digits;
  for (const char c : whole)
    if (c != ',' && !(digits.empty() && c == '0')) digits += c;
  while (fraction.ends_with('0')) fraction.remove_suffix(1);
  if (digits.empty()) digits = "0";
  if (!fraction.empty()) digits += "." + std::string(fraction);
  return minus && digits != "0" ? "-" + digits : digits;
}

// The first number at or after `i`, and where it ends.
std::optional<std::string> next_number(std::string_view s, size_t& i) {
  for (; i < s.size(); ++i) {
    const bool point = s[i] == '.' && digit(s, i + 1) && (i == 0 || !digit(s, i - 1));
    if (!digit(s, i) && !point) continue;
    const size_t begin = i, end = whole_end(s, i);
    i = end;
    size_t stop = end;
    if (end < s.size() && s[end] == '.' && digit(s, end + 1))
      for (stop = end + 1; digit(s, stop);) ++stop;
    i = stop;
    const std::string_view fraction = stop > end ? s.substr(end + 1, stop - end - 1) : "";
    return plain(s.substr(begin, end - begin), fraction, negative(s, begin));
  }
  return std::nullopt;
}

std::optional<double> value_of(const std::optional<std::string>& number) {
  double x = 0;
  if (!number) return std::nullopt;
  const auto r = std::from_chars(number->data(), number->data() + number->size(), x);
  if (r.ec != std::errc() || !std::isfinite(x)) return std::nullopt;
  return x;
}

}  // namespace

std::optional<std::string> answer_number(std::string_view text) {
  size_t i = 0;
  if (const size_t mark = text.rfind("####"); mark != text.npos) {
    i = mark + 4;
    return next_number(text, i);
  }
  std::optional<std::string> last;
  while (auto n = next_number(text, i)) last = std::move(n);
  return last;
}

bool equal_number(std::string_view completion, std::string_view answer) {
  const auto said = answer_number(completion), wanted = answer_number(answer);
  return said && wanted && *said == *wanted;
}

bool near_number(std::string_view completion, std::string_view answer, double tolerance) {
  const auto said = value_of(answer_number(completion)), wanted = value_of(answer_number(answer));
  return said && wanted && std::abs(*said - *wanted) <= tolerance;
}

}  // namespace hearth
