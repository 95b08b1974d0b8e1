#include "formats/mingpt_json.h"
#include "fuzz.h"

int fuzz_mingpt_json(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto model = hearth::parse_mingpt_json(hearth::fuzz::text_of(data, size), "fuzz");
    for (const auto& [name, t] : model.tensors)
      hearth::fuzz::require(hearth::checked_bytes(t.shape, 4) == int64_t(4 * t.data.size()));
  });
}

hearth::fuzz::Seeds seeds_mingpt_json() {
  return {R"({"config": {}})",
          R"({"config": {"n_layer": 1, "n_head": 1},
              "a": {"shape": [1, 2], "dtype": "torch.float32", "data": "AACAPwAAAEA="}})"};
}
