// SplitRegex: a regular expression of a tokenizer file, in the syntax of Hugging Face's engine
// (Oniguruma), run by PCRE2. What the two engines read differently is translated or refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline text {

// A part of a text, and whether a pattern matches it.
struct Cut {
  size_t begin, end;
  bool match;
};

class SplitRegex {
 public:
  // An error names `where`, which is a path in a file.
  SplitRegex(std::string_view pattern, const std::string& where);
  ~SplitRegex();

  // Appends the matches, leftmost first, and the parts between them, which together are all of the
  // text. The text must be valid UTF-8. A search that takes too many steps is an error.
  void find(std::string_view text, std::vector<Cut>& out) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

// The pattern in PCRE2's syntax; a part that has no equal there is an error.
std::string pcre2_syntax(std::string_view oniguruma, const std::string& where);

}  // namespace hearth::inline text
