// Unicode normalisation form C of any byte string: stretches of well-formed UTF-8 are normalised,
// other bytes stay where they are and separate them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hearth {

// The text itself where it is normalised already (the usual case, found by one quick pass), else
// its normal form, which is put into `storage`.
std::string_view nfc(std::string_view text, std::string& storage);

// In nfc_tables.cpp. Combining classes are given as ranks, since only their order matters.
struct CombiningRange {
  uint32_t first, last;
  uint8_t rank;
};
constexpr size_t longest_decomposition = 3;
struct Decomposition {
  uint32_t code;
  bool composes;  // its two characters make it again
  std::array<uint32_t, longest_decomposition> to;
};
extern const std::span<const CombiningRange> combining_ranges;
extern const std::span<const Decomposition> decompositions;

}  // namespace hearth
