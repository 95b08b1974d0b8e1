// The edit distance of two texts, byte by byte.
#pragma once

#include <cstddef>
#include <string_view>

namespace hearth::inline sys {

// Whether to exchange two neighbours is one edit, as for typing errors, or two replacements.
enum class Swap { two_edits, one_edit };

// The fewest bytes to insert, delete or replace (or pairs to swap) that turn one text into the
// other. Takes time in proportion to the product of the lengths.
size_t edit_distance(std::string_view, std::string_view, Swap = Swap::two_edits);

}  // namespace hearth::inline sys
