// Regex: the pattern of a `regex:` reward, searched for by PCRE2. Every search is bounded in steps
// and memory, because the text is written by a model. A build without PCRE2 refuses every pattern.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

namespace hearth {

class Regex {
 public:
  // Perl's syntax on UTF-8, where \d, \w, \s, \b and (?i) know all of Unicode, as in Python's re.
  // An invalid pattern is a usage error that names the place.
  explicit Regex(std::string_view pattern);
  ~Regex();

  // Whether the pattern matches anywhere in the text; nothing where the search reached a limit.
  // Bytes that are not UTF-8 match nothing. Several threads may search at once.
  std::optional<bool> found_in(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

const char* regex_library();  // "PCRE2 10.42"; "" in a build without it

}  // namespace hearth
