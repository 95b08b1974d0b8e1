// Parsers under random input: what libFuzzer (scripts/fuzz) and the unit suite both call. A target
// takes any bytes and says whether the parser took them; an Error is a refusal, and anything else
// that is thrown, any sanitizer's complaint or a broken promise is a finding.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/error.h"

namespace hearth::fuzz {

using Seeds = std::vector<std::string>;

struct Target {
  std::string_view name;
  int (*run)(const uint8_t*, size_t);  // 1: taken, 0: refused
  Seeds (*seeds)();                    // small inputs that are taken
};
std::span<const Target> targets();

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What holds for everything a parser takes.
inline void require(bool holds) {
  if (!holds) std::abort();
}

template <class F>
int taken(F parse) {
  try {
    parse();
    return 1;
  } catch (const Error& e) {
    require(std::string_view(e.what()).find('\n') == std::string_view::npos);  // one line
    return 0;
  }
}

// A file in memory for parsers that take a path: one folder for the process, gone with it.
class MemoryFolder {
 public:
  MemoryFolder();
  ~MemoryFolder();
  std::filesystem::path write(std::string_view name, std::string_view bytes) const;
  void remove(std::string_view name) const;

 private:
  std::filesystem::path path_;
};

// Little-endian bytes of a number, for seeds.
template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Changes an input in one to four places, the same way for the same seed: bits, numbers at the
// edges of their range, stretches removed, repeated, or taken from `other`.
std::string mutated(std::string input, std::string_view other, uint64_t seed);

}  // namespace hearth::fuzz

#define HEARTH_FUZZ_TARGET(name)                     \
  int fuzz_##name(const uint8_t* data, size_t size); \
  hearth::fuzz::Seeds seeds_##name();
#include "fuzz_targets.inc"
#undef HEARTH_FUZZ_TARGET
