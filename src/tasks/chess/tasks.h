// The two chess tasks as text. Policy: `P: <FEN>` completes to ` M: m1 .. E: e1 .. B: best`.
// Environment: `A: <FEN>+<move>+<last moves>+` completes to
// `<FEN>+<reward>+<terminated>+<truncated>`.
#pragma once

#include <span>

#include "tasks/chess/label.h"

namespace hearth::chess {

constexpr size_t most_candidates = 5, longest_history = 10;

// Candidates a policy answer has in a position: five, or all legal moves where those are fewer.
size_t candidates_in(const Board&);

std::string policy_prompt(const Board&);
std::string policy_completion(const Label&);  // of a whole label; opens with the space that joins
// `played` ends with the move that is asked about; of more than ten the last ten are told.
std::string environment_prompt(const Board&, std::span<const Move> played);
std::string environment_completion(const Board&, Move);

struct Prompt {
  enum class Task { policy, environment } task;
  Board board;
  Move move;  // of the environment task; it need not be legal
};
// An error where the text is no prompt of either task: it is data, not a model's doing.
Prompt parse_prompt(std::string_view);

struct PolicyAnswer {
  std::vector<Candidate> candidates;  // evaluations as they stand, not clamped
  Move best;
};

// What the environment answers. After an illegal move the position stands and `truncated` is set.
struct EnvironmentAnswer {
  std::string fen;
  double reward;
  bool terminated, truncated;
  bool operator==(const EnvironmentAnswer&) const = default;
};
EnvironmentAnswer environment_answer(const Board&, Move);

// A model's text, taken only in the exact form (spaces and line ends around it are let pass); moves
// need not be legal, nor the FEN a position. Any text at all may be given.
std::optional<PolicyAnswer> parse_policy(std::string_view completion, size_t candidates);
std::optional<EnvironmentAnswer> parse_environment(std::string_view completion);

}  // namespace hearth::chess
