#include "tasks/chess/game.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::chess {

std::string_view ending_name(Ending e) {
  switch (e) {
    case Ending::none:
      return "none";
    case Ending::checkmate:
      return "checkmate";
    case Ending::stalemate:
      return "stalemate";
    case Ending::insufficient_material:
      return "insufficient_material";
    case Ending::seventyfive_moves:
      return "seventyfive_moves";
    case Ending::fivefold_repetition:
      return "fivefold_repetition";
  }
  return "none";
}

Ending ending_of(const Board& b) {
  const bool stuck = b.legal_moves().empty();
  if (stuck && b.in_check()) return Ending::checkmate;
  if (b.insufficient_material()) return Ending::insufficient_material;
  if (stuck) return Ending::stalemate;
  return b.halfmove_clock() >= 150 ? Ending::seventyfive_moves : Ending::none;
}

bool fifty_moves(const Board& b) { return b.halfmove_clock() >= 100 && !b.legal_moves().empty(); }

void Game::push(Move m) {
  if (!board().is_legal(m))
    fail("chess", "expected a legal move in {}, got {}", board().fen(), uci(m));
  boards_.push_back(board().after(m));
  moves_.push_back(m);
}

void Game::pop() {
  if (moves_.empty()) fail("chess", "there is no move to take back");
  boards_.pop_back();
  moves_.pop_back();
}

int Game::repetitions() const {
  int count = 1;
  // Positions before the last capture or pawn move cannot recur; every second one has our turn.
  const size_t last = boards_.size() - 1;
  const size_t reach = std::min(last, size_t(board().halfmove_clock()));
  for (size_t back = 2; back <= reach; back += 2)
    count += boards_[last - back].key() == board().key();
  return count;
}

Ending Game::ending() const {
  const Ending e = ending_of(board());
  return e == Ending::none && repetitions() >= 5 ? Ending::fivefold_repetition : e;
}

}  // namespace hearth::chess
