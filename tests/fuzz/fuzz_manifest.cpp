#include "formats/checkpoint_dir.h"
#include "fuzz.h"

int fuzz_manifest(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto stays_inside = [](const std::string& file) {
      hearth::fuzz::require(!file.empty() && file[0] != '/');
      hearth::fuzz::require(("/" + file + "/").find("/../") == std::string::npos);
    };
    const auto m = hearth::parse_manifest(hearth::fuzz::text_of(data, size), "fuzz");
    for (const auto& f : m.files) {
      hearth::fuzz::require(f.sha256.size() == 64);
      stays_inside(f.file);
    }
    for (const std::string& file : m.dropped) stays_inside(file);
  });
}

hearth::fuzz::Seeds seeds_manifest() {
  const std::string sum(64, 'a');
  return {R"({"version": 1, "files": {}})",
          R"({"version": 1, "files": {}, "dropped": ["state/optimizer.bin"]})",
          R"({"version": 1, "files": {"state/optimizer.bin": {"size": 12, "sha256": ")" + sum +
              R"("}, "config.json": {"size": 0, "sha256": ")" + sum + "\"}}}"};
}
