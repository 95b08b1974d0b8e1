// The pre-tokeniser: cuts text into the words that BPE works on. One hand-written scanner for each
// pattern, equal to its regular expression on any text. A byte that is not part of well-formed
// UTF-8 is classed as U+FFFD (neither letter, number nor space) but stays the byte it is.
#pragma once

#include <optional>
#include <string_view>

namespace hearth {

enum class Pattern { gpt2 };

// By our name ("gpt2") or by the regular expression as tokenizer files spell it.
std::optional<Pattern> pattern_named(std::string_view name);
std::optional<Pattern> pattern_of_regex(std::string_view regex);
std::string_view pattern_name(Pattern);
std::string_view pattern_regex(Pattern);

// The end of the word that starts at p < end; words follow each other without gaps.
using Scanner = const char* (*)(const char* p, const char* end);
Scanner scanner_of(Pattern);

}  // namespace hearth
