// Tokenizer: text to ids and back, with byte-level BPE (like GPT-2), SentencePiece BPE (like
// Llama-2) or a llama2.c vocabulary. A Tokenizer is a handle on shared state: cheap to copy, and
// its const methods are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline text {

struct Vocabulary;

// An added token found in a text, with its byte range.
struct FoundToken {
  size_t begin, end;
  int32_t id;
};
using Admits = std::function<bool(size_t begin, size_t end, bool special)>;

// What stands before a text that is encoded. SentencePiece tokenizers put a space before the whole
// text, and some of them after every added token too; never inside a text.
enum class TextStart : uint8_t { whole, after_token, inside };

class Tokenizer {
 public:
  // Loads a folder with tokenizer.json, vocab.json + merges.txt, one *.tiktoken, a tokenizer.model
  // in Llama-3's format, vocab.bpe or one tok*.bin of llama2.c (searched in this order), or one of
  // these files. The pattern of a .tiktoken file is derived from its name or its number of tokens,
  // unless `pattern` names one.
  static Tokenizer load(const std::filesystem::path&, std::string_view pattern = {});
  explicit Tokenizer(std::shared_ptr<const Vocabulary>);

  // Encodes any byte string. Special tokens spelled in it are encoded as plain text, so external
  // text never becomes one. Nothing is added, except that a llama2.c vocabulary prepends bos and a
  // dummy space, like llama2.c. From the first invalid UTF-8 byte on the text is not split into
  // words, like tiktoken does for bytes.
  std::vector<int32_t> encode(std::string_view text) const;
  // The same, but added and special tokens in the text become their ids: leftmost, then longest,
  // with Hugging Face's options (lstrip and so on).
  std::vector<int32_t> encode_with_special(std::string_view text) const;
  // Added and special tokens in the text, leftmost, then longest, among those that `admits`
  // accepts.
  std::vector<FoundToken> find_special(std::string_view text, const Admits& admits) const;
  // Adds the ids of the tokenizer's template (post-processor): bos, eos or nothing.
  void add_template(std::vector<int32_t>& ids) const;
  // The same for ids that may begin with what the template puts first, which is not added again.
  void complete_template(std::vector<int32_t>& ids) const;
  // encode() appended to `out`; allocates nothing else unless a word is very long.
  void encode_to(std::string_view text, std::vector<int32_t>& out,
                 TextStart = TextStart::whole) const;

  // The concatenated bytes of the ids, which need not be valid UTF-8. An unknown id is an error.
  std::string decode(std::span<const int32_t> ids) const;
  std::string_view bytes_of(int32_t id) const;

  int32_t vocab_size() const;  // largest id + 1
  int32_t eos() const;         // -1: none
  int32_t bos() const;         // -1: none
  std::optional<int32_t> special(std::string_view text) const;
  bool has(int32_t id) const;  // whether the id is used
  // Tokens that stand for no text: special added tokens, bos, eos and the unknown token.
  std::vector<int32_t> special_ids() const;
  // Whether decoding drops a space at the start of the token after `previous`.
  bool strips_after(int32_t previous) const;

  // Writes tokenizer.json (which Hugging Face reads, with equal ids) and tokenizer_config.json.
  void save(const std::filesystem::path& dir) const;
  // Why save() would refuse this tokenizer; empty: it can be saved. For a check before a long run.
  std::string save_problem() const;

 private:
  friend class StreamDecoder;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

// Turns a stream of ids into text, by complete UTF-8 characters: the bytes of an incomplete
// character are held back. Bytes that cannot become a character pass unchanged. An id between used
// ones that has no token, which a model may draw, adds nothing. `previous` is the id before the
// first one pushed, if the stream continues a text.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer&, int32_t previous = -1);
  std::string push(int32_t id);
  std::string finish();  // returns the bytes still held back

 private:
  Tokenizer tokenizer_;
  std::string held_;
  int32_t previous_;
};

}  // namespace hearth::inline text
