#include <algorithm>

#include "data/jsonl.h"
#include "fuzz.h"

int fuzz_jsonl(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    std::string_view rest = hearth::fuzz::text_of(data, size);
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      hearth::jsonl_text(rest.substr(0, end), "fuzz");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  });
}

hearth::fuzz::Seeds seeds_jsonl() {
  return {
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
      R"({"prompt": "p", "completion": "c"})",
      R"({"prompt": "p", "chosen": "c", "rejected": "r"})",
      R"({"instruction": "i", "input": "", "output": "o"})",
      "{\"text\": \"a \\u00e9\\ud83d\\ude00\"}\n",
      "{\"text\": \"x\", \"id\": [1, {\"a\": null}]}\n{\"text\": \"\"}"};
}
