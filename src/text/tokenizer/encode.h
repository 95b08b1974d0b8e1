// The way from text to ids, in its stages: added tokens are cut out, what lies between them is
// normalised, cut into words, and each word is spelled and merged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth {

constexpr std::string_view space_mark = "\u2581";  // how pieces write a space

void replace_all(std::string& text, std::string_view from, std::string_view to);

// What the normaliser makes of a text.
std::string normalised(const Vocabulary&, std::string_view text);

// The symbols of a word before any merge, appended to `out`.
void spell(const Vocabulary&, std::string_view word, std::vector<int32_t>& out);

// Added tokens of a text, leftmost first, the longest among those, that `admits` (absent: all)
// takes.
std::vector<FoundToken> find_added(const AddedTokens&, std::string_view text, const Admits& = {});

// Appends the ids of a text, in which added tokens are text like any other.
void encode_plain(const Vocabulary&, std::string_view text, std::vector<int32_t>& out);
// The same, but added tokens become their ids, as Hugging Face finds them.
void encode_with_added(const Vocabulary&, std::string_view text, std::vector<int32_t>& out);

}  // namespace hearth
