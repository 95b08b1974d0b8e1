// Scores completions of the two tasks: rates of legal moves, best moves and exact environment
// answers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tasks/chess/rewards.h"
#include "tasks/chess/stockfish.h"

namespace hearth::chess {

// Sums over rows; each rate has its own count. Labels decide which rows have a known best move.
class Scores {
 public:
  void add(const Prompt&, std::string_view completion, const Label& = {});
  // {"policy": {..}, "environment": {..}}; a rate without any row is null.
  nlohmann::ordered_json json() const;

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
    void add(double x) { sum += x, ++count; }
    nlohmann::ordered_json json() const;
  };
  struct {
    Mean reward, form, legal, legal_move, legal_candidates, best, candidates, evaluations;
  } policy_;
  struct {
    Mean reward, form, exact, fen, flags, reward_field;
  } environment_;
};

// The label in a row: complete in "reference" (a completion) or the move in "best"; empty without
// either.
Label label_in(const nlohmann::json& row, const Board&);

struct ScoredFile {
  Scores scores;
  int64_t unlabelled = 0;  // policy rows without a known best move: only legality and format
};

// Reads JSON lines {"prompt", "completion"}, for the policy task with the truth in "reference" (a
// completion) or "best" (a move, as in puzzles); rows without either are labelled by the pool.
ScoredFile score_file(const std::filesystem::path&, StockfishPool*);

}  // namespace hearth::chess
