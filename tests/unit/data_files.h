// Temporary folders and token files for the tests of the data room.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/shards.h"
#include "sys/error.h"

namespace hearth {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hearth-data-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void put_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

inline std::string get_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<int32_t> counting_tokens(int64_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
  file.read(tokens.data(), 0, file.size());
  return tokens;
}

// The message of the error that f must throw.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  ADD_FAILURE() << "expected an error, got none";
  return "";
}

inline bool mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* p : parts)
    if (text.find(p) == std::string::npos) return false;
  return true;
}

// Bytes as tokens; 256 is bos, 257 is eos.
inline PrepareSpec byte_spec(const std::filesystem::path& out, std::vector<std::string> inputs) {
  PrepareSpec spec;
  spec.inputs = std::move(inputs);
  spec.out = out;
  spec.encode = [](std::string_view text, std::vector<int32_t>& tokens) {
    for (const char c : text) tokens.push_back(uint8_t(c));
  };
  spec.vocab = 258;
  spec.bos = 256;
  spec.eos = 257;
  spec.tokenizer_id = "bytes";
  spec.threads = 1;
  return spec;
}

// Documents as prepare writes them for byte_spec().
inline std::vector<int32_t> llmc_tokens(std::initializer_list<std::string_view> documents) {
  std::vector<int32_t> tokens;
  for (const std::string_view d : documents) {
    tokens.push_back(257);
    for (const char c : d) tokens.push_back(uint8_t(c));
  }
  return tokens;
}

}  // namespace hearth
