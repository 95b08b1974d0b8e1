#include <algorithm>
#include <cmath>

#include "fuzz.h"
#include "tasks/chess/split.h"
#include "tasks/chess/uci_reply.h"

using namespace hearth::chess;

// Replies of an engine asked about the start position.
int fuzz_uci(const uint8_t* data, size_t size) {
  UciReply reply(Board(), 5);
  UciReply::State state = UciReply::State::more;
  for (const std::string_view line : split(hearth::fuzz::text_of(data, size), '\n')) {
    state = reply.feed(line);
    if (state != UciReply::State::more) break;
  }
  if (state != UciReply::State::done) return 0;
  const Label& label = reply.label();
  hearth::fuzz::require(label.candidates.size() == 5 && label.best == label.candidates[0].move);
  for (const Candidate& c : label.candidates)
    hearth::fuzz::require(Board().is_legal(c.move) && std::abs(c.pawns) <= largest_evaluation);
  return 1;
}

hearth::fuzz::Seeds seeds_uci() {
  std::string text;
  int rank = 0;
  for (const char* move : {"e2e4", "d2d4", "g1f3", "c2c4", "b1c3"})
    text += "info depth 5 seldepth 6 multipv " + std::to_string(++rank) +
            " score cp 30 nodes 900 nps 1000 hashfull 1 tbhits 0 time 4 pv " + move + " e7e5\n";
  return {text + "bestmove e2e4 ponder e7e5",
          "info string hello\ninfo depth 1 currmove e2e4 currmovenumber 1\n" + text +
              "info multipv 5 score mate -3 upperbound pv b1c3\nbestmove e2e4"};
}

int fuzz_fen(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const Board board = Board::from_fen(hearth::fuzz::text_of(data, size));
    hearth::fuzz::require(Board::from_fen(board.fen()) == board);
    for (const Move m : board.legal_moves()) {
      const Board next = board.after(m);
      hearth::fuzz::require(next.turn() != board.turn() && parse_uci(uci(m)) == m);
      (void)next.legal_moves();
    }
  });
}

hearth::fuzz::Seeds seeds_fen() {
  return {Board().fen(), "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
          "8/8/1k6/2b5/2pP4/8/5K2/8 b - d3 0 1", "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 99 400"};
}
