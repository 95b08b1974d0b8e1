// The normaliser and the pre-tokeniser of a tokenizer.json as lists of steps, for files whose
// combination has no scanner of its own. The steps do what Hugging Face's do, in their order.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/nfc.h"
#include "text/tokenizer/scanner.h"
#include "text/tokenizer/split_regex.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {

// --- normaliser ---

enum class NormalKind : uint8_t { form, replace, prepend, strip };

struct NormalStep {
  NormalKind kind;
  NormalForm form = NormalForm::c;
  std::string from = {};  // replace: this text, or what the expression matches
  std::shared_ptr<const SplitRegex> regex = {};
  std::string to = {};               // of replace and prepend
  bool left = false, right = false;  // strip: spaces at these ends
};

std::string normalised_by(const std::vector<NormalStep>&, std::string_view text,
                          TextStart = TextStart::whole);

// --- pre-tokeniser ---

// What becomes of the matches of a step: parts of their own, no part of the text any more, or
// joined to what is before or after them; `contiguous` joins neighbouring matches.
enum class SplitBehaviour : uint8_t { removed, isolated, with_previous, with_next, contiguous };
enum class SplitKind : uint8_t {
  scanner,  // a pattern with a scanner: it matches all of a text
  regex,
  text,         // a fixed text
  digits,       // each character of \p{N}
  punctuation,  // each character of \p{P}, and the other symbols of ASCII
  words,        // runs of \w, and runs of neither \w nor spaces
  spaces,       // each space
  letters,      // later steps see a letter for each byte, as the vocabulary does
  metaspace,    // the last step: U+2581 for a space, and one before the text
};

struct SplitStep {
  SplitKind kind;
  SplitBehaviour behaviour = SplitBehaviour::isolated;
  bool invert = false;  // what is between matches counts as the match
  Pattern pattern = Pattern::gpt2;
  std::string text = {};  // the fixed text or the expression
  std::shared_ptr<const SplitRegex> regex = {};
  bool always = false, first = false;  // metaspace: before every part, before the whole text
};

// The words of a text. They point into the text or into `made`.
std::vector<std::string_view> split_by(const std::vector<SplitStep>&, std::string_view text,
                                       TextStart, std::deque<std::string>& made);

}  // namespace hearth::inline text
