// What is known of a position by an authority: its best move, and the candidates with evaluations.
#pragma once

#include <optional>
#include <vector>

#include "tasks/chess/board.h"

namespace hearth::chess {

// Evaluations are pawns for the side to move, within this; a mate is the end of the scale.
constexpr double largest_evaluation = 10;

struct Candidate {
  Move move;
  double pawns;
  bool operator==(const Candidate&) const = default;
};

// A puzzle knows only the best move; Stockfish knows all of it; an empty label knows nothing.
struct Label {
  std::optional<Move> best;
  std::vector<Candidate> candidates;  // best first
  bool operator==(const Label&) const = default;
};

}  // namespace hearth::chess
