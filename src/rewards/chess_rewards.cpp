#include <atomic>
#include <cstdio>

#include "rewards/rewards.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "tasks/chess/rewards.h"
#include "tasks/chess/score.h"

namespace hearth::inline rewards {
namespace {

// Rewards rows written by `hearth data chess`. The truth of a P: row is in "completion",
// "reference" or "best"; without any of them Stockfish labels the position, once per group for each
// worker that scores part of it, with the worker's own engine.
class ChessReward : public RewardSource {
 public:
  explicit ChessReward(const RewardSpec& spec) : most_(spec.max_failures) {
    for (int i = 0; i < spec.workers; ++i) {
      auto engine = chess::open_stockfish(spec.stockfish, {.processes = 1,
                                                           .nodes = spec.stockfish_nodes,
                                                           .timeout_s = spec.timeout_s,
                                                           .max_failures = -1});
      if (!engine) break;
      engines_.push_back(std::move(engine));
      asked_.emplace_back();
    }
  }

  void check(const PromptRow& row) const override {
    try {
      const chess::Prompt p = chess::parse_prompt(row.prompt);
      if (p.task != chess::Prompt::Task::policy || known(row, p).best || !engines_.empty()) return;
      if (!said_.exchange(true))
        say("hearth: Stockfish was not found: for P: prompts without a label, the reward leaves "
            "out the best move, the candidates and the evaluations\n");
    } catch (const Error& e) { fail(row.where, "{}", e.what()); }
  }

  GroupScores score(const PromptRow& row, std::span<const RewardText> texts, int worker) override {
    const chess::Prompt p = chess::parse_prompt(row.prompt);
    chess::Label label;
    if (p.task == chess::Prompt::Task::policy) {
      label = known(row, p);
      if (!label.best && !engines_.empty()) {
        if (p.board.legal_moves().empty()) return GroupScores(texts.size());  // no best move
        Asked& last = asked_.at(size_t(worker));
        if (last.prompt != row.prompt || !last.label.best)
          last = {row.prompt, engines_.at(size_t(worker))->label(std::span(&p.board, 1))[0]};
        label = last.label;
        if (!label.best) return unlabelled(int64_t(texts.size()));
      }
    }
    GroupScores all;
    for (const RewardText& t : texts) all.push_back(chess::chess_reward(p, t.text, label).value());
    return all;
  }

  void abandon() override {
    abandoned_ = true;
    for (const auto& e : engines_) e->abandon();
  }
  nlohmann::ordered_json troubles() const override {
    if (engines_.empty()) return {{"stockfish", false}};
    const chess::StockfishCounts c = counts();
    return {{"stockfish", true},     {"failed", unlabelled_.load()},
            {"missing", c.missing},  {"died", c.died},
            {"hung", c.hung},        {"rubbish", c.rubbish},
            {"replaced", c.replaced}};
  }
  int64_t failed() const override { return unlabelled_; }
  RewardFailures failures() const override {
    RewardFailures f{.failed = unlabelled_};
    if (f.failed > 0) f.kinds = {{"positions that Stockfish did not label", f.failed}};
    return f;
  }
  nlohmann::json counted() const override { return {{"failed", unlabelled_.load()}}; }
  void count_on(const StateFields& f) override { unlabelled_ = f.integer("failed"); }

 private:
  static chess::Label known(const PromptRow& row, const chess::Prompt& p) {
    if (!row.row.contains("completion") || row.row.contains("reference"))
      return chess::label_in(row.row, p.board);
    return chess::label_in({{"reference", row.row.at("completion")}}, p.board);
  }

  GroupScores unlabelled(int64_t completions) {
    if (abandoned_) return GroupScores(size_t(completions));
    const int64_t failed = unlabelled_ += completions;
    if (most_ >= 0 && failed > most_) {
      const chess::StockfishCounts c = counts();
      fail("stockfish",
           "Stockfish left {} completions without a label: it could not be started {} times, died "
           "{} times, hung {} times, gave invalid answers {} times",
           failed, c.missing, c.died, c.hung, c.rubbish);
    }
    return GroupScores(size_t(completions));
  }

  chess::StockfishCounts counts() const {
    chess::StockfishCounts sum;
    for (const auto& e : engines_) {
      const chess::StockfishCounts c = e->counts();
      sum.missing += c.missing, sum.died += c.died, sum.hung += c.hung;
      sum.rubbish += c.rubbish, sum.replaced += c.replaced;
    }
    return sum;
  }

  const int64_t most_;  // completions without a label before an error; -1: no limit
  // The last answer of a worker's engine: the completions of a group may arrive one by one.
  struct Asked {
    std::string prompt;
    chess::Label label;
  };
  std::vector<std::unique_ptr<chess::StockfishPool>> engines_;  // one per worker, or none
  std::vector<Asked> asked_;                                    // one per engine
  std::atomic<int64_t> unlabelled_ = 0;  // completions, including earlier processes of the run
  std::atomic<bool> abandoned_ = false;
  mutable std::atomic<bool> said_ = false;
};

}  // namespace

std::unique_ptr<RewardSource> make_chess_reward(const RewardSpec& spec) {
  return std::make_unique<ChessReward>(spec);
}

}  // namespace hearth::inline rewards
