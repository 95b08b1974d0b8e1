// A game: positions with their past, which decides repetitions. push and pop make and unmake a
// move.
#pragma once

#include <vector>

#include "tasks/chess/board.h"

namespace hearth::chess {

// How a game is over without anyone's claim, named as python-chess does.
enum class Ending {
  none,
  checkmate,
  stalemate,
  insufficient_material,
  seventyfive_moves,
  fivefold_repetition
};
std::string_view ending_name(Ending);

Ending ending_of(const Board&);  // what the position alone tells: all but repetition
bool fifty_moves(const Board&);  // a draw may be claimed

class Game {
 public:
  explicit Game(const Board& start = {}) : boards_{start} {}

  const Board& board() const { return boards_.back(); }
  const Board& board(size_t ply) const { return boards_.at(ply); }
  const std::vector<Move>& moves() const { return moves_; }
  void push(Move);  // an error where it is not legal
  void pop();
  int repetitions() const;  // how often the position has stood, now included
  bool threefold() const { return repetitions() >= 3; }  // a draw may be claimed
  Ending ending() const;

 private:
  std::vector<Board> boards_;
  std::vector<Move> moves_;
};

}  // namespace hearth::chess
