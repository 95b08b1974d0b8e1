#include "tasks/chess/rewards.h"

#include <algorithm>
#include <cmath>

#include "sys/edit_distance.h"

namespace hearth::chess {
namespace {

// The fraction of `known` that `named` contains; a move named twice counts once.
double candidates_score(const std::vector<Candidate>& named, const std::vector<Candidate>& known) {
  const auto is_named = [&](const Candidate& k) {
    return std::any_of(named.begin(), named.end(),
                       [&](const Candidate& n) { return n.move == k.move; });
  };
  return double(std::count_if(known.begin(), known.end(), is_named)) / double(known.size());
}

double evaluations_score(const std::vector<Candidate>& named, const std::vector<Candidate>& known) {
  double sum = 0;
  for (size_t i = 0; i < named.size(); ++i) {
    const auto same = std::find_if(known.begin(), known.end(),
                                   [&](const Candidate& k) { return k.move == named[i].move; });
    const Candidate& truth = same == known.end() ? known[std::min(i, known.size() - 1)] : *same;
    sum += std::pow(named[i].pawns - truth.pawns, 2);
  }
  return std::max(0.0, 1 - sum / double(named.size()) / 100);
}

double fen_score(std::string_view said, std::string_view truth) {
  const double likeness =
      1 - double(edit_distance(said, truth)) / double(std::max(said.size(), truth.size()));
  return likeness * likeness;
}

}  // namespace

double Reward::value() const {
  double sum = 0, weights = 0;
  for (const RewardTerm& t : terms) {
    if (!t.score) continue;
    sum += t.weight * *t.score;
    weights += t.weight;
  }
  return -0.3 + 1.3 * sum / weights;
}

std::optional<double> Reward::score(std::string_view name) const {
  for (const RewardTerm& t : terms) {
    if (t.name == name) return t.score;
  }
  return std::nullopt;
}

Reward policy_reward(const Board& board, std::string_view completion, const Label& label) {
  const auto answer = parse_policy(completion, candidates_in(board));
  const auto scored = [&](bool known, auto score) -> std::optional<double> {
    if (!known) return std::nullopt;
    return answer ? double(score()) : 0.0;
  };
  const bool ranked = !label.candidates.empty();
  return {{{"best", 4, scored(label.best.has_value(), [&] { return answer->best == *label.best; })},
           {"format", 2, answer ? 1.0 : 0.0},
           {"candidates", 1.5,
            scored(ranked, [&] { return candidates_score(answer->candidates, label.candidates); })},
           {"evaluations", 1, scored(ranked, [&] {
              return evaluations_score(answer->candidates, label.candidates);
            })}}};
}

Reward environment_reward(const Board& board, Move move, std::string_view completion) {
  const auto said = parse_environment(completion);
  if (!said) return {{{"format", 4, 0.0}, {"fen", 3, 0.0}, {"flags", 2, 0.0}, {"reward", 1, 0.0}}};
  const EnvironmentAnswer truth = environment_answer(board, move);
  const double flags =
      0.5 * (said->terminated == truth.terminated) + 0.5 * (said->truncated == truth.truncated);
  return {{{"format", 4, 1.0},
           {"fen", 3, fen_score(said->fen, truth.fen)},
           {"flags", 2, flags},
           {"reward", 1, said->reward == truth.reward ? 1.0 : 0.0}}};
}

Reward chess_reward(const Prompt& p, std::string_view completion, const Label& label) {
  return p.task == Prompt::Task::policy ? policy_reward(p.board, completion, label)
                                        : environment_reward(p.board, p.move, completion);
}

}  // namespace hearth::chess
