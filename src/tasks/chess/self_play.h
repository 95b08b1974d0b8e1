// Self-play games: moves are drawn from a softmax over simple scores of all legal moves; some games
// start from a known opening. Seed and game number determine everything.
#pragma once

#include "tasks/chess/game.h"

namespace hearth::chess {

struct SelfPlaySpec {
  uint64_t seed = 1;
  double temperature = 1;  // in pawns; a large value makes all legal moves equally likely
  int max_plies = 150;
  double opening_share = 0.3;
};

Game play_game(const SelfPlaySpec&, uint64_t number);

}  // namespace hearth::chess
