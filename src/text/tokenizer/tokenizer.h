// Tokenizer: text to ids and back, by byte-level BPE (GPT-2 and its kin), SentencePiece's BPE
// (Llama-2 and its kin) or a llama2.c vocabulary.
// A Tokenizer is a handle on shared state: cheap to copy, and its const methods may run on any
// number of threads at once.
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

namespace hearth {

struct Vocabulary;

// An added token in a text: the bytes it stands for.
struct FoundToken {
  size_t begin, end;
  int32_t id;
};
using Admits = std::function<bool(size_t begin, size_t end, bool special)>;

class Tokenizer {
 public:
  // A folder with tokenizer.json, vocab.json + merges.txt, one *.tiktoken, tokenizer.model as
  // Llama-3 has it, vocab.bpe or one tok*.bin of llama2.c (looked for in that order), or one of
  // those files itself. A .tiktoken file does not say its pattern: it goes by the file's name or
  // the number of its tokens, unless `pattern` names one.
  static Tokenizer load(const std::filesystem::path&, std::string_view pattern = {});
  explicit Tokenizer(std::shared_ptr<const Vocabulary>);

  // Text is any byte string. Special tokens that occur in it are encoded as the plain text they
  // are, so that text from outside never becomes one. Nothing is added, except that a llama2.c
  // vocabulary puts bos and its dummy space first, as llama2.c does. From the first byte that is
  // not UTF-8 on the text is not cut into words any more, as tiktoken has it for bytes.
  std::vector<int32_t> encode(std::string_view text) const;
  // The same, but added and special tokens in the text become their ids: leftmost, then longest,
  // with the options (lstrip and so on) that Hugging Face has for them.
  std::vector<int32_t> encode_with_special(std::string_view text) const;
  // Added and special tokens in the text, leftmost, then longest, among those that `admits` takes.
  std::vector<FoundToken> find_special(std::string_view text, const Admits& admits) const;
  // Puts around ids what the tokenizer's own template (post-processor) has there: bos, eos or none.
  void add_template(std::vector<int32_t>& ids) const;
  // encode(), appended to `out`; allocates nothing else unless a word is very long.
  void encode_to(std::string_view text, std::vector<int32_t>& out) const;

  // The bytes of the ids put together; they need not be valid UTF-8. An id that stands for nothing
  // is an error.
  std::string decode(std::span<const int32_t> ids) const;
  std::string_view bytes_of(int32_t id) const;

  int32_t vocab_size() const;  // largest id + 1
  int32_t eos() const;         // -1 when none
  int32_t bos() const;         // -1 when none
  std::optional<int32_t> special(std::string_view text) const;

  // Writes tokenizer.json (as Hugging Face reads it, with equal ids) and tokenizer_config.json.
  void save(const std::filesystem::path& dir) const;

 private:
  friend class StreamDecoder;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

// Turns ids into text as they come, whole UTF-8 characters at a time: the bytes of a character that
// is not complete yet are held back. Bytes that can no longer become a character pass unchanged.
// `previous` is the id before the first one pushed, where the text does not begin with that.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer&, int32_t previous = -1);
  std::string push(int32_t id);
  std::string finish();  // what is still held back

 private:
  Tokenizer tokenizer_;
  std::string held_;
  int32_t previous_;
};

}  // namespace hearth
