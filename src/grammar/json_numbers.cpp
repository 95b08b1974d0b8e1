// The numbers of JsonPhrases: ranges of integers are exact, digit by digit.
#include <algorithm>
#include <limits>

#include "grammar/json_phrases.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

constexpr int64_t most_usual = 999'999'999'999'999;  // 15 digits, which every parser keeps exactly

// A bound that is not given is the usual one, or the other bound where that is beyond it: then one
// number matches, which is the next one if the bound itself is excluded.
int64_t least_of(const NumberBounds& b) {
  return b.least.value_or(std::min(-most_usual, b.most.value_or(0) - b.most_excluded));
}
int64_t most_of(const NumberBounds& b) {
  return b.most.value_or(std::max(most_usual, b.least.value_or(0) + b.least_excluded));
}

}  // namespace

// Numbers with as many digits as `low` and `high` that lie between them. `free_low`: digits before
// have exceeded the lower bound already, so any may follow.
Phrase JsonPhrases::digits_between(std::string_view low, std::string_view high, bool free_low,
                                   bool free_high) {
  if (low.empty()) return g_.text("");
  const uint8_t a = free_low ? '0' : uint8_t(low[0]), b = free_high ? '9' : uint8_t(high[0]);
  const int64_t left = int64_t(low.size()) - 1;
  const auto rest = [&](bool above, bool below) {
    if (above && below) return g_.repeat(g_.byte('0', '9'), left, left);
    return digits_between(low.substr(1), high.substr(1), above, below);
  };
  if (a == b) return g_.sequence({g_.byte(a, a), rest(free_low, free_high)});
  std::vector<Phrase> ways;
  uint8_t from = a, to = b;
  if (!free_low) ways.push_back(g_.sequence({g_.byte(a, a), rest(false, true)})), ++from;
  if (!free_high) ways.push_back(g_.sequence({g_.byte(b, b), rest(true, false)})), --to;
  if (from <= to) ways.push_back(g_.sequence({g_.byte(from, to), rest(true, true)}));
  return g_.choice(std::move(ways));
}

// The whole numbers from low to high, both at least 0.
Phrase JsonPhrases::whole(int64_t low, int64_t high) {
  std::vector<Phrase> ways;
  for (std::string from = std::to_string(low); low <= high; from = std::to_string(low)) {
    const std::string nines(from.size(), '9'), most = std::to_string(high);
    const std::string to = most.size() > from.size() ? nines : most;
    ways.push_back(digits_between(from, to, false, false));
    if (to == most) break;
    low = std::stoll(nines) + 1;
  }
  return g_.choice(std::move(ways));
}

Phrase JsonPhrases::integer(const NumberBounds& b) {
  constexpr int64_t huge = std::numeric_limits<int64_t>::max() - 1;
  int64_t low = least_of(b), high = most_of(b);
  low = std::max(low, -huge) + b.least_excluded, high = std::min(high, huge) - b.most_excluded;
  if (low > high)
    fail_usage(g_.where(), "expected a minimum that is not above the maximum, got {} and {}", low,
               high);
  std::vector<Phrase> ways;
  if (high >= 0) ways.push_back(whole(std::max<int64_t>(low, 0), high));
  if (low < 0)
    ways.push_back(g_.sequence({g_.text("-"), whole(std::max<int64_t>(1, -high), -low)}));
  return g_.choice(std::move(ways));
}

// Decimal numbers from low to high, both at least 0, without an exponent.
Phrase JsonPhrases::magnitude(int64_t low, int64_t high, bool low_excluded, bool high_excluded) {
  const Phrase digit = g_.byte('0', '9');
  const Phrase fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, 15)});
  std::vector<Phrase> ways;
  if (low_excluded && low < high) {  // more than `low`: some digit of the fraction is not 0
    const Phrase above = g_.sequence({g_.text("."), g_.repeat(digit, 0, 14), g_.byte('1', '9')});
    ways.push_back(g_.sequence({whole(low, low), above}));
  }
  if (const int64_t from = low + low_excluded; from < high)
    ways.push_back(g_.sequence({whole(from, high - 1), g_.optional(fraction)}));
  if (!high_excluded && (high > low || !low_excluded)) {
    const Phrase zeros = g_.sequence({g_.text("."), g_.repeat(g_.byte('0', '0'), 1, 15)});
    ways.push_back(g_.sequence({whole(high, high), g_.optional(zeros)}));
  }
  if (ways.empty()) fail_usage(g_.where(), "no number lies between the minimum and the maximum");
  return g_.choice(std::move(ways));
}

Phrase JsonPhrases::number(const NumberBounds& b) {
  const Phrase digit = g_.byte('0', '9');
  if (!b.least && !b.most) {
    const Phrase integer =
        g_.choice({g_.text("0"), g_.sequence({g_.byte('1', '9'), g_.repeat(digit, 0, 14)})});
    const Phrase sign = g_.optional(g_.choice({g_.text("+"), g_.text("-")}));
    const Phrase exponent =
        g_.sequence({g_.choice({g_.text("e"), g_.text("E")}), sign, g_.repeat(digit, 1, 2)});
    const Phrase fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, 15)});
    return g_.sequence(
        {g_.optional(g_.text("-")), integer, g_.optional(fraction), g_.optional(exponent)});
  }
  const int64_t least = least_of(b), most = most_of(b);
  if (least > most)
    fail_usage(g_.where(), "expected a minimum that is not above the maximum, got {} and {}", least,
               most);
  std::vector<Phrase> ways;
  if (most > 0 || (most == 0 && !b.most_excluded))
    ways.push_back(magnitude(std::max<int64_t>(least, 0), most, least >= 0 && b.least_excluded,
                             b.most_excluded));
  if (least < 0)  // -0 is left to the numbers above
    ways.push_back(
        g_.sequence({g_.text("-"), magnitude(std::max<int64_t>(-most, 0), -least,
                                             most >= 0 || b.most_excluded, b.least_excluded)}));
  if (ways.empty()) fail_usage(g_.where(), "no number lies between the minimum and the maximum");
  return g_.choice(std::move(ways));
}

}  // namespace hearth::inline grammar
