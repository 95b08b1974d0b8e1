#include <atomic>
#include <cstdio>

#include "align/rewards.h"
#include "chess/rewards.h"
#include "chess/score.h"
#include "core/error.h"

namespace hearth {
namespace {

// Of a row as `hearth data chess` writes it: the truth of P: stands in "completion", "reference" or
// "best"; where none of them does, Stockfish is asked, once a group, and each worker has its own.
class ChessReward : public RewardSource {
 public:
  explicit ChessReward(const RewardSpec& spec) {
    for (int i = 0; i < spec.workers; ++i) {
      auto engine = chess::open_stockfish(spec.stockfish, spec.stockfish_nodes, 1);
      if (!engine) break;
      engines_.push_back(std::move(engine));
    }
  }

  void check(const PromptRow& row) const override {
    try {
      const chess::Prompt p = chess::parse_prompt(row.prompt);
      if (p.task != chess::Prompt::Task::policy || known(row, p).best || !engines_.empty()) return;
      if (!said_.exchange(true))
        std::fprintf(stderr,
                     "there is no Stockfish: of the P: prompts without a label the best move, the "
                     "candidates and the evaluations are left out of the reward\n");
    } catch (const Error& e) { fail(row.where, "{}", e.what()); }
  }

  GroupScores score(const PromptRow& row, std::span<const RewardText> texts, int worker) override {
    const chess::Prompt p = chess::parse_prompt(row.prompt);
    chess::Label label;
    if (p.task == chess::Prompt::Task::policy) {
      label = known(row, p);
      if (!label.best && !engines_.empty()) {
        label = engines_.at(size_t(worker))->label(std::span(&p.board, 1))[0];
        if (!label.best) {
          unlabelled_ += int64_t(texts.size());
          return GroupScores(texts.size());
        }
      }
    }
    GroupScores all;
    for (const RewardText& t : texts) all.push_back(chess::chess_reward(p, t.text, label).value());
    return all;
  }

  nlohmann::ordered_json troubles() const override {
    if (engines_.empty()) return {{"stockfish", false}};
    return {{"stockfish", true}, {"failed", unlabelled_.load()}};
  }

 private:
  static chess::Label known(const PromptRow& row, const chess::Prompt& p) {
    if (!row.row.contains("completion") || row.row.contains("reference"))
      return chess::label_in(row.row, p.board);
    return chess::label_in({{"reference", row.row.at("completion")}}, p.board);
  }

  std::vector<std::unique_ptr<chess::StockfishPool>> engines_;  // one a worker, or none
  std::atomic<int64_t> unlabelled_ = 0;
  mutable std::atomic<bool> said_ = false;
};

}  // namespace

std::unique_ptr<RewardSource> make_chess_reward(const RewardSpec& spec) {
  return std::make_unique<ChessReward>(spec);
}

}  // namespace hearth
