#include "rewards/answers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace hearth::inline rewards {
namespace {

bool digit(std::string_view s, size_t i) {
  return i < s.size() && std::isdigit(static_cast<unsigned char>(s[i]));
}

bool letter(std::string_view s, size_t i) {
  return i < s.size() && std::isalpha(static_cast<unsigned char>(s[i]));
}

// The end of the integer part that starts at digit `i`: digits, and commas before three digits.
size_t whole_end(std::string_view s, size_t i) {
  while (digit(s, i) || (i < s.size() && s[i] == ',' && i > 0 && digit(s, i - 1) &&
                         digit(s, i + 1) && digit(s, i + 2) && digit(s, i + 3) && !digit(s, i + 4)))
    ++i;
  return i;
}

// Whether a minus directly precedes the number, unless it subtracts from another number.
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

// The digits with the decimal point moved `places` to the right, without redundant zeros.
std::string plain(std::string_view whole, std::string_view fraction, int places, bool minus) {
  std::string digits;
  for (const char c : whole)
    if (c != ',') digits += c;
  int point = int(digits.size()) + places;
  digits += fraction;
  if (point < 0) digits.insert(0, size_t(-point), '0'), point = 0;
  if (point > int(digits.size())) digits.append(size_t(point) - digits.size(), '0');
  std::string after = digits.substr(size_t(point));
  digits.resize(size_t(point));
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  after.erase(after.find_last_not_of('0') + 1);
  if (digits.empty()) digits = "0";
  if (!after.empty()) digits += "." + after;
  return minus && digits != "0" ? "-" + digits : digits;
}

// The power of ten after a number that ends at `i` ("e-05"), advancing `i` past it; else 0.
int power_of_ten(std::string_view s, size_t& i) {
  constexpr int most = 400;
  if (i >= s.size() || (s[i] != 'e' && s[i] != 'E')) return 0;
  const size_t sign = i + 1 < s.size() && (s[i + 1] == '-' || s[i + 1] == '+') ? 1 : 0;
  const size_t begin = i + 1 + sign;
  size_t end = begin;
  while (digit(s, end)) ++end;
  int n = 0;
  const auto r = std::from_chars(s.data() + begin, s.data() + end, n);
  if (r.ec != std::errc() || n > most || letter(s, end)) return 0;
  i = end;
  return sign && s[i - (end - begin) - 1] == '-' ? -n : n;
}

// The denominator after a number from `begin` to `i` ("/7"), advancing `i` past it; empty: none.
std::string divisor(std::string_view s, size_t begin, size_t& i) {
  if (i >= s.size() || s[i] != '/' || !digit(s, i + 1) || (begin > 0 && s[begin - 1] == '/'))
    return {};
  const size_t end = whole_end(s, i + 1);
  // A date's slash, a decimal point or an exponent follows: not the denominator of a fraction.
  if (end < s.size() && (s[end] == '/' || s[end] == '.' || s[end] == 'e' || s[end] == 'E') &&
      digit(s, end + 1))
    return {};
  std::string by = plain(s.substr(i + 1, end - i - 1), "", 0, false);
  if (by == "0") return {};
  i = end;
  return by;
}

struct Found {
  std::string number;
  bool in_word = false;  // it ends a word, like the 2 in m2
};

// The first number at or after `i`; advances `i` past it.
std::optional<Found> next_number(std::string_view s, size_t& i) {
  for (; i < s.size(); ++i) {
    const bool point = s[i] == '.' && digit(s, i + 1) && (i == 0 || !digit(s, i - 1));
    if (!digit(s, i) && !point) continue;
    const size_t begin = i, end = whole_end(s, i);
    size_t stop = end;
    if (end < s.size() && s[end] == '.' && digit(s, end + 1))
      for (stop = end + 1; digit(s, stop);) ++stop;
    i = stop;
    const std::string_view fraction = stop > end ? s.substr(end + 1, stop - end - 1) : "";
    const int places = power_of_ten(s, i);
    std::string n = plain(s.substr(begin, end - begin), fraction, places, negative(s, begin));
    if (const std::string by = divisor(s, begin, i); !by.empty() && by != "1") n += "/" + by;
    return Found{std::move(n), begin > 0 && letter(s, begin - 1)};
  }
  return std::nullopt;
}

std::optional<double> value_of(const std::optional<std::string>& number) {
  if (!number) return std::nullopt;
  const size_t cut = std::min(number->find('/'), number->size());
  double x = 0, by = 1;
  auto r = std::from_chars(number->data(), number->data() + cut, x);
  if (r.ec == std::errc() && cut < number->size())
    r = std::from_chars(number->data() + cut + 1, number->data() + number->size(), by);
  if (r.ec != std::errc() || !std::isfinite(x / by)) return std::nullopt;
  return x / by;
}

// The number after the first "####" that is followed by one, as in GSM8K's scorer.
std::optional<std::string> marked_number(std::string_view text) {
  constexpr std::string_view sign = "####";
  for (size_t at = text.find(sign); at != text.npos; at = text.find(sign, at + 1)) {
    const size_t begin = at + sign.size();
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const size_t first = line.find_first_of("0123456789");
    // Only blanks, a sign or a currency sign may precede it; the last three bytes are a Unicode
    // minus.
    if (first == line.npos || line.find_first_not_of(" #$-.\xe2\x88\x92") != first) continue;
    size_t end = 0;
    if (const auto n = next_number(line, end)) return n->number;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> answer_number(std::string_view text) {
  if (text.find("####") != text.npos) return marked_number(text);
  std::optional<Found> last;
  size_t i = 0;
  while (auto n = next_number(text, i))
    if (!n->in_word || !last || last->in_word) last = std::move(n);
  return last ? std::optional(last->number) : std::nullopt;
}

bool equal_number(std::string_view completion, std::string_view answer) {
  const auto said = answer_number(completion), wanted = answer_number(answer);
  if (!said || !wanted) return false;
  if (said->find('/') == said->npos && wanted->find('/') == wanted->npos) return *said == *wanted;
  // Fractions have several spellings: 2/6 is 1/3, and 1/4 is 0.25.
  const auto x = value_of(said), y = value_of(wanted);
  return x && y && std::abs(*x - *y) <= 1e-12 * std::abs(*y);
}

bool near_number(std::string_view completion, std::string_view answer, double tolerance) {
  const auto said = value_of(answer_number(completion)), wanted = value_of(answer_number(answer));
  return said && wanted && std::abs(*said - *wanted) <= tolerance;
}

}  // namespace hearth::inline rewards
