// Chooses which documents `data prepare` sends to validation: those whose hash is below a
// threshold. Only the text decides, so copies of a document fall on the same side wherever they
// occur.
#pragma once

#include <string_view>

#include "data/documents.h"

namespace hearth::inline data {

bool is_validation(std::string_view text, double threshold);

constexpr size_t side_piece_bytes = 4096;

struct SideRule {
  double threshold = 0;
  bool pieces = false;  // texts are split into pieces of side_piece_bytes with separate sides
};

// Uses whole documents and the threshold `fraction` if both sides get something. Otherwise texts
// are split into pieces; if all of those still fall on one side, the threshold moves just far
// enough to bring one over. Fewer than two different pieces are an error. Reads the inputs only
// until both sides are seen; standard input cannot be read twice and is not split.
SideRule choose_sides(DocumentSpec, double fraction);

}  // namespace hearth::inline data
