#include "tasks/chess/self_play.h"

#include <algorithm>
#include <cmath>

#include "data/permutation.h"
#include "tasks/chess/split.h"

namespace hearth::chess {
namespace {

constexpr std::string_view openings[] = {
    "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 e1g1 f8e7",       // Ruy Lopez
    "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 c2c3 g8f6 d2d3 d7d6",       // Italian
    "e2e4 e7e5 g1f3 b8c6 d2d4 e5d4 f3d4 g8f6 b1c3 f8b4",       // Scotch
    "e2e4 e7e5 g1f3 g8f6 f3e5 d7d6 e5f3 f6e4 d2d4 d6d5",       // Petroff
    "e2e4 e7e5 b1c3 g8f6 f2f4 d7d5 f4e5 f6e4",                 // Vienna
    "e2e4 e7e5 f2f4 e5f4 g1f3 g7g5 h2h4 g5g4 f3e5",            // King's Gambit
    "e2e4 c7c5 g1f3 d7d6 d2d4 c5d4 f3d4 g8f6 b1c3 a7a6",       // Sicilian, Najdorf
    "e2e4 c7c5 g1f3 b8c6 d2d4 c5d4 f3d4 g7g6 c2c4 f8g7",       // Sicilian, accelerated Dragon
    "e2e4 c7c5 g1f3 e7e6 d2d4 c5d4 f3d4 a7a6 f1d3",            // Sicilian, Kan
    "e2e4 c7c5 b1c3 b8c6 g2g3 g7g6 f1g2 f8g7 d2d3",            // Sicilian, closed
    "e2e4 e7e6 d2d4 d7d5 b1c3 f8b4 e4e5 c7c5 a2a3",            // French, Winawer
    "e2e4 e7e6 d2d4 d7d5 e4e5 c7c5 c2c3 b8c6 g1f3 d8b6",       // French, advance
    "e2e4 c7c6 d2d4 d7d5 b1c3 d5e4 c3e4 c8f5 e4g3 f5g6",       // Caro-Kann
    "e2e4 d7d5 e4d5 d8d5 b1c3 d5a5 d2d4 g8f6 g1f3 c7c6",       // Scandinavian
    "e2e4 d7d6 d2d4 g8f6 b1c3 g7g6 f2f4 f8g7 g1f3",            // Pirc
    "e2e4 g8f6 e4e5 f6d5 d2d4 d7d6 g1f3 c8g4 f1e2",            // Alekhine
    "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6 c1g5 f8e7 e2e3 e8g8",       // Queen's Gambit declined
    "d2d4 d7d5 c2c4 d5c4 g1f3 g8f6 e2e3 e7e6 f1c4 c7c5",       // Queen's Gambit accepted
    "d2d4 d7d5 c2c4 c7c6 g1f3 g8f6 b1c3 d5c4 a2a4 c8f5",       // Slav
    "d2d4 g8f6 c2c4 g7g6 b1c3 f8g7 e2e4 d7d6 g1f3 e8g8",       // King's Indian
    "d2d4 g8f6 c2c4 g7g6 b1c3 d7d5 c4d5 f6d5 e2e4 d5c3 b2c3",  // Gruenfeld
    "d2d4 g8f6 c2c4 e7e6 b1c3 f8b4 e2e3 e8g8 f1d3 d7d5",       // Nimzo-Indian
    "d2d4 g8f6 c2c4 e7e6 g1f3 b7b6 g2g3 c8b7 f1g2 f8e7",       // Queen's Indian
    "d2d4 g8f6 c2c4 c7c5 d4d5 e7e6 b1c3 e6d5 c4d5 d7d6",       // Benoni
    "d2d4 f7f5 g2g3 g8f6 f1g2 e7e6 g1f3 f8e7 e1g1 e8g8",       // Dutch
    "d2d4 g8f6 c1f4 e7e6 e2e3 c7c5 c2c3 b8c6 g1f3 d7d5",       // London
    "c2c4 e7e5 b1c3 g8f6 g1f3 b8c6 g2g3 d7d5 c4d5 f6d5",       // English, four knights
    "c2c4 c7c5 g1f3 g8f6 b1c3 b8c6 g2g3 g7g6 f1g2 f8g7",       // English, symmetrical
    "g1f3 d7d5 g2g3 g8f6 f1g2 c7c6 e1g1 c8g4 d2d3",            // Reti
    "b2b3 e7e5 c1b2 b8c6 e2e3 d7d5 f1b5 f8d6",                 // Larsen
};

class Draws {
 public:
  Draws(uint64_t seed, uint64_t number) : key_(mix64(mix64(seed) ^ number)) {}
  double uniform() { return double(mix64(key_ + ++drawn_) >> 11) * 0x1p-53; }
  size_t below(size_t n) { return size_t(uniform() * double(n)); }

 private:
  uint64_t key_, drawn_ = 0;
};

constexpr double pawns_of(Piece p) {
  constexpr double value[] = {1, 3, 3, 5, 9, 100, 0};
  return value[size_t(p)];
}

// The material that the moved piece risks on its new square: its full value if unguarded, else its
// value minus that of the cheapest attacker.
double pawns_at_risk(const Board& after, Square s) {
  const Color us = other(after.turn());
  Bitboard attackers = after.attackers(s, after.turn(), after.occupied());
  if (!attackers) return 0;
  const double worth = pawns_of(after.piece_at(s));
  if (!after.attackers(s, us, after.occupied())) return worth;
  double cheapest = worth;
  while (attackers) cheapest = std::min(cheapest, pawns_of(after.piece_at(pop(attackers))));
  return worth - cheapest;
}

// Material gained by the move, plus bonuses for checks, the centre and mate.
double move_score(const Board& board, Move m) {
  const Board after = board.after(m);
  double score = pawns_of(board.piece_at(m.to));
  if (m.promotion != Piece::none) score += pawns_of(m.promotion) - 1;
  if (board.piece_at(m.from) != Piece::king) score -= pawns_at_risk(after, m.to);
  const double off_centre = std::abs(file_of(m.to) - 3.5) + std::abs(rank_of(m.to) - 3.5);
  score += 0.1 * (4 - off_centre);
  if (!after.in_check()) return score;
  return after.legal_moves().empty() ? score + 20 : score + 0.5;
}

Move draw_move(const Board& board, double temperature, Draws& draws) {
  const MoveList moves = board.legal_moves();
  std::vector<double> weight;
  for (const Move m : moves) weight.push_back(move_score(board, m) / temperature);
  const double top = *std::max_element(weight.begin(), weight.end());
  double sum = 0;
  for (double& w : weight) sum += w = std::exp(w - top);
  double left = draws.uniform() * sum;
  for (size_t i = 0; i + 1 < moves.size(); ++i) {
    if ((left -= weight[i]) < 0) return moves[i];
  }
  return moves[moves.size() - 1];
}

}  // namespace

Game play_game(const SelfPlaySpec& spec, uint64_t number) {
  Draws draws(spec.seed, number);
  Game game;
  if (draws.uniform() < spec.opening_share) {
    const std::string_view opening = openings[draws.below(std::size(openings))];
    for (const std::string_view m : split(opening, ' ')) game.push(parse_uci(m).value());
  }
  while (int(game.moves().size()) < spec.max_plies && game.ending() == Ending::none)
    game.push(draw_move(game.board(), spec.temperature, draws));
  return game;
}

}  // namespace hearth::chess
