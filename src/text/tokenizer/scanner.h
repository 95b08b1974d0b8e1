// The pre-tokeniser: splits text into the words that BPE merges. Each pattern has a hand-written
// scanner that equals its regular expression on any text. An invalid UTF-8 byte is classed like
// U+FFFD (neither letter, number nor space) but stays unchanged.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth::inline text {

enum class Pattern {
  gpt2,    // also r50k and p50k
  cl100k,  // tiktoken 0.8 and later: spaces at the end of the text are one word
  llama3,  // the original cl100k
  o200k,
  qwen2,   // llama3 with single digits
  whole,   // no splitting
  runs,    // a word is a run of spaces and the text up to the next run
  spaces,  // every space starts a word
  steps    // by the steps of the tokenizer's file (text_steps.h); has no scanner
};

// Looks up a pattern by our name ("gpt2") or by its regular expression in tokenizer files. Only the
// first five have names and expressions.
std::optional<Pattern> pattern_named(std::string_view name);
std::optional<Pattern> pattern_of_regex(std::string_view regex);
std::string_view pattern_name(Pattern);
std::string_view pattern_regex(Pattern);
std::string pattern_names();  // for messages: "gpt2, cl100k, ..."

// The end of the word that starts at p < end; words are contiguous.
using Scanner = const char* (*)(const char* p, const char* end);
Scanner scanner_of(Pattern);

}  // namespace hearth::inline text
