#include "formats/toml.h"
#include "fuzz.h"

int fuzz_toml(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    for (const auto& item : hearth::parse_toml(hearth::fuzz::text_of(data, size), "fuzz"))
      hearth::fuzz::require(!item.key.empty());
  });
}

hearth::fuzz::Seeds seeds_toml() {
  return {"", "# a comment\nkey = 1\n\n[train]\nlr = 1e-3\nname = \"a\\n\\u00e9\" # end\n",
          "a = true\nb = [1, 2,\n 3]\nc = ['x', \"y\"]\nd = -1_000.5\n[s.t]\nk = false"};
}
