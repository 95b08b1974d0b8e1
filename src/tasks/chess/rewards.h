// Verifiable rewards of the two chess tasks: weighted terms in [0, 1], mapped to [-0.3, 1]. Every
// completion gets a reward; a term without a known truth is left out and marked as such.
#pragma once

#include "tasks/chess/tasks.h"

namespace hearth::chess {

struct RewardTerm {
  std::string_view name;
  double weight;
  std::optional<double> score;  // empty: left out
};

struct Reward {
  std::vector<RewardTerm> terms;
  double value() const;  // -0.3 + 1.3 * sum(weight * score) / sum(weight), without terms left out
  std::optional<double> score(std::string_view name) const;
};

// Text that does not match the format scores 0 in every term.
//   best 4         the label's best move
//   format 2       matches the format
//   candidates 1.5 fraction of the label's candidates that are named
//   evaluations 1  1 - MSE / 100, at least 0; each against the label's value for the same move, or
//                  for the same rank if the label lacks the move
Reward policy_reward(const Board&, std::string_view completion, const Label&);

//   format 4       matches the format
//   fen 3          exact 1, else the square of 1 - edit distance / longer length
//   flags 2        half each for terminated and truncated
//   reward 1       equal
Reward environment_reward(const Board&, Move, std::string_view completion);

Reward chess_reward(const Prompt&, std::string_view completion, const Label& = {});

}  // namespace hearth::chess
