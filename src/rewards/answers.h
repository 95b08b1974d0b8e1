// Extracts and compares numbers in a model's text, as arithmetic benchmarks do.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth::inline rewards {

// The number that a text answers with. With "####" it is the number after the first one that has a
// number, as in GSM8K's scorer, and none if no number follows any. Else it is the last number; a
// number that ends a word ("m2") counts only if there is no other. The result is normalised: only a
// minus sign, no thousands separators, no exponent, no redundant zeros ("1,200.50" is "1200.5",
// "5e-05" is "0.00005", "-0" is "0"), and n/d for a fraction. A $ before it and text after it are
// ignored.
std::optional<std::string> answer_number(std::string_view text);

// Compares by value: 2/6 equals 1/3, and 1/4 equals 0.25.
bool equal_number(std::string_view completion, std::string_view answer);
// |x - y| <= tolerance, the scoring of MAWPS-style sets.
bool near_number(std::string_view completion, std::string_view answer, double tolerance);

}  // namespace hearth::inline rewards
