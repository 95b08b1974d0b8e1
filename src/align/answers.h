// Numbers in a model's text, as arithmetic benchmarks check them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth {

// The number a text answers with: after its last "####", else the last in it. Written plainly: no
// sign but -, no thousands' commas, no zeros that say nothing ("1,200.50" is "1200.5", "-0" is
// "0"). A $ before it and what follows it do not matter. "#### " with no number is no answer.
std::optional<std::string> answer_number(std::string_view text);

bool equal_number(std::string_view completion, std::string_view answer);
// |x - y| <= tolerance, as MAWPS-style sets are scored.
bool near_number(std::string_view completion, std::string_view answer, double tolerance);

}  // namespace hearth
