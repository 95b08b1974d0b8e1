// What a Tokenizer shares: the tokens, their merges and the tables made from them. Readers of the
// file formats and the trainer fill a VocabularyParts; make_vocabulary() checks it and builds.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/scanner.h"
#include "tokenizer/words.h"

namespace hearth {

struct Token {
  std::string bytes;
  int32_t id;
};

struct Merge {
  int32_t left, right, id;
};

struct AddedToken {
  std::string text;
  int32_t id;
  bool special = true;
};

enum class MergeRule {
  listed,        // Hugging Face: the merges listed, in that order
  listed_whole,  // the same with ignore_merges: a word that is a token is that token
  by_id,         // tiktoken: two tokens join where their bytes are a token; lowest id first
  llama2c,       // as by_id, but highest score first, over the whole text
};

struct VocabularyParts {
  std::string where = {};  // file, for errors
  MergeRule rule = MergeRule::listed;
  Pattern pattern = Pattern::gpt2;
  std::vector<Token> tokens = {};  // without the added ones
  std::vector<Merge> merges = {};  // for the listed rules
  std::vector<AddedToken> added = {};
  std::vector<float> scores = {};         // by id, for llama2c
  std::vector<std::string> printed = {};  // by id, for llama2c: what a piece decodes to
  int32_t eos = -1, bos = -1;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using TextIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

struct Vocabulary {
  MergeRule rule = MergeRule::listed;
  Pattern pattern = Pattern::gpt2;
  std::vector<std::string> bytes;  // by id; what decoding gives
  std::vector<bool> known;         // by id; false for ids that stand for nothing
  std::array<int32_t, 256> byte_ids{};
  std::vector<Merge> merges;  // in order; for `by_id` derived, in the order of the tokens made
  PairTable pairs;
  WordTable words;
  TextIds long_words;             // words that are one token and too long for `words`
  TextIds pieces;                 // llama2c: every token by its text
  std::vector<AddedToken> added;  // longest first
  std::array<bool, 256> starts_added{};
  int32_t eos = -1, bos = -1;
  mutable WordCache cache;  // safe to fill from any thread
};

std::shared_ptr<const Vocabulary> make_vocabulary(VocabularyParts);

// The printable stand-in that byte-level BPE files write for a byte, as UTF-8, and the order in
// which GPT-2 numbers the bytes.
const std::array<std::string, 256>& byte_letters();
const std::array<uint8_t, 256>& byte_order();
// Back from stand-ins to bytes; false where the text has a character that stands for no byte.
bool bytes_of_letters(std::string_view letters, std::string& bytes);

}  // namespace hearth
