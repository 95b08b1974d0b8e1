// The shared state of a Tokenizer: tokens, merges and the tables built from them. File readers and
// the trainer fill a VocabularyParts; make_vocabulary() checks it and builds the tables.
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
#include "text/tokenizer/text_steps.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/words.h"

namespace hearth::inline text {

constexpr int32_t most_ids = 1 << 24;  // a larger id is a broken file, not a vocabulary

struct Token {
  std::string bytes;
  int32_t id;
};

struct Merge {
  int32_t left, right, id;
};

// A token that is searched in the text before it is split into words.
struct AddedToken {
  std::string text;
  int32_t id;
  bool special = true;
  bool lstrip = false, rstrip = false;  // includes the spaces before or after it
  bool single_word = false;             // matches only between word boundaries
  bool normalized = false;              // searched after normalisation, else before
  bool in_vocab = false;                // also listed among the model's tokens
  std::string sought = {};              // the text to search, normalised if required
};

enum class MergeRule {
  listed,        // Hugging Face: the listed merges, in order
  listed_whole,  // with ignore_merges: a word that is a token is not merged
  by_id,         // tiktoken: two tokens merge if their bytes are a token; lowest id first
  llama2c,       // like by_id, but highest score first, over the whole text
  unigram,       // no merges: the pieces with the highest sum of scores
};

enum class LeadingSpace {
  none,
  missing,        // added if the text does not start with one (also after a special token)
  missing_first,  // the same, but never after a special token
  always,         // added to every nonempty text
};

// How text becomes words and words become symbols, and what is added at both ends.
struct TextRules {
  Pattern pattern = Pattern::gpt2;
  bool pieces = false;  // symbols are characters with U+2581 for a space; else bytes
  bool nfc = false;
  std::vector<NormalStep> normal = {};  // in place of nfc and a leading space
  std::vector<SplitStep> splits = {};   // with Pattern::steps
  LeadingSpace leading = LeadingSpace::none;
  bool byte_fallback = false;  // pieces: an unknown character becomes <0xHH> bytes
  int32_t unk = -1;            // the token for unknown symbols
  bool fuse_unk = false;       // merges consecutive unknown tokens
  bool bytes_decode = false;   // pieces: <0xHH> decodes to its byte
  bool strip_first = false;    // decoding: drops one space before the first piece
  std::vector<int32_t> before = {}, after = {};  // added by the post-processor's template
};

// The original parts of tokenizer.json and all of tokenizer_config.json, which saving writes back.
// Empty if the tokenizer came from other files.
struct SavedParts {
  std::string normalizer = {}, pre_tokenizer = {}, post_processor = {}, decoder = {}, config = {};
};

struct VocabularyParts {
  std::string where = {};  // file, for errors
  MergeRule rule = MergeRule::listed;
  TextRules text = {};
  std::vector<Token> tokens = {};  // without the added tokens
  std::vector<Merge> merges = {};  // for the listed rules
  std::vector<AddedToken> added = {};
  std::vector<float> scores = {};         // by id, for llama2c
  std::vector<double> piece_scores = {};  // by id, for unigram
  std::vector<std::string> printed = {};  // by id, for llama2c: decoded text of a piece
  SavedParts saved = {};
  int32_t eos = -1, bos = -1;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using TextIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// Tokens to search in a text, in the order of their bytes; of equal ones, the last comes first.
struct AddedTokens {
  std::vector<AddedToken> tokens;
  std::array<size_t, 257> first{};  // tokens from first[b] to first[b + 1] start with byte b
};

struct Vocabulary {
  MergeRule rule = MergeRule::listed;
  TextRules text;
  std::vector<std::string> bytes;       // by id; the decoded bytes
  std::vector<bool> known;              // by id; false for unused ids
  std::array<int32_t, 256> byte_ids{};  // -1: the byte has no token
  std::vector<Merge> merges;            // in order; derived for `by_id`, ordered by resulting token
  PairTable pairs;
  WordTable words;
  TextIds long_words;  // single-token words too long for `words`
  TextIds pieces;      // llama2c and pieces: every token by its text
  Unigram unigram;
  AddedTokens raw, normalized;  // searched before or after normalisation
  SavedParts saved;
  int32_t eos = -1, bos = -1;
  mutable WordCache cache;  // safe to fill from any thread
};

std::shared_ptr<const Vocabulary> make_vocabulary(VocabularyParts);

// Every added token, by id.
std::vector<AddedToken> added_tokens(const Vocabulary&);

// The printable character that byte-level BPE files write for each byte, as UTF-8, and the order in
// which GPT-2 numbers the bytes.
const std::array<std::string, 256>& byte_letters();
const std::array<uint8_t, 256>& byte_order();
// Converts these characters back to bytes; false if one stands for no byte.
bool bytes_of_letters(std::string_view letters, std::string& bytes);

}  // namespace hearth::inline text
