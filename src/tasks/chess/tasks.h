// The two chess tasks as text. Policy: `P: <FEN>` completes to ` M: m1 .. E: e1 .. B: best`.
// Environment: `A: <FEN>+<move>+<last moves>+` completes to
// `<FEN>+<reward>+<terminated>+<truncated>`.
#pragma once

#include <span>

#include "tasks/chess/label.h"

namespace hearth::chess {

constexpr size_t most_candidates = 5, longest_history = 10;

// The number of candidates in a policy answer: five, or all legal moves if there are fewer.
size_t candidates_in(const Board&);

std::string policy_prompt(const Board&);
std::string policy_completion(const Label&);  // of a complete label; starts with a space
// `played` ends with the move in question; only the last ten moves are included.
std::string environment_prompt(const Board&, std::span<const Move> played);
std::string environment_completion(const Board&, Move);

struct Prompt {
  enum class Task { policy, environment } task;
  Board board;
  Move move;  // environment task; may be illegal
};
// Throws if the text is not a prompt of either task.
Prompt parse_prompt(std::string_view);

struct PolicyAnswer {
  std::vector<Candidate> candidates;  // evaluations as written, not clamped
  Move best;
};

// The environment's answer. An illegal move leaves the position unchanged and sets `truncated`.
struct EnvironmentAnswer {
  std::string fen;
  double reward;
  bool terminated, truncated;
  bool operator==(const EnvironmentAnswer&) const = default;
};
EnvironmentAnswer environment_answer(const Board&, Move);

// Parses a model's text, which must match the exact format (surrounding spaces and line ends are
// ignored). Moves need not be legal, nor the FEN a valid position. Accepts any input.
std::optional<PolicyAnswer> parse_policy(std::string_view completion, size_t candidates);
std::optional<EnvironmentAnswer> parse_environment(std::string_view completion);

}  // namespace hearth::chess
