// Numbers in a model's text, as arithmetic benchmarks check them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth {

// The number a text answers with: that of its first "####" with one behind it, as GSM8K's scorer
// has it, and none where it has that sign without; else the last number in it, one that ends a word
// ("m2") only where there is no other. Written plainly: no sign but -, no thousands' commas, no
// power of ten, no zeros that say nothing ("1,200.50" is "1200.5", "5e-05" is "0.00005", "-0" is
// "0"), and n/d where it is a fraction. A $ before it and what follows it do not matter.
std::optional<std::string> answer_number(std::string_view text);

// 2/6 equals 1/3, and 1/4 equals 0.25.
bool equal_number(std::string_view completion, std::string_view answer);
// |x - y| <= tolerance, as MAWPS-style sets are scored.
bool near_number(std::string_view completion, std::string_view answer, double tolerance);

}  // namespace hearth
