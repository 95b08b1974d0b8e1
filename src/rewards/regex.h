// Regex: the pattern of a `regex:` reward, searched with PCRE2. Every search is limited in steps
// and memory, because a model writes the text. A build without PCRE2 rejects every pattern.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

namespace hearth::inline rewards {

class Regex {
 public:
  // Perl syntax on UTF-8; \d, \w, \s, \b and (?i) cover all of Unicode, as in Python's re. An
  // invalid pattern is a usage error that names the position.
  explicit Regex(std::string_view pattern);
  ~Regex();

  // Whether the pattern matches anywhere in the text; nothing if the search reached a limit.
  // Invalid UTF-8 bytes match nothing. Thread-safe.
  std::optional<bool> found_in(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

const char* regex_library();  // "PCRE2 10.42"; "" in a build without it

}  // namespace hearth::inline rewards
