// CodeSet: a set of Unicode code points, for the classes of regular expressions. Surrogates are no
// code points, because UTF-8 cannot write them.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer/unicode.h"

namespace hearth::inline grammar {

constexpr uint32_t last_code = 0x10ffff;

class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges) : CodeSet(std::vector<CodeRange>(ranges)) {}
  explicit CodeSet(std::vector<CodeRange>);  // in any order, may overlap
  static CodeSet all() { return CodeSet{{0, last_code}}; }

  // Sorted, disjoint and not adjacent.
  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool has(uint32_t code) const { return in_ranges(ranges_, code); }
  CodeSet complement() const;
  CodeSet without(const CodeSet&) const;
  void add(const CodeSet&);
  bool operator<(const CodeSet&) const;

 private:
  std::vector<CodeRange> ranges_;
};

// Sequences of byte ranges that together are the UTF-8 forms of a set.
using ByteRanges = std::vector<std::pair<uint8_t, uint8_t>>;
std::vector<ByteRanges> utf8_ranges(const CodeSet&);

}  // namespace hearth::inline grammar
