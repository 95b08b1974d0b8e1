// hearth chess and hearth data chess as a user runs them.
#include "command.h"

namespace hearth {
namespace {

const std::string start_fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

TEST(ChessCommand, PerftLegalAndMove) {
  const Folder folder;
  EXPECT_EQ(run(folder, {"chess", "perft", "--fen", start_fen, "--depth", "4"}).out, "197281\n");
  EXPECT_EQ(json_of(run(folder,
                        {"chess", "perft", "--fen", start_fen, "--depth", "3", "--json"}))["nodes"],
            8902);
  EXPECT_EQ(run(folder, {"chess", "legal", "--fen", "k7/8/2Q5/8/8/8/8/K7 b - - 0 1"}).out,
            "a8a7 a8b8\n");
  EXPECT_EQ(json_of(run(folder, {"chess", "legal", "--fen", start_fen, "--json"}))["moves"].size(),
            20u);
  EXPECT_EQ(run(folder, {"chess", "move", "--fen", start_fen, "--uci", "e2e4"}).out,
            "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1\n");
  const auto mate =
      json_of(run(folder, {"chess", "move", "--fen",
                           "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2", "--uci",
                           "d8h4", "--json"}));
  EXPECT_EQ(mate["ending"], "checkmate");
  EXPECT_EQ(mate["check"], true);
}

TEST(ChessCommand, BadInputIsOneLine) {
  const Folder folder;
  expect_error(run(folder, {"chess", "legal", "--fen", "nonsense"}), 2,
               "[--fen] expected 6 fields");
  expect_error(run(folder, {"chess", "move", "--fen", start_fen, "--uci", "e2e5"}), 2,
               "[--uci] expected a legal move");
  expect_error(run(folder, {"chess", "perft", "--fen", start_fen, "--depth", "-1"}), 2, "depth");
  expect_error(run(folder, {"chess", "perft", "--fn", start_fen}), 2, "--fen");
  expect_error(
      run(folder, {"chess", "score", "--data", (folder / "none").string(), "--stockfish", "none"}),
      1, "none");
  const std::string out = (folder / "rows").string();
  expect_error(run(folder, {"data", "chess", "--out", out, "--tasks", "Q"}), 2, "P, A or P,A");
  expect_error(run(folder, {"data", "chess", "--out", out, "--tasks", "P", "--stockfish", "none"}),
               1, "Stockfish");
  expect_error(run(folder, {"data", "chess", "--out", out, "--stockfish", "/nowhere/at/all"}), 1,
               "/nowhere/at/all");
  EXPECT_FALSE(fs::exists(out));
}

TEST(ChessCommand, DataWithoutStockfishSaysWhatIsLeftOut) {
  const Folder folder;
  const std::string out = (folder / "rows").string();
  const Ran made = run(folder, {"data", "chess", "--out", out, "--games", "3", "--seed", "5",
                                "--stockfish", "none", "--json"});
  const auto report = json_of(made);
  EXPECT_NE(made.err.find("P: task is left out"), std::string::npos) << made.err;
  EXPECT_EQ(report["policy_rows"], 0);
  EXPECT_TRUE(report["stockfish"].is_null());
  EXPECT_GT(report["environment_rows"], 50);
  const std::string before = read_file(out);
  expect_error(run(folder, {"data", "chess", "--out", out, "--games", "1", "--stockfish", "none"}),
               1, "this file exists: choose another place, or --force");
  EXPECT_EQ(read_file(out), before);
  const auto scored =
      json_of(run(folder, {"chess", "score", "--data", out, "--stockfish", "none"}));
  EXPECT_EQ(scored["environment"]["rows"], report["environment_rows"]);
  EXPECT_EQ(scored["environment"]["exact"], 1.0);
  EXPECT_EQ(scored["policy"]["rows"], 0);
}

}  // namespace
}  // namespace hearth
