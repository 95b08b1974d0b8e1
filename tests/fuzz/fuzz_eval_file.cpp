#include "data/token_stats.h"
#include "fuzz.h"

int fuzz_eval_file(const uint8_t* data, size_t size) {
  static const hearth::fuzz::MemoryFolder folder;
  const auto path = folder.write("eval.bin", hearth::fuzz::text_of(data, size));
  return hearth::fuzz::taken([&] { hearth::stat_eval_file(path, 50257); });
}

hearth::fuzz::Seeds seeds_eval_file() {
  const auto file = [](int32_t examples, std::vector<uint16_t> words) {
    std::string out;
    for (const int32_t word : {20240522, 1, examples, int32_t(2 * words.size())})
      out += hearth::fuzz::bytes_of(word);
    out.resize(1024);
    for (const uint16_t word : words) out += hearth::fuzz::bytes_of(word);
    return out;
  };
  // Mark, bytes, index, label, completions; context of two tokens; two completions.
  return {file(0, {}), file(1, {65535, 26, 0, 1, 2, 2, 10, 11, 1, 12, 2, 13, 14})};
}
