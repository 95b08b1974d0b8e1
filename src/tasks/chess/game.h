// A game: positions with their history, which decides repetitions. push and pop make and unmake a
// move.
#pragma once

#include <vector>

#include "tasks/chess/board.h"

namespace hearth::chess {

// Endings that need no claim, named as in python-chess.
enum class Ending {
  none,
  checkmate,
  stalemate,
  insufficient_material,
  seventyfive_moves,
  fivefold_repetition
};
std::string_view ending_name(Ending);

Ending ending_of(const Board&);  // from the position alone: all endings except repetition
bool fifty_moves(const Board&);  // a draw may be claimed

class Game {
 public:
  explicit Game(const Board& start = {}) : boards_{start} {}

  const Board& board() const { return boards_.back(); }
  const Board& board(size_t ply) const { return boards_.at(ply); }
  const std::vector<Move>& moves() const { return moves_; }
  void push(Move);  // throws if illegal
  void pop();
  int repetitions() const;  // occurrences of the position, including now
  bool threefold() const { return repetitions() >= 3; }  // a draw may be claimed
  Ending ending() const;

 private:
  std::vector<Board> boards_;
  std::vector<Move> moves_;
};

}  // namespace hearth::chess
