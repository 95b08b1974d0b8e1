// The stages from text to ids: split at added tokens, normalise the parts between them, split them
// into words, then spell and merge each word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

constexpr std::string_view space_mark = "\u2581";  // a space in SentencePiece pieces

void replace_all(std::string& text, std::string_view from, std::string_view to);

// The text after normalisation.
std::string normalised(const Vocabulary&, std::string_view text);

// Appends the symbols of a word before merging to `out`.
void spell(const Vocabulary&, std::string_view word, std::vector<int32_t>& out);

// The added tokens in a text, leftmost first and longest among those, restricted to the ones that
// `admits` accepts (empty: all).
std::vector<FoundToken> find_added(const AddedTokens&, std::string_view text, const Admits& = {});

// Appends the ids of a text; added tokens in it are treated as plain text.
void encode_plain(const Vocabulary&, std::string_view text, TextStart, std::vector<int32_t>& out);
// The same, but added tokens become their ids, matched like Hugging Face.
void encode_with_added(const Vocabulary&, std::string_view text, std::vector<int32_t>& out);

}  // namespace hearth::inline text
