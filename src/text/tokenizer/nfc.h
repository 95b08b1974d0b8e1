// Unicode normalisation form C for any byte string: parts of well-formed UTF-8 are normalised;
// invalid bytes stay in place and separate the parts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hearth::inline text {

// Returns the text itself if it is already normalised (the common case, detected by one fast pass),
// else its normal form, stored in `storage`.
std::string_view nfc(std::string_view text, std::string& storage);

// Defined in nfc_tables.cpp. Combining classes are stored as ranks, because only their order
// matters.
struct CombiningRange {
  uint32_t first, last;
  uint8_t rank;
};
constexpr size_t longest_decomposition = 3;
struct Decomposition {
  uint32_t code;
  bool composes;  // the two characters compose to it
  std::array<uint32_t, longest_decomposition> to;
};
extern const std::span<const CombiningRange> combining_ranges;
extern const std::span<const Decomposition> decompositions;

}  // namespace hearth::inline text
