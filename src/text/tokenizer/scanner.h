// The pre-tokeniser: cuts text into the words that BPE works on. One hand-written scanner for each
// pattern, equal to its regular expression on any text. A byte that is not part of well-formed
// UTF-8 is classed as U+FFFD (neither letter, number nor space) but stays the byte it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth {

enum class Pattern {
  gpt2,    // also r50k and p50k
  cl100k,  // as tiktoken has it since 0.8: a run of spaces at the end of the text is one word
  llama3,  // cl100k as it was first written
  o200k,
  qwen2,  // llama3 with every digit by itself
  whole,  // no cutting at all
  runs,   // a word is a run of spaces and what follows it up to the next
  spaces  // every space begins a word
};

// By our name ("gpt2") or by the regular expression as tokenizer files spell it. Only the first
// five have names and expressions.
std::optional<Pattern> pattern_named(std::string_view name);
std::optional<Pattern> pattern_of_regex(std::string_view regex);
std::string_view pattern_name(Pattern);
std::string_view pattern_regex(Pattern);
std::string pattern_names();  // for messages: "gpt2, cl100k, ..."

// The end of the word that starts at p < end; words follow each other without gaps.
using Scanner = const char* (*)(const char* p, const char* end);
Scanner scanner_of(Pattern);

}  // namespace hearth
