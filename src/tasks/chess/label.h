// The label of a position: its best move, and candidates with evaluations.
#pragma once

#include <optional>
#include <vector>

#include "tasks/chess/board.h"

namespace hearth::chess {

// Evaluations are in pawns for the side to move, limited to this; a mate is the end of the scale.
constexpr double largest_evaluation = 10;

struct Candidate {
  Move move;
  double pawns;
  bool operator==(const Candidate&) const = default;
};

// A puzzle has only the best move; Stockfish gives all fields; an empty label has none.
struct Label {
  std::optional<Move> best;
  std::vector<Candidate> candidates;  // best first
  bool operator==(const Label&) const = default;
};

}  // namespace hearth::chess
