// Tokenizer files: tokenizer.json, and the lists (.tiktoken, vocab.bpe, llama2.c's .bin; the first
// byte says which).
#include "fuzz.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace {

using hearth::fuzz::MemoryFolder;
using hearth::fuzz::Seeds;

// Text of every kind, through whatever vocabulary the file has.
void use(const hearth::Tokenizer& tokenizer) {
  const std::string_view text =
      "Hello, w\xc3\xb6rld 123\n\n  <|endoftext|>\xff\xf0\x9f\x98\x80 it's";
  for (const auto& ids : {tokenizer.encode(text), tokenizer.encode_with_special(text)}) {
    for (const int32_t id : ids) hearth::fuzz::require(id >= 0 && id < tokenizer.vocab_size());
    tokenizer.decode(ids);
  }
}

// The 256 bytes in their letters, two merges and an added token.
std::string tokenizer_json(std::string_view pre_tokenizer) {
  std::string vocab;
  int id = 0;
  for (const std::string& letters : hearth::byte_letters()) {
    if (letters == "\"" || letters == "\\")
      vocab += fmt::format("\"\\{}\":{},", letters, id++);
    else
      vocab += fmt::format("\"{}\":{},", letters, id++);
  }
  return fmt::format(
      R"({{"added_tokens":[{{"id":258,"content":"<|endoftext|>","special":true}}],"normalizer":null,)"
      R"("pre_tokenizer":{},"decoder":{{"type":"ByteLevel"}},"model":{{"type":"BPE","vocab":{{{}"he":256,)"
      R"("hel":257}},"merges":["h e",["he","l"]]}}}})",
      pre_tokenizer, vocab);
}

}  // namespace

int fuzz_tokenizer_json(const uint8_t* data, size_t size) {
  static const MemoryFolder folder;
  const auto path = folder.write("tokenizer.json", hearth::fuzz::text_of(data, size));
  return hearth::fuzz::taken([&] { use(hearth::Tokenizer::load(path)); });
}

Seeds seeds_tokenizer_json() {
  return {
      tokenizer_json(R"({"type":"ByteLevel","add_prefix_space":false})"),
      tokenizer_json(
          R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
          R"("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},)"
          R"("behavior":"Isolated","invert":false},{"type":"ByteLevel",)"
          R"("add_prefix_space":false,"use_regex":false}]})")};
}

int fuzz_tokenizer_lists(const uint8_t* data, size_t size) {
  static const MemoryFolder folder;
  constexpr std::string_view names[] = {"gpt2.tiktoken", "vocab.bpe", "tok.bin"};
  if (size == 0) return 0;
  const auto path = folder.write(names[data[0] % 3], hearth::fuzz::text_of(data + 1, size - 1));
  return hearth::fuzz::taken([&] { use(hearth::Tokenizer::load(path)); });
}

Seeds seeds_tokenizer_lists() {
  std::string tiktoken(1, '\0');
  const std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int b = 0; b < 256; ++b)
    tiktoken += fmt::format("{}{}== {}\n", digits[size_t(b >> 2)], digits[size_t(b & 3) << 4], b);
  std::string llama2c(1, '\2');
  int id = 0;
  const auto piece = [&](const std::string& text) {
    llama2c +=
        hearth::fuzz::bytes_of(-float(id++)) + hearth::fuzz::bytes_of(int32_t(text.size())) + text;
  };
  llama2c += hearth::fuzz::bytes_of(int32_t(7));
  for (const char* name : {"<unk>", "\n<s>\n", "\n</s>\n"}) piece(name);
  for (int b = 0; b < 256; ++b) piece(fmt::format("<0x{:02X}>", b));
  for (const char* name : {" ", "h", "e", "he"}) piece(name);
  return {tiktoken, "\1#version: 0.2\nh e\nhe l\n", llama2c};
}
