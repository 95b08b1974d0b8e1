// The rules of chess against counts of Stockfish (`go perft`) and cases decided as python-chess
// does.
#include <gtest/gtest.h>

#include <algorithm>

#include "sys/error.h"
#include "tasks/chess/game.h"

namespace hearth::chess {
namespace {

struct Leaves {
  const char* fen;
  int depth;
  uint64_t nodes;
};

class Perft : public ::testing::TestWithParam<Leaves> {};

TEST_P(Perft, EqualsStockfish) {
  const Leaves& p = GetParam();
  const Board board = Board::from_fen(p.fen);
  EXPECT_EQ(board.fen(), p.fen);
  EXPECT_EQ(perft(board, p.depth), p.nodes);
}

// tests/parity/chess.mjs reads this table and asks a live Stockfish for the same.
constexpr Leaves perft_cases[] = {
    {"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", 5, 4865609},
    {"r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 4, 4085603},
    {"8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 6, 11030083},
    {"r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", 4, 422333},
    {"rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8", 4, 2103487},
    {"r4rk1/1pp1qppp/p1np1n2/2b1p1B1/2B1P1b1/P1NP1N2/1PP1QPPP/R4RK1 w - - 0 10", 4, 3894594},
    {"n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1", 5, 3605103},
    {"r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1", 5, 7594526},
    {"8/8/1k6/2b5/2pP4/8/5K2/8 b - d3 0 1", 6, 1440467},
    {"3k4/3p4/8/K1P4r/8/8/8/8 b - - 0 1", 6, 1134888},
    {"8/k1P5/8/1K6/8/8/8/8 w - - 0 1", 7, 567584},
    {"rnbqkb1r/ppppp1pp/7n/4Pp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3", 5, 11139762},
    {"8/8/8/2k5/2pP4/8/B7/4K3 b - d3 0 3", 6, 444954},
};
INSTANTIATE_TEST_SUITE_P(Chess, Perft, ::testing::ValuesIn(perft_cases));

std::string after(const std::string& fen, const char* move) {
  const Board board = Board::from_fen(fen);
  const Move m = parse_uci(move).value();
  EXPECT_TRUE(board.is_legal(m)) << fen << " " << move;
  return board.after(m).fen();
}

TEST(ChessFen, MovesAreWrittenAsPythonChessWritesThem) {
  const std::string start = Board().fen();
  EXPECT_EQ(start, "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  EXPECT_EQ(after(start, "e2e4"), "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1");
  EXPECT_EQ(after(start, "g1f3"), "rnbqkbnr/pppppppp/8/8/8/5N2/PPPPPPPP/RNBQKB1R b KQkq - 1 1");
  const std::string castle = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 3 9";
  EXPECT_EQ(after(castle, "e1g1"), "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 4 9");
  EXPECT_EQ(after(castle, "e1c1"), "r3k2r/8/8/8/8/8/8/2KR3R b kq - 4 9");
  EXPECT_EQ(after(castle, "a1a8"), "R3k2r/8/8/8/8/8/8/4K2R b Kk - 0 9");
  EXPECT_EQ(after("8/P6k/8/8/8/8/8/K7 w - - 5 40", "a7a8n"), "N7/7k/8/8/8/8/8/K7 b - - 0 40");
}

TEST(ChessFen, EnPassantSquareOnlyWhereTheCaptureIsLegal) {
  EXPECT_EQ(after("4k3/8/8/8/4p3/8/3P4/4K3 w - - 0 1", "d2d4"),
            "4k3/8/8/8/3Pp3/8/8/4K3 b - d3 0 1");
  // Both pawns gone, the queen sees the king along the rank.
  EXPECT_EQ(after("8/8/8/8/k3p2Q/8/3P4/3K4 w - - 0 1", "d2d4"), "8/8/8/8/k2Pp2Q/8/8/3K4 b - - 0 1");
  EXPECT_EQ(Board::from_fen("8/8/8/8/k2Pp2Q/8/8/3K4 b - d3 0 1").fen(),
            "8/8/8/8/k2Pp2Q/8/8/3K4 b - - 0 1");
  // A pinned pawn cannot take; one that takes along its pin can.
  EXPECT_EQ(after("4k3/8/8/8/4p3/8/3P4/4KR2 w - - 0 1", "d2d4"),
            "4k3/8/8/8/3Pp3/8/8/4KR2 b - d3 0 1");
  EXPECT_EQ(after("4k3/8/8/8/4p3/8/3P4/3KR3 w - - 0 1", "d2d4"),
            "4k3/8/8/8/3Pp3/8/8/3KR3 b - - 0 1");
  EXPECT_EQ(after("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "a2a4"),
            "rnbqkbnr/pppppppp/8/8/P7/8/1PPPPPPP/RNBQKBNR b KQkq - 0 1");
}

TEST(ChessFen, WhatIsNoPositionIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "6 fields"},
      {"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0", "6 fields, got 5"},
      {"8/8/8/8/8/8/8 w - - 0 1", "8 ranks"},
      {"k7/8/8/8/8/8/8/K6 w - - 0 1", "8 squares in rank 1, got 7"},
      {"k8/8/8/8/8/8/8/K7 w - - 0 1", "8 squares in rank 8, got 9"},
      {"k61/8/8/8/8/8/8/K7 w - - 0 1", "one digit"},
      {"kx6/8/8/8/8/8/8/K7 w - - 0 1", "pieces and digits in rank 8"},
      {"8/8/8/8/8/8/8/K7 w - - 0 1", "one black king, got 0"},
      {"kk6/8/8/8/8/8/8/K7 w - - 0 1", "one black king, got 2"},
      {"k6P/8/8/8/8/8/8/K7 w - - 0 1", "no pawn"},
      {"k7/pppppppp/p7/8/8/8/8/K7 w - - 0 1", "at most 8 black pawns"},
      {"k7/8/8/8/8/QQQQ4/QQQQQQQQ/KQQQQQQQ b - - 0 1", "at most 16 white pieces"},
      {"k6R/8/8/8/8/8/8/K7 w - - 0 1", "could be captured"},
      {"k7/8/8/8/8/8/8/K7 x - - 0 1", "w or b"},
      {"k7/8/8/8/8/8/8/K7 w K - 0 1", "castling right K"},
      {"r3k2r/8/8/8/8/8/8/R3K2R w QK - 0 1", "castling rights as KQkq"},
      {"r3k2r/8/8/8/8/8/8/R3K2R w KK - 0 1", "castling rights as KQkq"},
      {"k7/8/8/8/8/8/8/K7 w - e4 0 1", "en passant square on rank 6"},
      {"k7/8/8/8/8/8/8/K7 w - e6 0 1", "just moved past e6"},
      {"k7/8/8/8/8/8/8/K7 w - - -1 1", "halfmove clock"},
      {"k7/8/8/8/8/8/8/K7 w - - 0 -1", "move number"},
      {"k7/8/8/8/8/8/8/K7 w - - 0 99999999999", "move number"},
      {"k7/8/8/8/8/8/8/K7 w - - 0 1x", "move number"},
  };
  EXPECT_EQ(Board::from_fen("k7/8/8/8/8/8/8/K7 w - - 0 0").fen(), "k7/8/8/8/8/8/8/K7 w - - 0 1");
  for (const auto& [fen, part] : cases) {
    try {
      Board::from_fen(fen);
      ADD_FAILURE() << "taken: " << fen;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << fen << ": " << e.what();
    }
  }
}

TEST(ChessMoves, TheMostOfAnyPosition) {
  const Board b = Board::from_fen("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1");
  EXPECT_EQ(b.legal_moves().size(), 218u);
}

TEST(ChessUci, FormIsStrict) {
  for (const char* good : {"e2e4", "a7a8q", "h2h1n", "e1g1"})
    EXPECT_EQ(uci(*parse_uci(good)), good);
  for (const char* bad : {"", "e2", "e2e", "e2e9", "i2e4", "e2e4k", "e2e4Q", "e2e4qq", "0000",
                          "e2e2", "E2E4", "e2 e4"})
    EXPECT_FALSE(parse_uci(bad)) << bad;
  EXPECT_FALSE(Board::from_fen("8/P6k/8/8/8/8/8/K7 w - - 0 1").is_legal(*parse_uci("a7a8")));
  EXPECT_FALSE(Board().is_legal(*parse_uci("e2e4q")));
}

TEST(ChessEnding, IsDecidedAsPythonChessDoes) {
  const std::pair<const char*, Ending> cases[] = {
      {"rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3", Ending::checkmate},
      {"7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", Ending::stalemate},
      {"8/8/4k3/8/8/3K4/8/8 w - - 0 1", Ending::insufficient_material},
      {"8/8/4k3/8/8/3KB3/8/8 w - - 0 1", Ending::insufficient_material},
      {"8/8/4k3/8/8/3KN3/8/8 w - - 0 1", Ending::insufficient_material},
      {"8/8/4k3/8/8/2NKN3/8/8 w - - 0 1", Ending::none},
      {"8/8/4kb2/8/8/3KB3/8/8 w - - 0 1", Ending::insufficient_material},  // f6 and e3: both dark
      {"8/8/3bk3/8/8/3KB3/8/8 w - - 0 1", Ending::insufficient_material},
      {"8/8/4k3/4b3/8/3KB3/8/8 w - - 0 1", Ending::insufficient_material},
      {"8/8/4k3/3b4/8/3K1B2/8/8 w - - 0 1", Ending::insufficient_material},  // both light
      {"8/8/4k1b1/8/8/3KB3/8/8 w - - 0 1", Ending::none},                    // g6 is light
      {"8/8/4kn2/8/8/3KB3/8/8 w - - 0 1", Ending::none},
      {"8/8/4kn2/8/8/3KN3/8/8 w - - 0 1", Ending::none},
      {"8/8/4k2p/8/8/3K4/8/8 w - - 0 1", Ending::none},
      {"8/8/4k2r/8/8/3K1R2/8/8 w - - 149 100", Ending::none},
      {"8/8/4k2r/8/8/3K1R2/8/8 w - - 150 100", Ending::seventyfive_moves},
  };
  for (const auto& [fen, ending] : cases)
    EXPECT_EQ(ending_name(ending_of(Board::from_fen(fen))), ending_name(ending)) << fen;
  EXPECT_FALSE(fifty_moves(Board::from_fen("8/8/4k2r/8/8/3K1R2/8/8 w - - 99 100")));
  EXPECT_TRUE(fifty_moves(Board::from_fen("8/8/4k2r/8/8/3K1R2/8/8 w - - 100 100")));
  EXPECT_FALSE(fifty_moves(Board::from_fen("7k/5Q2/6K1/8/8/8/8/8 b - - 100 100")));
}

void play_all(Game& game, std::initializer_list<const char*> moves) {
  for (const char* m : moves) game.push(parse_uci(m).value());
}

TEST(ChessGame, CountsRepetitionsAndTakesMovesBack) {
  Game game;
  const auto shuffle = {"g1f3", "g8f6", "f3g1", "f6g8"};
  play_all(game, shuffle);
  EXPECT_EQ(game.repetitions(), 2);
  EXPECT_FALSE(game.threefold());
  play_all(game, shuffle);
  EXPECT_TRUE(game.threefold());
  EXPECT_EQ(game.ending(), Ending::none);
  play_all(game, shuffle);
  play_all(game, shuffle);
  EXPECT_EQ(game.ending(), Ending::fivefold_repetition);
  game.pop();
  EXPECT_EQ(game.repetitions(), 4);
  while (!game.moves().empty()) game.pop();
  EXPECT_EQ(game.board(), Board());
  EXPECT_THROW(game.push(*parse_uci("e2e5")), Error);
  EXPECT_THROW(game.pop(), Error);
}

TEST(ChessGame, RightsAndEnPassantMakeAnotherPosition) {
  Game castling(Board::from_fen("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"));
  play_all(castling, {"h1h2", "h8h7", "h2h1", "h7h8"});
  EXPECT_EQ(castling.repetitions(), 1);
  play_all(castling, {"h1h2", "h8h7", "h2h1", "h7h8"});
  EXPECT_EQ(castling.repetitions(), 2);
  // The first time the pawn could be taken in passing.
  Game passing(Board::from_fen("4k3/8/8/8/4p3/8/3P4/4K3 w - - 0 1"));
  play_all(passing, {"d2d4", "e8d8", "e1d1", "d8e8", "d1e1"});
  EXPECT_EQ(passing.repetitions(), 1);
}

// The key kept move by move is the key of the position read afresh.
TEST(ChessGame, KeyDependsOnThePositionAlone) {
  Board board;
  uint64_t state = 7;
  for (int ply = 0; ply < 2000; ++ply) {
    const MoveList moves = board.legal_moves();
    if (moves.empty() || board.halfmove_clock() > 90) {
      board = Board();
      continue;
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    board.play(moves[(state >> 33) % moves.size()]);
    ASSERT_EQ(Board::from_fen(board.fen()), board) << board.fen();
  }
}

}  // namespace
}  // namespace hearth::chess
