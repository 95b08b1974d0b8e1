// Tokenizer: text to ids and back, byte-level BPE (GPT-2 and its kin) or a llama2.c vocabulary.
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

class Tokenizer {
 public:
  // A folder with tokenizer.json, vocab.json + merges.txt, one *.tiktoken, vocab.bpe or one
  // tok*.bin of llama2.c (looked for in that order), or one of those files itself.
  static Tokenizer load(const std::filesystem::path&);
  explicit Tokenizer(std::shared_ptr<const Vocabulary>);

  // Text is any byte string. Special tokens that occur in it are encoded as the plain text they
  // are, so that text from outside never becomes one. Nothing is added, except that a llama2.c
  // vocabulary puts bos and its dummy space first, as llama2.c does.
  std::vector<int32_t> encode(std::string_view text) const;
  // The same, but added and special tokens in the text become their ids: leftmost, then longest.
  std::vector<int32_t> encode_with_special(std::string_view text) const;
  // Added and special tokens in the text, leftmost, then longest, among those that `admits` takes.
  struct Found {
    size_t begin, end;  // the bytes it stands for
    int32_t id;
  };
  using Admits = std::function<bool(size_t begin, size_t end, bool special)>;
  std::vector<Found> find_special(std::string_view text, const Admits& admits) const;
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

  // Writes tokenizer.json (Hugging Face byte-level BPE, equal ids) and tokenizer_config.json.
  void save(const std::filesystem::path& dir) const;

 private:
  friend class StreamDecoder;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

// Turns ids into text as they come, whole UTF-8 characters at a time: the bytes of a character that
// is not complete yet are held back. Bytes that can no longer become a character pass unchanged.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer&);
  std::string push(int32_t id);
  std::string finish();  // what is still held back

 private:
  Tokenizer tokenizer_;
  std::string held_;
  int32_t previous_ = -1;
};

}  // namespace hearth
