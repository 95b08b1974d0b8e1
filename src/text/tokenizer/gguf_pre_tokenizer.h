// llama.cpp's names of pre-tokenizers (tokenizer.ggml.pre), with what each name implies.
#pragma once

#include <span>
#include <string_view>

#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

struct GgufPreTokenizer {
  std::string_view name;
  Pattern pattern;
  bool ignore_merges = false;  // a word that is a token is not merged
  bool add_bos = false;        // unless tokenizer.ggml.add_bos_token says otherwise
  std::span<const std::string_view> steps = {};  // with Pattern::steps
};

// Sets the pattern or the steps, and the merge rule; an unknown name is an error.
const GgufPreTokenizer& set_pre_tokenizer(VocabularyParts&, std::string_view name);

// The name under which llama.cpp computes the same ids; an error if there is none.
std::string_view pre_tokenizer_name(const Vocabulary&);

}  // namespace hearth::inline text
