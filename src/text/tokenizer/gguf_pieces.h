// SentencePiece tokenizers inside GGUF files (tokenizer.ggml.model "llama"), such as those of
// Llama 2, Mistral, Gemma and Phi-3. SentencePiece merges the pair whose piece has the best score;
// the scores become a list of merges, as in transformers' converter.
#pragma once

#include "formats/gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

VocabularyParts read_gguf_pieces(const GgufTable&);

// Writes a vocabulary of pieces, padded to `vocab` tokens. Refuses one whose merges no scores can
// express, and rules that llama.cpp does not have. Returns whether llama.cpp puts spaces before
// more texts than the tokenizer does.
bool put_gguf_pieces(GgufKeys&, const Vocabulary&, int64_t vocab);

}  // namespace hearth::inline text
