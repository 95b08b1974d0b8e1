#include "formats/llama2c.h"
#include "fuzz.h"

int fuzz_llama2c(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto file = std::as_bytes(std::span(data, size));
    for (const auto& [name, t] : hearth::parse_llama2c(file, "fuzz").tensors)
      hearth::fuzz::require(t.bytes.empty() || &t.bytes.back() <= &file.back());
  });
}

hearth::fuzz::Seeds seeds_llama2c() {
  // dim, hidden, layers, heads, kv_heads, vocab (negative: a head of its own), seq; then the
  // floats.
  const auto file = [](int32_t vocab, size_t floats) {
    std::string out;
    for (const int32_t word : {4, 3, 2, 2, 1, vocab, 6}) out += hearth::fuzz::bytes_of(word);
    return out + std::string(4 * floats, 'f');
  };
  const size_t layers = 2 * (4 + 16 + 8 + 8 + 16 + 4 + 3 * 12), rest = 4 + 2 * 6 * 1;
  return {file(5, 5 * 4 + layers + rest), file(-5, 2 * 5 * 4 + layers + rest)};
}
