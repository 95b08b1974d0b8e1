// Verifiable rewards of the two chess tasks: weighted terms in [0, 1], mapped to [-0.3, 1]. Any
// completion has a reward; a term for which the truth is not known is left out, and says so.
#pragma once

#include "tasks/chess/tasks.h"

namespace hearth::chess {

struct RewardTerm {
  std::string_view name;
  double weight;
  std::optional<double> score;  // nothing: left out
};

struct Reward {
  std::vector<RewardTerm> terms;
  double value() const;  // -0.3 + 1.3 * sum(weight * score) / sum(weight), of the terms that are in
  std::optional<double> score(std::string_view name) const;
};

// Text that is not exactly in form scores 0 in every term.
//   best 4         the label's best move
//   format 2       in form
//   candidates 1.5 share of the label's candidates among those named
//   evaluations 1  1 - MSE / 100, not below 0; each against the label's for the same move, or, for
//   a
//                  move the label lacks, for the same place
Reward policy_reward(const Board&, std::string_view completion, const Label&);

//   format 4       in form
//   fen 3          exact 1, else the square of 1 - edit distance / longer length
//   flags 2        half each for terminated and truncated
//   reward 1       equal
Reward environment_reward(const Board&, Move, std::string_view completion);

Reward chess_reward(const Prompt&, std::string_view completion, const Label& = {});

size_t edit_distance(std::string_view, std::string_view);  // insert, delete, replace

}  // namespace hearth::chess
