// The numbers of JsonPhrases: an automaton over their digits, so bounds and multiples are exact.
// Its states are rules: the digits that are left, and what these must be modulo the step.
#include <algorithm>
#include <numeric>

#include "grammar/json_phrases.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

// Every parser that reads doubles keeps numbers of 15 digits apart.
constexpr int usual_digits = 15;
constexpr int64_t most_states = 20000;                 // of the automaton of a multiple
constexpr int64_t beyond = 4'000'000'000'000'000'000;  // more than any bound

int64_t power_of_ten(int n) {
  int64_t p = 1;
  for (; n > 0; --n) p *= 10;
  return p;
}

// d in units of 10^-decimals, rounded up or down; what is too large for them is `beyond`.
int64_t in_units(const Decimal& d, int decimals, bool up) {
  int64_t x = d.mantissa;
  int shift = d.exponent + decimals;
  for (; shift > 0 && x != 0; --shift) {
    if (std::abs(x) >= beyond / 10) return x > 0 ? beyond : -beyond;
    x *= 10;
  }
  if (shift >= 0) return x;
  const int64_t unit = power_of_ten(std::min(-shift, 18)), rest = x % unit;
  return x / unit + (up ? rest > 0 : -(rest < 0));
}

int64_t least_units(const std::vector<NumberLimit>& limits, int decimals) {
  int64_t least = -beyond;
  for (const NumberLimit& l : limits)
    least = std::max(
        least, l.excluded ? in_units(l.at, decimals, false) + 1 : in_units(l.at, decimals, true));
  return least;
}

int64_t most_units(const std::vector<NumberLimit>& limits, int decimals) {
  int64_t most = beyond;
  for (const NumberLimit& l : limits)
    most = std::min(
        most, l.excluded ? in_units(l.at, decimals, true) - 1 : in_units(l.at, decimals, false));
  return most;
}

// The rest of x modulo `step`, at least 0.
int64_t modulo(int64_t x, int64_t step) { return (x % step + step) % step; }

// Numbers are multiples of size x 10^-decimals; decimals -1: as many as the digits leave.
struct Step {
  int64_t size = 1;
  int decimals = -1;
};

Step step_of(const NumberBounds& b, bool whole, const std::string& where) {
  if (!b.multiple) return {.decimals = whole ? 0 : -1};
  const Decimal& m = *b.multiple;
  if (m.exponent < -(usual_digits - 1) || m.exponent > usual_digits ||
      in_units(m, std::max(0, -m.exponent), true) > power_of_ten(usual_digits))
    fail_usage(where, "expected a multipleOf of at most 1e15 with at most {} decimals, got {}e{}",
               usual_digits - 1, m.mantissa, m.exponent);
  if (m.exponent >= 0) return {m.mantissa * power_of_ten(m.exponent), 0};
  // x 10^decimals is a multiple of the mantissa.
  if (whole) return {m.mantissa / std::gcd(m.mantissa, power_of_ten(-m.exponent)), 0};
  return {m.mantissa, -m.exponent};
}

// With k digits left, what they must be modulo the step differs by multiples of gcd(step, 10^k).
void check_states(const Step& step, int digits, const std::string& where) {
  int64_t states = 0;
  for (int k = 0; k <= digits; ++k) {
    const int64_t texts = power_of_ten(std::min(k, 18)), apart = std::gcd(step.size, texts);
    states += (std::min(step.size, texts) + apart - 1) / apart;
  }
  if (step.size > 1 && states > most_states)
    fail_usage(where,
               "this multipleOf needs an automaton of {} states, more than {}: every whole number "
               "up to 1000 needs fewer, and so do larger ones whose factors are mostly 2 and 5",
               states, most_states);
}

// A bound that is not given is the usual one, or the other bound where that is beyond it: then one
// number matches.
void add_usual_bounds(NumberBounds& b, const Step& step) {
  const int64_t usual = power_of_ten(usual_digits) - 1, size = step.decimals > 0 ? 1 : step.size;
  if (b.most.empty()) {
    const int64_t least = b.least.empty() ? 0 : least_units(b.least, 0);
    b.most.push_back({{std::max(usual, least + modulo(-least, size)), 0}});
  }
  if (b.least.empty()) {
    const int64_t most = most_units(b.most, 0);
    b.least.push_back({{std::min(-usual, most - modulo(most, size)), 0}});
  }
}

int64_t number_in(std::string_view digits) {
  int64_t n = 0;
  for (const char c : digits) n = 10 * n + (c - '0');
  return n;
}

}  // namespace

Decimal decimal_of(const nlohmann::ordered_json& number) {
  Decimal d;
  if (number.is_number_integer()) {
    d.mantissa = number.get<int64_t>();
  } else {  // the shortest text that means this double
    const std::string text = number.dump();
    const size_t e = std::min(text.find('e'), text.size()), point = text.find('.');
    std::string digits = text.substr(0, e);
    if (point < e) {
      digits.erase(point, 1);
      d.exponent = -int(e - point - 1);
    }
    d.mantissa = std::stoll(digits);
    if (e < text.size()) d.exponent += std::stoi(text.substr(e + 1));
  }
  for (; d.mantissa != 0 && d.mantissa % 10 == 0; ++d.exponent) d.mantissa /= 10;
  return d;
}

// Whether the digits that are left can be written.
bool JsonPhrases::can_end(const DigitRange& r, const DigitPlace& p) {
  const std::string_view low = std::string_view(r.low).substr(p.at);
  const int64_t least = p.above ? 0 : number_in(low);
  const int64_t most = p.below ? power_of_ten(int(low.size())) - 1
                               : number_in(std::string_view(r.high).substr(p.at));
  return least + modulo(p.rest - least, r.step) <= most;
}

Phrase JsonPhrases::any_digits(int left, int decimals) {
  const Phrase digit = g_.byte('0', '9');
  if (left < decimals) return g_.repeat(digit, 0, left);
  const Phrase whole = g_.repeat(digit, left - decimals, left - decimals);
  if (decimals == 0) return whole;
  const Phrase fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, decimals)});
  return g_.sequence({whole, g_.optional(fraction)});
}

// The digits of a number from one place on. Zeros at the end of a fraction need not be written.
Phrase JsonPhrases::digits(const DigitRange& r, const DigitPlace& p) {
  const int left = int(r.low.size() - p.at);
  const bool free = p.above && p.below;
  if (free && r.step == 1) return any_digits(left, r.decimals);
  RuleId rule = -1;
  if (free) {
    const auto [found, fresh] = digits_.try_emplace({r.step, r.decimals, left, p.rest}, -1);
    if (!fresh) return g_.call(found->second);
    rule = found->second = g_.new_rule();
  }
  std::vector<Phrase> ways, nexts;
  const bool zeros = p.above || r.low.find_first_not_of('0', p.at) == std::string::npos;
  if (left <= r.decimals && p.rest == 0 && zeros) ways.push_back(g_.text(""));
  if (left > 0) {
    const char least = p.above ? '0' : r.low[p.at], most = p.below ? '9' : r.high[p.at];
    const int64_t unit = power_of_ten(left - 1) % r.step;
    const auto after = [&](char d) {
      return DigitPlace{.at = p.at + 1,
                        .above = p.above || d > r.low[p.at],
                        .below = p.below || d < r.high[p.at],
                        .rest = modulo(p.rest - (d - '0') * unit, r.step)};
    };
    for (char d = least; d <= most; ++d) {
      const DigitPlace next = after(d);
      const char from = d;
      while (d < most && after(char(d + 1)) == next) ++d;
      if (can_end(r, next))
        nexts.push_back(g_.sequence({g_.byte(uint8_t(from), uint8_t(d)), digits(r, next)}));
    }
  }
  if (!nexts.empty()) {
    const Phrase next = g_.choice(std::move(nexts));
    const bool point = left == r.decimals;
    ways.push_back(point ? g_.sequence({g_.text("."), next}) : next);
  }
  const Phrase all = g_.choice(std::move(ways));
  if (!free) return all;
  g_.define(rule, all);
  return g_.call(rule);
}

// Without an exponent. Numbers of different length before the point are different ranges.
Phrase JsonPhrases::bounded(NumberBounds b, bool whole) {
  const Step step = step_of(b, whole, g_.where());
  add_usual_bounds(b, step);
  std::vector<Phrase> ways;
  for (const bool negative : {false, true}) {
    std::vector<Phrase> texts;
    for (int digits = 1; digits <= 19; ++digits) {
      const int decimals = step.decimals < 0 ? std::max(0, usual_digits - digits) : step.decimals;
      if (decimals > 0 && digits + decimals > usual_digits) break;
      const int64_t least = least_units(b.least, decimals), most = most_units(b.most, decimals);
      // -0 is left to the numbers that are not negative.
      const int64_t first = digits > 1 ? power_of_ten(digits - 1 + decimals) : negative;
      const int64_t last = digits < 19 ? power_of_ten(digits + decimals) - 1 : beyond;
      const int64_t low = std::max(negative ? -most : least, first);
      const int64_t high = std::min(negative ? -least : most, last);
      if (low > high) continue;
      const int width = digits + decimals;
      const DigitRange r{fmt::format("{:0{}}", low, width), fmt::format("{:0{}}", high, width),
                         decimals, step.size};
      check_states(step, width, g_.where());
      if (can_end(r, {})) texts.push_back(this->digits(r, {}));
    }
    if (texts.empty()) continue;
    const Phrase all = g_.choice(std::move(texts));
    ways.push_back(negative ? g_.sequence({g_.text("-"), all}) : all);
  }
  if (ways.empty())
    fail_usage(g_.where(), "no {}{} lies between the minimum and the maximum",
               whole ? "integer" : "number", b.multiple ? " that is a multiple" : "");
  return g_.choice(std::move(ways));
}

Phrase JsonPhrases::integer(const NumberBounds& b) { return bounded(b, true); }

Phrase JsonPhrases::number(const NumberBounds& b) {
  if (!b.least.empty() || !b.most.empty() || b.multiple) return bounded(b, false);
  const Phrase digit = g_.byte('0', '9');
  const Phrase integer =
      g_.choice({g_.text("0"), g_.sequence({g_.byte('1', '9'), g_.repeat(digit, 0, 14)})});
  const Phrase sign = g_.optional(g_.choice({g_.text("+"), g_.text("-")}));
  const Phrase exponent =
      g_.sequence({g_.choice({g_.text("e"), g_.text("E")}), sign, g_.repeat(digit, 1, 2)});
  const Phrase fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, 15)});
  return g_.sequence(
      {g_.optional(g_.text("-")), integer, g_.optional(fraction), g_.optional(exponent)});
}

}  // namespace hearth::inline grammar
