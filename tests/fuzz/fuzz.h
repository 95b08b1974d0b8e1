// Fuzz targets for the parsers, called by libFuzzer (scripts/fuzz) and by the unit suite. A target
// takes any bytes and returns whether the parser accepted them. An Error is a rejection; any other
// exception, a sanitizer report or a failed require() is a finding.
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
  int (*run)(const uint8_t*, size_t);  // 1: accepted, 0: rejected
  Seeds (*seeds)();                    // small inputs that are accepted
};
std::span<const Target> targets();

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Checks a property of everything that a parser accepts.
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

// A file in memory for parsers that take a path: one folder per process, deleted at its end.
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

// Changes an input in one to four places, the same way for the same seed: flips bits, writes
// numbers at the edges of their range, removes or repeats ranges, or copies them from `other`.
std::string mutated(std::string input, std::string_view other, uint64_t seed);

}  // namespace hearth::fuzz

#define HEARTH_FUZZ_TARGET(name)                     \
  int fuzz_##name(const uint8_t* data, size_t size); \
  hearth::fuzz::Seeds seeds_##name();
#include "fuzz_targets.inc"
#undef HEARTH_FUZZ_TARGET
