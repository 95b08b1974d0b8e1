#include "data/shards.h"
#include "fuzz.h"

namespace {

// Every way to look at a token file that opens.
void look_at(const std::filesystem::path& path) {
  const hearth::TokenFile file(path);
  std::vector<int32_t> tokens(size_t(file.size()));
  file.read(tokens.data(), 0, file.size());
  hearth::fuzz::require(file.max_token() < int64_t(1) << 32);
  file.check_tokens(50257);
}

}  // namespace

int fuzz_shards(const uint8_t* data, size_t size) {
  static const hearth::fuzz::MemoryFolder folder;
  const auto path = folder.write("shard.bin", hearth::fuzz::text_of(data, size));
  return hearth::fuzz::taken([&] { look_at(path); });
}

hearth::fuzz::Seeds seeds_shards() {
  const auto shard = [](int32_t magic, int32_t version, int32_t tokens, size_t width) {
    std::string header;
    for (const int32_t word : {magic, version, tokens}) header += hearth::fuzz::bytes_of(word);
    header.resize(1024);
    return header + std::string(size_t(tokens) * width, '\0');
  };
  return {shard(20240520, 1, 0, 2), shard(20240520, 1, 9, 2), shard(20240801, 7, 5, 4)};
}

// metadata.json beside a file of tokens without a header.
int fuzz_metadata(const uint8_t* data, size_t size) {
  static const hearth::fuzz::MemoryFolder folder;
  const auto path = folder.write("tokens.bin", std::string(24, '\0'));
  folder.write("metadata.json", hearth::fuzz::text_of(data, size));
  return hearth::fuzz::taken([&] { look_at(path); });
}

hearth::fuzz::Seeds seeds_metadata() {
  return {R"({"vocab_size": 50257})", R"({"vocab_size": 100000, "dtype": "uint32"})",
          R"({"vocab_size": 50257, "dtype": "uint16", "files": {"tokens.bin": 12}})"};
}
