// Shared by the tokenizer tests: a temporary folder, random bytes, the text of an error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "sys/error.h"
#include "test_data.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::test {

class ScratchDir {
 public:
  ScratchDir() {
    std::string name =
        (std::filesystem::temp_directory_path() / "hearth-tokenizer-XXXXXX").string();
    if (!::mkdtemp(name.data())) fail("test", "expected a temporary folder, got none");
    path_ = name;
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Parts of a tokenizer.json with SentencePiece pieces: BPE that spells unknown text in bytes, and
// its decoder.
inline nlohmann::json piece_model(const nlohmann::json& vocab, const nlohmann::json& merges) {
  return {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
          {"byte_fallback", true}, {"vocab", vocab},       {"merges", merges}};
}
inline nlohmann::json piece_decoder(bool strips) {
  nlohmann::json steps = {
      {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (strips) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Arbitrary bytes, or bytes of one of the kinds that the pattern distinguishes.
inline std::string random_bytes(std::mt19937& rng, size_t longest) {
  static const std::string kinds[] = {"abc",
                                      "XYZ ",
                                      "019",
                                      " \t\r\n",
                                      "'stremvld",
                                      "\xc3\xa9\xe6\xbc\xa2",
                                      "\xf0\x9f\xa6\x99",
                                      "!?.-",
                                      "\xe2\x80\xa8\xc2\xa0\xc2\x85"};
  std::string s;
  const size_t n = rng() % longest;
  while (s.size() < n) {
    const size_t kind = rng() % (std::size(kinds) + 1);
    if (kind == std::size(kinds))
      s += char(rng());
    else if (rng() % 4)
      s += kinds[kind];
    else
      s += kinds[kind][rng() % kinds[kind].size()];
  }
  return s;
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

#define EXPECT_ERROR(expression, part) \
  EXPECT_THAT_TEXT(::hearth::test::error_of([&] { (void)(expression); }), part)
#define EXPECT_THAT_TEXT(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "got: " << (text)

}  // namespace hearth::test
