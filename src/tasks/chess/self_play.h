// Games to learn from: moves drawn by a softmax over simple scores of all legal ones, some games
// from a known opening. Game number and seed decide everything.
#pragma once

#include "tasks/chess/game.h"

namespace hearth::chess {

struct SelfPlaySpec {
  uint64_t seed = 1;
  double temperature = 1;  // in pawns; a large one makes every legal move as likely
  int max_plies = 150;
  double opening_share = 0.3;
};

Game play_game(const SelfPlaySpec&, uint64_t number);

}  // namespace hearth::chess
