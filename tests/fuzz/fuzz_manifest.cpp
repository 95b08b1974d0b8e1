#include "fuzz.h"
#include "io/checkpoint_dir.h"

int fuzz_manifest(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    for (const auto& f : hearth::parse_manifest(hearth::fuzz::text_of(data, size), "fuzz")) {
      hearth::fuzz::require(f.sha256.size() == 64 && !f.file.empty() && f.file[0] != '/');
      hearth::fuzz::require(("/" + f.file + "/").find("/../") == std::string::npos);
    }
  });
}

hearth::fuzz::Seeds seeds_manifest() {
  const std::string sum(64, 'a');
  return {R"({"version": 1, "files": {}})",
          R"({"version": 1, "files": {"state/optimizer.bin": {"size": 12, "sha256": ")" + sum +
              R"("}, "config.json": {"size": 0, "sha256": ")" + sum + "\"}}}"};
}
