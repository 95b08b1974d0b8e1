// Unicode normalisation for any byte string: parts of well-formed UTF-8 are normalised; invalid
// bytes stay in place and separate the parts.
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

// Composed or decomposed; with a k, characters that only look different become the same.
enum class NormalForm : uint8_t { c, d, kc, kd };
std::string normal_form(std::string_view text, NormalForm);

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

// Defined in compatibility_tables.cpp: what the forms with a k decompose further. A character of a
// range becomes the one at the same place from `to` on; a text is `count` of compatible_codes.
struct CompatibleRange {
  uint32_t first, last, to;
};
struct CompatibleText {
  uint32_t code;
  uint16_t begin, count;
};
extern const std::span<const CompatibleRange> compatible_ranges;
extern const std::span<const CompatibleText> compatible_texts;
extern const std::span<const uint32_t> compatible_codes;

}  // namespace hearth::inline text
