// A tokenizer inside a GGUF file: byte-level BPE under llama.cpp's name "gpt2", or a llama2.c
// vocabulary as its SentencePiece kind, "llama".
#pragma once

#include <filesystem>

#include "formats/gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth {

// Writes the tokenizer's keys, filled up to `vocab` tokens; without a path, that there is none.
void put_vocabulary(GgufKeys&, const std::filesystem::path& tokenizer, int64_t vocab);

bool has_vocabulary(const GgufTable&);
VocabularyParts read_gguf_vocabulary(const GgufTable&);

// tokenizer.json and tokenizer_config.json, or tok<size>.bin, in `dir`.
void save_gguf_vocabulary(const GgufTable&, const std::filesystem::path& dir);

}  // namespace hearth
