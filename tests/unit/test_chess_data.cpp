// Self-play and the files made of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data_files.h"
#include "tasks/chess/dataset.h"
#include "tasks/chess/rewards.h"
#include "tasks/chess/rows.h"
#include "tasks/chess/score.h"

namespace hearth::chess {
namespace {

TEST(ChessSelfPlay, OneSeedOneGame) {
  const Game a = play_game({.seed = 3}, 5), b = play_game({.seed = 3}, 5);
  EXPECT_EQ(a.moves(), b.moves());
  EXPECT_NE(a.moves(), play_game({.seed = 3}, 6).moves());
  EXPECT_NE(a.moves(), play_game({.seed = 4}, 5).moves());
}

TEST(ChessSelfPlay, OpeningsLengthAndMates) {
  int mates = 0;
  std::set<std::string> eighth;  // positions after 8 plies
  for (uint64_t n = 0; n < 200; ++n) {
    const Game all = play_game({.seed = 1, .opening_share = 1}, n);
    EXPECT_LE(all.moves().size(), 150u);
    mates += all.ending() == Ending::checkmate;
    if (all.moves().size() >= 8) eighth.insert(all.board(8).fen());
  }
  EXPECT_LE(eighth.size(), 30u);  // no more than there are openings
  EXPECT_GE(eighth.size(), 20u);
  EXPECT_GT(mates, 10);
  EXPECT_EQ(play_game({.seed = 1, .max_plies = 4, .opening_share = 0}, 0).moves().size(), 4u);
}

TEST(ChessData, SameFileAtAnyNumberOfThreads) {
  const TemporaryFolder folder;
  Threads one(1), three(3);
  const ChessDataSpec spec{.play = {.seed = 9}, .games = 70, .keep = 0.5};
  const ChessDataCounts n = write_chess_data(folder / "a", spec, one, nullptr);
  write_chess_data(folder / "b", spec, three, nullptr);
  const std::string a = get_file(folder / "a");
  EXPECT_EQ(a, get_file(folder / "b"));
  EXPECT_EQ(n.games, 70);
  EXPECT_EQ(n.policy, 0);
  EXPECT_EQ(n.environment + n.repeated, n.positions);
  EXPECT_EQ(std::count(a.begin(), a.end(), '\n'), n.environment);
}

TEST(ChessData, RowsAreRightAndNoneTwice) {
  const TemporaryFolder folder;
  Threads threads(2);
  write_chess_data(folder / "rows", {.play = {.seed = 2}, .games = 30}, threads, nullptr);
  std::set<std::string> prompts;
  for_each_row(folder / "rows", [&](const nlohmann::json& row) {
    EXPECT_TRUE(prompts.insert(text_in(row, "prompt")).second);
    const Prompt p = parse_prompt(text_in(row, "prompt"));
    EXPECT_EQ(chess_reward(p, text_in(row, "completion")).value(), 1);
  });
  EXPECT_GT(prompts.size(), 1000u);
  EXPECT_EQ(score_file(folder / "rows", nullptr).scores.json()["environment"]["exact"], 1.0);
}

// Moves that cannot be played are part of what an environment is asked.
TEST(ChessData, SomeMovesAreNotLegal) {
  const TemporaryFolder folder;
  const auto rows = [&](double share) {
    const ChessDataSpec spec{.play = {.seed = 4}, .games = 2, .keep = 0.5, .illegal = share};
    Threads threads(1);
    write_chess_data(folder / "rows", spec, threads, nullptr);
    return get_file(folder / "rows");
  };
  const std::string none = rows(0), all = rows(1);
  EXPECT_EQ(none.find("+1\"}"), std::string::npos);
  EXPECT_EQ(all.find("+0\"}"), std::string::npos);
  // They come from the same positions.
  EXPECT_EQ(none.substr(0, none.find('+')), all.substr(0, all.find('+')));
}

TEST(ChessData, TextIsADocumentARow) {
  const TemporaryFolder folder;
  Threads threads(1);
  ChessDataSpec spec{.play = {.max_plies = 1, .opening_share = 0}, .games = 1};
  spec.format = RowFormat::text;
  write_chess_data(folder / "text", spec, threads, nullptr);
  const std::string text = get_file(folder / "text");
  EXPECT_TRUE(text.starts_with("A: " + Board().fen() + "+")) << text;
  EXPECT_TRUE(text.ends_with("+0.001+0+0\n<|endoftext|>\n")) << text;
}

TEST(ChessData, StockfishLabelsThePolicyRows) {
  const auto program = find_stockfish();
  if (!program) GTEST_SKIP() << "needs stockfish (scripts/packages installs it)";
  const TemporaryFolder folder;
  Threads threads(1);
  const ChessDataSpec spec{.play = {.seed = 4}, .games = 2, .keep = 0.1, .environment = false};
  StockfishPool pool({.program = *program, .processes = 2, .nodes = 500});
  const ChessDataCounts n = write_chess_data(folder / "rows", spec, threads, &pool);
  EXPECT_GT(n.policy, 0);
  EXPECT_EQ(n.unlabelled, 0);
  int64_t rows = 0;
  for_each_row(folder / "rows", [&](const nlohmann::json& row) {
    ++rows;
    const Prompt p = parse_prompt(text_in(row, "prompt"));
    const auto answer = parse_policy(text_in(row, "completion"), candidates_in(p.board));
    ASSERT_TRUE(answer) << row.dump();
    EXPECT_EQ(answer->best, answer->candidates[0].move);
    EXPECT_TRUE(p.board.is_legal(answer->best));
  });
  EXPECT_EQ(rows, n.policy);
}

TEST(ChessData, PuzzlesBecomePrompts) {
  const TemporaryFolder folder;
  const std::string easy =
      R"({"fen": "5k2/2q2ppp/8/N2p1P2/B7/2b2P1n/2P2P2/4QK2 w - - 1 32", "best": "e1e8", "rating": 618})";
  const std::string hard =
      R"({"fen": "8/3k2p1/1p1Np2p/1P2PnPP/8/5K2/8/8 w - - 5 46", "best": "d6f5", "rating": 1822})";
  const std::string unrated =
      R"({"fen": "r5k1/pR3rp1/1p3n1p/2p5/8/1Q3P2/PP4PP/2q2NK1 w - - 0 26", "best": "b3f7", "rating": null})";
  put_file(folder / "puzzles", easy + "\n" + hard + "\n" + unrated + "\n");
  EXPECT_EQ(write_puzzle_prompts(folder / "all", {.puzzles = folder / "puzzles"}), 3);
  EXPECT_EQ(
      write_puzzle_prompts(folder / "easy", {.puzzles = folder / "puzzles", .max_rating = 1000}),
      1);
  EXPECT_EQ(
      get_file(folder / "easy"),
      R"({"prompt":"P: 5k2/2q2ppp/8/N2p1P2/B7/2b2P1n/2P2P2/4QK2 w - - 1 32","best":"e1e8","rating":618})"
      "\n");
  put_file(folder / "puzzles", easy + "\n" + R"({"fen": "x", "best": "e1e8", "rating": 1})");
  EXPECT_TRUE(mentions(
      error_of([&] { write_puzzle_prompts(folder / "bad", {.puzzles = folder / "puzzles"}); }),
      {"puzzles:2", "6 fields"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
}

}  // namespace
}  // namespace hearth::chess
