// What a Tokenizer shares: the tokens, their merges and the tables made from them. Readers of the
// file formats and the trainer fill a VocabularyParts; make_vocabulary() checks it and builds.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/scanner.h"
#include "text/tokenizer/words.h"

namespace hearth {

constexpr int32_t most_ids = 1 << 24;  // a larger id is a broken file, not a vocabulary

struct Token {
  std::string bytes;
  int32_t id;
};

struct Merge {
  int32_t left, right, id;
};

// A token that is looked for in the text before it is cut into words.
struct AddedToken {
  std::string text;
  int32_t id;
  bool special = true;
  bool lstrip = false, rstrip = false;  // takes the spaces before or after it
  bool single_word = false;             // not next to a letter, digit or the like
  bool normalized = false;              // looked for in the normalised text, else before that
  bool in_vocab = false;                // the file has it among the model's tokens, too
  std::string sought = {};              // the text, normalised where that is asked; set when placed
};

enum class MergeRule {
  listed,        // Hugging Face: the merges listed, in that order
  listed_whole,  // the same with ignore_merges: a word that is a token is that token
  by_id,         // tiktoken: two tokens join where their bytes are a token; lowest id first
  llama2c,       // as by_id, but highest score first, over the whole text
};

enum class LeadingSpace {
  none,
  missing,        // added to a text that does not begin with one (and to one after a special token)
  missing_first,  // the same, but never after a special token
  always,         // added to every text that is not empty
};

// How text becomes words and words become symbols, and what happens at both ends.
struct TextRules {
  Pattern pattern = Pattern::gpt2;
  bool pieces = false;  // symbols are characters, a space counts as U+2581; else they are bytes
  bool nfc = false;
  LeadingSpace leading = LeadingSpace::none;
  bool byte_fallback = false;  // pieces: a character that is no token is its bytes' <0xHH>
  int32_t unk = -1;            // what stands for a symbol that is no token
  bool fuse_unk = false;       // one for several in a row
  bool bytes_decode = false;   // pieces: <0xHH> decodes to its byte
  bool strip_first = false;    // decoding: the first piece loses one space in front
  std::vector<int32_t> before = {}, after = {};  // what the post-processor's template adds
};

// The parts of tokenizer.json as they were read, and the whole of tokenizer_config.json: saving
// writes them back. Empty where the tokenizer did not come from such files.
struct SavedParts {
  std::string normalizer = {}, pre_tokenizer = {}, post_processor = {}, decoder = {}, config = {};
};

struct VocabularyParts {
  std::string where = {};  // file, for errors
  MergeRule rule = MergeRule::listed;
  TextRules text = {};
  std::vector<Token> tokens = {};  // without the added ones
  std::vector<Merge> merges = {};  // for the listed rules
  std::vector<AddedToken> added = {};
  std::vector<float> scores = {};         // by id, for llama2c
  std::vector<std::string> printed = {};  // by id, for llama2c: what a piece decodes to
  SavedParts saved = {};
  int32_t eos = -1, bos = -1;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using TextIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// Tokens to look for in a text, longest first, by their first byte.
struct AddedTokens {
  std::vector<AddedToken> tokens;
  std::array<bool, 256> starts{};
};

struct Vocabulary {
  MergeRule rule = MergeRule::listed;
  TextRules text;
  std::vector<std::string> bytes;       // by id; what decoding gives
  std::vector<bool> known;              // by id; false for ids that stand for nothing
  std::array<int32_t, 256> byte_ids{};  // -1 where a byte has none
  std::vector<Merge> merges;  // in order; for `by_id` derived, in the order of the tokens made
  PairTable pairs;
  WordTable words;
  TextIds long_words;           // words that are one token and too long for `words`
  TextIds pieces;               // llama2c and pieces: every token by its text
  AddedTokens raw, normalized;  // by where they are looked for
  SavedParts saved;
  int32_t eos = -1, bos = -1;
  mutable WordCache cache;  // safe to fill from any thread
};

std::shared_ptr<const Vocabulary> make_vocabulary(VocabularyParts);

// Every added token, by id.
std::vector<AddedToken> added_tokens(const Vocabulary&);

// The printable stand-in that byte-level BPE files write for a byte, as UTF-8, and the order in
// which GPT-2 numbers the bytes.
const std::array<std::string, 256>& byte_letters();
const std::array<uint8_t, 256>& byte_order();
// Back from stand-ins to bytes; false where the text has a character that stands for no byte.
bool bytes_of_letters(std::string_view letters, std::string& bytes);

}  // namespace hearth
