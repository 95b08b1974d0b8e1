// Which documents `data prepare` sends to validation: those whose hash lies below a threshold. The
// text alone decides, so that copies of a document fall on the same side wherever they stand.
#pragma once

#include <string_view>

#include "data/documents.h"

namespace hearth {

bool is_validation(std::string_view text, double threshold);

constexpr size_t side_piece_bytes = 4096;

struct SideRule {
  double threshold = 0;
  bool pieces = false;  // texts are cut into pieces of side_piece_bytes, and each has its own side
};

// Whole documents and a threshold of `fraction`, where that leaves something for both sides. Else
// texts are cut into pieces; and where all of those are still on one side, the threshold moves just
// as far as it takes to bring one over. Less than two different pieces are an error. Reads the
// inputs only until it has seen both sides; standard input cannot be read twice and stays whole.
SideRule choose_sides(DocumentSpec, double fraction);

}  // namespace hearth
