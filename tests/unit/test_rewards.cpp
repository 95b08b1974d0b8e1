// The built-in reward rules and the chess reward.
#include "rewards/rewards.h"

#include <gtest/gtest.h>

#include "reward_case.h"
#include "sys/error.h"
#include "tasks/chess/board.h"
#include "tasks/chess/tasks.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

GroupScores scored(const std::vector<std::string>& rewards, const PromptRow& row,
                   std::vector<RewardText> all) {
  Rewards r({.rewards = rewards});
  r.check(std::span(&row, 1));
  return r.submit(row, std::move(all)).get().total;
}

TEST(Rewards, RulesSumByWeight) {
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", "46"}});
  EXPECT_EQ(scored({"exact"}, row, texts({"46", " 46\n", "47", "4 6"})), (GroupScores{1, 1, 0, 0}));
  EXPECT_EQ(scored({"numeric@2", "length:2@0.5"}, row, texts({"46", "is 46", "5"})),
            (GroupScores{2.5, 2, 0.5}));
  EXPECT_EQ(scored({"near:0.5"}, row, texts({"46.4", "46.6"})), (GroupScores{1, 0}));
  EXPECT_EQ(scored({"length:4"}, row, texts({"1234", "123456", "12345678", "123456789"})),
            (GroupScores{1, 0.5, 0, 0}));
}

TEST(Rewards, RefuseWhatTheyCannotScore) {
  EXPECT_THROW(Rewards({.rewards = {}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"exakt"}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"length:x"}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"program:"}}), Error);
  const PromptRow no_answer = row_of({{"prompt", "q"}});
  const PromptRow no_number = row_of({{"prompt", "q"}, {"answer", "many"}});
  EXPECT_THROW(Rewards({.rewards = {"exact"}}).check(std::span(&no_answer, 1)), Error);
  EXPECT_THROW(Rewards({.rewards = {"numeric"}}).check(std::span(&no_number, 1)), Error);
  EXPECT_THROW(Rewards({.rewards = {"chess"}, .stockfish = "none"}).check(std::span(&no_answer, 1)),
               Error);
}

TEST(Rewards, ChessByLabelAndByTheRules) {
  const chess::Board start =
      chess::Board::from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  const std::string full = " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.30 0.30 0.20 0.20 0.10 B: e2e4";
  const PromptRow policy = row_of({{"prompt", chess::policy_prompt(start)}, {"completion", full}});
  const PromptRow puzzle = row_of({{"prompt", chess::policy_prompt(start)}, {"best", "e2e4"}});
  Rewards r({.rewards = {"chess"}, .stockfish = "none"});
  r.check(std::span(&policy, 1));
  const GroupScores by_label = r.submit(policy, texts({full, "rubbish"})).get().total;
  EXPECT_NEAR(*by_label[0], 1, 1e-12);
  EXPECT_NEAR(*by_label[1], -0.3, 1e-12);
  EXPECT_NEAR(*r.submit(puzzle, texts({full})).get().total[0], 1, 1e-12);
  const auto move = chess::parse_uci("e2e4");
  const PromptRow environment = row_of({{"prompt", chess::environment_prompt(start, {&*move, 1})}});
  const std::string right = chess::environment_completion(start, *move);
  EXPECT_NEAR(*r.submit(environment, texts({right})).get().total[0], 1, 1e-12);
  EXPECT_EQ(r.troubles()["chess"]["stockfish"], false);
}

// An engine that answers only when another one has been asked too.
TEST(Rewards, ChessAsksOneStockfishAWorker) {
  RewardFolder folder;
  const std::string together = (folder.path / "asked").string();
  fs::create_directory(together);
  const std::string engine = folder.script("engine", "asked=" + together + R"(
while read -r line; do
  case $line in
    uci) echo uciok ;;
    isready) echo readyok ;;
    go*)
      : >$asked/$$
      for i in $(seq 200); do [ $(ls $asked | wc -l) -ge 2 ] && break; sleep 0.05; done
      [ $(ls $asked | wc -l) -ge 2 ] || exit 1
      rank=0
      for move in e2e4 d2d4 g1f3 c2c4 b1c3; do
        rank=$((rank + 1))
        echo "info depth 5 multipv $rank score cp 20 nodes 9 pv $move"
      done
      echo "bestmove e2e4" ;;
  esac
done
)");
  const chess::Board start =
      chess::Board::from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  const PromptRow policy = row_of({{"prompt", chess::policy_prompt(start)}});
  const std::string full = " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.20 0.20 0.20 0.20 0.20 B: e2e4";
  Rewards r({.rewards = {"chess"}, .workers = 2, .stockfish = engine});
  auto one = r.submit(policy, texts({full})), two = r.submit(policy, texts({full}));
  for (const GroupRewards& g : {one.get(), two.get()}) {
    ASSERT_TRUE(g.total[0]);
    EXPECT_NEAR(*g.total[0], 1, 1e-12);
  }
}

TEST(Rewards, KnowWhichOfThemKnowsTheAnswer) {
  EXPECT_EQ(Rewards({.rewards = {"length:9", "numeric", "exact"}}).answer_term(), 1u);
  EXPECT_EQ(Rewards({.rewards = {"length:9", "length:5"}}).answer_term(), std::nullopt);
}

}  // namespace
}  // namespace hearth
