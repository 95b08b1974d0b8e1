// How well completions of the two tasks do: how often a legal move, the best move, an environment
// that is exact.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tasks/chess/rewards.h"
#include "tasks/chess/stockfish.h"

namespace hearth::chess {

// Sums over rows; a rate is a sum over its own count. Labels decide which rows know a best move.
class Scores {
 public:
  void add(const Prompt&, std::string_view completion, const Label& = {});
  // {"policy": {..}, "environment": {..}}; a rate that no row tells is null.
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

// What a row tells of a position's truth: all of it in "reference" (a completion) or the move in
// "best"; empty where neither stands.
Label label_in(const nlohmann::json& row, const Board&);

struct ScoredFile {
  Scores scores;
  int64_t unlabelled = 0;  // policy rows whose best move nobody told: legality and form only
};

// JSON lines {"prompt", "completion"}, for the policy task with the truth in "reference" (a
// completion) or "best" (a move, as puzzles have it); where neither stands the pool is asked.
ScoredFile score_file(const std::filesystem::path&, StockfishPool*);

}  // namespace hearth::chess
