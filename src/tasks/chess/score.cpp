#include "tasks/chess/score.h"

#include "formats/json.h"
#include "sys/error.h"
#include "tasks/chess/rows.h"

namespace hearth::chess {
namespace {

using nlohmann::ordered_json;

struct ScoredRow {
  Prompt prompt;
  std::string completion;
  Label label;
};

std::vector<ScoredRow> read_rows(const std::filesystem::path& path) {
  std::vector<ScoredRow> rows;
  for_each_row(path, [&](const nlohmann::json& row) {
    ScoredRow r{parse_prompt(text_in(row, "prompt")), text_in(row, "completion"), {}};
    if (r.prompt.task == Prompt::Task::policy) r.label = label_in(row, r.prompt.board);
    rows.push_back(std::move(r));
  });
  return rows;
}

// The move after the final "B:" of an answer, even if the rest does not match the format.
std::optional<Move> played_move(std::string_view completion) {
  const size_t at = completion.rfind(" B: ");
  if (at == std::string_view::npos) return {};
  std::string_view word = completion.substr(at + 4);
  while (!word.empty() && (word.back() == ' ' || word.back() == '\n')) word.remove_suffix(1);
  return parse_uci(word);
}

}  // namespace

Label label_in(const nlohmann::json& row, const Board& board) {
  Label label;
  if (row.contains("reference")) {
    const std::string& text = text_in(row, "reference");
    const auto answer = parse_policy(text, candidates_in(board));
    if (!answer)
      fail("reference", "expected a completion in the format of the task, got {}", in_quotes(text));
    label = {answer->best, answer->candidates};
  } else if (row.contains("best")) {
    label.best = parse_uci(text_in(row, "best"));
  } else {
    return label;
  }
  if (!label.best || !board.is_legal(*label.best))
    fail("best", "expected a legal move in {}, got an illegal one", board.fen());
  return label;
}

ordered_json Scores::Mean::json() const {
  return count == 0 ? ordered_json() : ordered_json(sum / double(count));
}

void Scores::add(const Prompt& p, std::string_view completion, const Label& label) {
  const Reward reward = chess_reward(p, completion, label);
  const auto note = [&](Mean& mean, std::string_view term) {
    if (const auto s = reward.score(term)) mean.add(*s);
  };
  if (p.task == Prompt::Task::environment) {
    auto& e = environment_;
    const auto said = parse_environment(completion);
    e.reward.add(reward.value());
    e.exact.add(said && *said == environment_answer(p.board, p.move));
    e.fen.add(reward.score("fen") == 1.0);
    note(e.form, "format"), note(e.flags, "flags"), note(e.reward_field, "reward");
    return;
  }
  auto& s = policy_;
  const auto answer = parse_policy(completion, candidates_in(p.board));
  s.reward.add(reward.value());
  s.legal.add(answer && p.board.is_legal(answer->best));
  const auto played = played_move(completion);
  s.legal_move.add(played && p.board.is_legal(*played));
  double legal = 0;
  if (answer)
    for (const Candidate& c : answer->candidates) legal += p.board.is_legal(c.move);
  s.legal_candidates.add(answer ? legal / double(answer->candidates.size()) : 0);
  note(s.form, "format"), note(s.best, "best");
  note(s.candidates, "candidates"), note(s.evaluations, "evaluations");
}

ordered_json Scores::json() const {
  const auto& p = policy_;
  const auto& e = environment_;
  return {{"policy",
           {{"rows", p.reward.count},
            {"reward", p.reward.json()},
            {"format", p.form.json()},
            {"legal", p.legal.json()},
            {"legal_move", p.legal_move.json()},
            {"legal_candidates", p.legal_candidates.json()},
            {"best_known", p.best.count},
            {"best", p.best.json()},
            {"candidates", p.candidates.json()},
            {"evaluations", p.evaluations.json()}}},
          {"environment",
           {{"rows", e.reward.count},
            {"reward", e.reward.json()},
            {"format", e.form.json()},
            {"exact", e.exact.json()},
            {"fen", e.fen.json()},
            {"flags", e.flags.json()},
            {"reward_field", e.reward_field.json()}}}};
}

ScoredFile score_file(const std::filesystem::path& path, StockfishPool* pool) {
  std::vector<ScoredRow> rows = read_rows(path);
  const auto asks = [](const ScoredRow& r) {
    return r.prompt.task == Prompt::Task::policy && !r.label.best;
  };
  if (pool) {
    std::vector<Board> boards;
    for (const ScoredRow& r : rows)
      if (asks(r)) boards.push_back(r.prompt.board);
    std::vector<Label> labels = pool->label(boards);
    auto next = labels.begin();
    for (ScoredRow& r : rows)
      if (asks(r)) r.label = std::move(*next++);
  }
  ScoredFile result;
  for (const ScoredRow& r : rows) {
    result.scores.add(r.prompt, r.completion, r.label);
    result.unlabelled += asks(r);
  }
  return result;
}

}  // namespace hearth::chess
