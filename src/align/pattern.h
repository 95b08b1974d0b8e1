// Pattern: regular expressions over bytes in time linear in the text, whatever the expression: all
// paths are followed at once, so there is neither backtracking nor recursion over the text. (The
// standard library's std::regex has both, and a completion is a stranger's text.)
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hearth {

class Pattern {
 public:
  // Literals, . (no line end), [classes], \d \w \s \D \W \S \n \t \r \f \v \xHH, ^ and $ (ends of
  // the text), \b \B, (groups), (?:groups), |, * + ? {m} {m,} {m,n}, each also with a ? behind it,
  // which changes nothing here; (?i) in front. What needs memory of the text (back references,
  // look-around) is refused by name, as are expressions that grow beyond 20,000 instructions.
  explicit Pattern(std::string_view expression);

  bool found_in(std::string_view text) const;

 private:
  friend struct PatternCompiler;
  enum class Kind : uint8_t { bytes, split, begin, end, boundary, no_boundary, match };
  struct Instruction {
    Kind kind;
    int32_t bytes = -1;           // index into sets_
    int32_t next = -1, or_ = -1;  // where to go on; split goes to both
  };
  void follow(std::vector<int32_t>& list, std::vector<uint32_t>& seen, uint32_t mark, int32_t at,
              std::string_view text, size_t place) const;

  std::vector<Instruction> program_;
  std::vector<std::bitset<256>> sets_;
  int32_t start_ = 0;
};

}  // namespace hearth
