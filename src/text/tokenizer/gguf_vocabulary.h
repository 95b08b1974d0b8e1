// A tokenizer inside a GGUF file: byte-level BPE (called "gpt2" by llama.cpp), or SentencePiece
// ("llama"), which a llama2.c vocabulary is stored as, too.
#pragma once

#include <filesystem>
#include <vector>

#include "formats/gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

// Writes the tokenizer's keys, padded to `vocab` tokens; an empty path writes that there is none.
// Returns whether llama.cpp puts spaces before more texts than the tokenizer does.
bool put_vocabulary(GgufKeys&, const std::filesystem::path& tokenizer, int64_t vocab);

// llama.cpp ends a text at eos, at the end of a turn and at the end of a message. It also appends
// the end of a turn to an answer that was interrupted, so that has to be the token that closes a
// turn of the chat template.
struct TextEnds {
  std::vector<int32_t> more = {};  // tokens that end a text besides eos
  int32_t turn = -1;               // closes a turn, may be eos; -1: unknown, then the first of more
};
void put_text_ends(GgufKeys&, const TextEnds&);
// All of them except eos, unless it also ends a turn. They may be outside of the vocabulary.
std::vector<int32_t> text_ends(const GgufTable&);

bool has_vocabulary(const GgufTable&);
VocabularyParts read_gguf_vocabulary(const GgufTable&);

// Writes tokenizer.json and tokenizer_config.json, or tok<size>.bin, to `dir`.
void save_gguf_vocabulary(const GgufTable&, const std::filesystem::path& dir);

}  // namespace hearth::inline text
