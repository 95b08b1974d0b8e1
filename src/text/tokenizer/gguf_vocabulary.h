// A tokenizer inside a GGUF file: byte-level BPE (called "gpt2" by llama.cpp), or SentencePiece
// ("llama"), which a llama2.c vocabulary is stored as, too.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "formats/gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

// Writes the tokenizer's keys, padded to `vocab` tokens; an empty path writes that there is none.
void put_vocabulary(GgufKeys&, const std::filesystem::path& tokenizer, int64_t vocab);

// Tokens that end a text besides eos. llama.cpp knows two, the ends of a turn and of a message; a
// longer list is stored under a key of our own too.
void put_more_ends(GgufKeys&, std::span<const int32_t>);
std::vector<int32_t> more_ends(const GgufTable&);

bool has_vocabulary(const GgufTable&);
VocabularyParts read_gguf_vocabulary(const GgufTable&);

// Writes tokenizer.json and tokenizer_config.json, or tok<size>.bin, to `dir`.
void save_gguf_vocabulary(const GgufTable&, const std::filesystem::path& dir);

}  // namespace hearth::inline text
