// The UCI side: replies read strictly, and a pool that outlives engines which die, hang or lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "data_files.h"
#include "sys/error.h"
#include "sys/process/line_process.h"
#include "tasks/chess/stockfish.h"
#include "tasks/chess/uci_reply.h"

namespace hearth::chess {
namespace {

const std::vector<std::string> good_reply = {
    "info string NNUE evaluation using nn.nnue enabled",
    "info depth 1 seldepth 1 multipv 1 score cp 18 nodes 20 nps 2000 tbhits 0 time 10 pv g1f3",
    "info depth 2 seldepth 3 multipv 1 score cp 45 nodes 90 nps 9000 hashfull 1 time 10 pv e2e4 "
    "e7e5",
    "info depth 2 multipv 2 score cp 30 lowerbound nodes 90 pv d2d4",
    "info depth 2 multipv 3 score cp -7 nodes 90 pv g1f3 d7d5",
    "info depth 2 multipv 4 score mate 3 nodes 90 pv c2c4",
    "info depth 2 multipv 5 score mate -2 nodes 90 pv g2g3",
    "info depth 3 currmove e2e4 currmovenumber 1",
    "bestmove e2e4 ponder e7e5",
};

UciReply::State read_all(UciReply& reply, const std::vector<std::string>& lines) {
  UciReply::State state = UciReply::State::more;
  for (const std::string& line : lines) {
    if (state != UciReply::State::more) break;
    state = reply.feed(line);
  }
  return state;
}

TEST(UciReply, TakesTheLastScoreOfEachRank) {
  UciReply reply(Board(), 5);
  ASSERT_EQ(read_all(reply, good_reply), UciReply::State::done);
  const auto m = [](const char* s) { return *parse_uci(s); };
  EXPECT_EQ(reply.label().best, m("e2e4"));
  const std::vector<Candidate> wanted = {
      {m("e2e4"), 0.45}, {m("d2d4"), 0.3}, {m("g1f3"), -0.07}, {m("c2c4"), 10}, {m("g2g3"), -10}};
  EXPECT_EQ(reply.label().candidates, wanted);
  EXPECT_EQ(reply.feed("bestmove e2e4"), UciReply::State::bad);  // it was done
}

TEST(UciReply, FewerLegalMovesAreFewerCandidates) {
  UciReply reply(Board::from_fen("k7/8/2Q5/8/8/8/8/K7 b - - 0 1"), 5);
  EXPECT_EQ(reply.feed("info depth 1 multipv 3 score cp -900 pv a8a7"), UciReply::State::bad);
  UciReply two(Board::from_fen("k7/8/2Q5/8/8/8/8/K7 b - - 0 1"), 5);
  EXPECT_EQ(read_all(two, {"info multipv 1 score cp -900 pv a8a7",
                           "info multipv 2 score cp -5000 pv a8b8", "bestmove a8a7"}),
            UciReply::State::done);
  EXPECT_EQ(two.label().candidates[1].pawns, -10);
}

TEST(UciReply, RefusesWhatIsNoReply) {
  for (const char* line : {"",
                           "hello",
                           "bestmove",
                           "bestmove e2e4",
                           "bestmove (none)",
                           "readyok",
                           "info depth x",
                           "info depth",
                           "info score",
                           "info score cp",
                           "info score cp 1e3 pv e2e4",
                           "info score cp 99999999 pv e2e4",
                           "info score wp 3 pv e2e4",
                           "info score cp 3 pv",
                           "info score cp 3 pv e2e5",
                           "info pv e2e4",
                           "info multipv 0 score cp 1 pv e2e4",
                           "info multipv 6 score cp 1 pv e2e4",
                           "info multipv 99999999999999999999 score cp 1 pv e2e4",
                           "info colour blue",
                           "info wdl 1 2",
                           "Info depth 3"}) {
    UciReply reply(Board(), 5);
    EXPECT_EQ(reply.feed(line), UciReply::State::bad) << line;
  }
  const auto with = [](size_t at, std::string line) {
    std::vector<std::string> lines = good_reply;
    lines[at] = std::move(line);
    UciReply reply(Board(), 5);
    return read_all(reply, lines);
  };
  EXPECT_EQ(with(8, "bestmove d2d4"), UciReply::State::bad);                      // not rank 1
  EXPECT_EQ(with(3, "info depth 2"), UciReply::State::bad);                       // no rank 2
  EXPECT_EQ(with(3, "info multipv 2 score cp 3 pv e2e4"), UciReply::State::bad);  // twice
  EXPECT_EQ(with(3, "info string " + std::string(1 << 17, 'x')), UciReply::State::bad);
}

// Any bytes may come out of a pipe: a reply that is taken is a whole one.
TEST(UciReply, MutatedRepliesNeverGiveABrokenLabel) {
  std::mt19937 random(1);
  const Board board;
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (const std::string& line : good_reply) text += line + "\n";
    for (unsigned edits = random() % 6; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = char(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
          break;
        default:
          text.insert(at, std::to_string(uint64_t(random()) * random()));
          break;
      }
      if (text.empty()) text = "\n";
    }
    UciReply reply(board, 5);
    UciReply::State state = UciReply::State::more;
    for (size_t begin = 0; begin < text.size() && state == UciReply::State::more;) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      state = reply.feed(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
    if (state != UciReply::State::done) continue;
    ++taken;
    const Label& label = reply.label();
    ASSERT_EQ(label.candidates.size(), 5u);
    ASSERT_EQ(label.best, label.candidates[0].move);
    for (const Candidate& c : label.candidates) {
      ASSERT_TRUE(board.is_legal(c.move));
      ASSERT_LE(std::abs(c.pawns), largest_evaluation);
    }
  }
  EXPECT_GT(taken, 2000);   // those without an edit at least
  EXPECT_LT(taken, 19000);  // and most edits tell
}

// A shell script that plays an engine: the first `bad` processes misbehave as told, later ones do
// not. It knows the start position only.
class FakeEngine {
 public:
  FakeEngine(const std::string& behaviour, int bad) : path_(folder_ / "engine") {
    put_file(path_, R"(#!/bin/sh
starts=$(($(cat "$0.starts" 2>/dev/null || echo 0) + 1))
echo $starts > "$0.starts"
echo $$ > "$0.pid"
behaviour=$(cat "$0.behaviour")
[ $starts -gt $(cat "$0.bad") ] && behaviour=good
infos() {
  rank=0
  for move in e2e4 d2d4 g1f3 c2c4 b1c3; do
    rank=$((rank + 1))
    echo "info depth 5 multipv $rank score cp $((50 - rank)) nodes 9 pv $move"
  done
}
[ $behaviour = mute ] && exec sleep 600
while read -r line; do
  case $line in
    uci) echo "Fake 1.0"; [ $behaviour = stranger ] && exit 0; echo "id name fake"; echo uciok ;;
    isready) echo readyok ;;
    go*)
      case $behaviour in
        dies) exit 3 ;;
        killed) infos; kill -9 $$ ;;
        hangs) infos; sleep 600 ;;
        rubbish) echo "I would play e2e4" ;;
        disorder) echo "bestmove e2e4"; infos ;;
        illegal) infos; echo "bestmove e2e5" ;;
        endless) while :; do echo "info depth 1"; done ;;
        *) infos; echo "bestmove e2e4 ponder e7e5" ;;
      esac ;;
  esac
done
)");
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
    put_file(path_.string() + ".behaviour", behaviour);
    put_file(path_.string() + ".bad", std::to_string(bad));
  }
  StockfishSpec spec(double timeout_s = 20) const {
    return {.program = path_, .processes = 1, .timeout_s = timeout_s};
  }
  int starts() const { return std::stoi(get_file(path_.string() + ".starts")); }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

const std::vector<Board> three_starts(3);

struct Fault {
  const char* behaviour;
  int64_t StockfishCounts::*counted;
  double timeout_s;
};
class StockfishFault : public ::testing::TestWithParam<Fault> {};

TEST_P(StockfishFault, IsCountedAndTheProcessReplaced) {
  const FakeEngine engine(GetParam().behaviour, 2);
  StockfishPool pool(engine.spec(GetParam().timeout_s));
  const std::vector<Label> labels = pool.label(three_starts);
  for (const Label& label : labels) {
    ASSERT_TRUE(label.best);
    EXPECT_EQ(uci(*label.best), "e2e4");
    EXPECT_EQ(label.candidates.size(), 5u);
  }
  const StockfishCounts c = pool.counts();
  EXPECT_EQ(c.*GetParam().counted, 2);
  EXPECT_EQ(c.died + c.hung + c.rubbish, 2);
  EXPECT_EQ(c.replaced, 2);
  EXPECT_EQ(c.answered, 3);
  EXPECT_EQ(c.failed, 0);
  EXPECT_EQ(engine.starts(), 3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StockfishFault,
                         ::testing::Values(Fault{"dies", &StockfishCounts::died, 20},
                                           Fault{"killed", &StockfishCounts::died, 20},
                                           Fault{"hangs", &StockfishCounts::hung, 2},
                                           Fault{"endless", &StockfishCounts::hung, 2},
                                           Fault{"rubbish", &StockfishCounts::rubbish, 20},
                                           Fault{"disorder", &StockfishCounts::rubbish, 20},
                                           Fault{"illegal", &StockfishCounts::rubbish, 20}),
                         [](const auto& i) { return std::string(i.param.behaviour); });

TEST(StockfishPool, PositionsWithoutAnAnswerAreCountedAndEndInAnError) {
  const FakeEngine engine("rubbish", 1000);
  StockfishSpec spec = engine.spec();
  spec.max_failures = 3;
  StockfishPool pool(spec);
  EXPECT_EQ(pool.label(three_starts), std::vector<Label>(3));
  EXPECT_EQ(pool.counts().failed, 3);
  EXPECT_EQ(pool.counts().rubbish, 9);
  EXPECT_TRUE(
      mentions(error_of([&] { pool.label(three_starts); }), {"4 positions", "invalid answers"}));
}

TEST(StockfishPool, OneThatCannotBeStartedAgainIsCounted) {
  const FakeEngine engine("dies", 1000);
  StockfishSpec spec = engine.spec();
  spec.max_failures = -1;
  StockfishPool pool(spec);
  std::filesystem::remove(spec.program);
  EXPECT_EQ(pool.label(three_starts), std::vector<Label>(3));
  const StockfishCounts c = pool.counts();
  EXPECT_EQ(c.failed, 3);
  EXPECT_EQ(c.died, 1);
  EXPECT_EQ(c.missing, 8);
}

TEST(StockfishPool, WhatIsNoEngineIsAnError) {
  EXPECT_TRUE(mentions(error_of([] { StockfishPool pool({.program = "/nowhere/stockfish"}); }),
                       {"/nowhere/stockfish", "No such file"}));
  for (const char* behaviour : {"stranger", "mute"}) {
    const FakeEngine engine(behaviour, 1);
    EXPECT_TRUE(mentions(error_of([&] { StockfishPool pool(engine.spec(2)); }), {"UCI engine"}));
  }
  EXPECT_EQ(open_stockfish("none", {}), nullptr);
}

TEST(StockfishPool, NoLegalMoveIsNoQuestion) {
  const FakeEngine engine("good", 0);
  StockfishPool pool(engine.spec());
  const Board mated =
      Board::from_fen("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3");
  EXPECT_EQ(pool.label(std::vector<Board>{mated})[0], Label());
  EXPECT_EQ(pool.counts().answered, 0);
}

TEST(StockfishPool, AnswersDependOnThePositionAlone) {
  const auto program = find_stockfish();
  if (!program) GTEST_SKIP() << "needs stockfish (scripts/packages installs it)";
  std::vector<Board> boards(1);
  for (const char* m : {"e2e4", "c7c5", "g1f3", "d7d6", "d2d4", "c5d4", "f3d4", "g8f6"})
    boards.push_back(boards.back().after(*parse_uci(m)));
  StockfishPool one({.program = *program, .processes = 1, .nodes = 1000});
  StockfishPool two({.program = *program, .processes = 2, .nodes = 1000});
  const std::vector<Label> forward = one.label(boards);
  std::reverse(boards.begin(), boards.end());
  std::vector<Label> backward = two.label(boards);
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  for (const Label& label : forward) EXPECT_EQ(label.candidates.size(), 5u);
  EXPECT_EQ(one.counts().rubbish + two.counts().rubbish, 0);
}

TEST(LineProcess, SaysAndHearsWholeLines) {
  LineProcess cat("/bin/cat");
  std::string line;
  EXPECT_EQ(cat.say("one", deadline_in(20)), LineProcess::Heard::line);
  EXPECT_EQ(cat.say("two\r", deadline_in(20)), LineProcess::Heard::line);
  EXPECT_EQ(cat.hear(line, deadline_in(20)), LineProcess::Heard::line);
  EXPECT_EQ(line, "one");
  EXPECT_EQ(cat.hear(line, deadline_in(20)), LineProcess::Heard::line);
  EXPECT_EQ(line, "two");
  EXPECT_EQ(cat.hear(line, deadline_in(0.01)), LineProcess::Heard::late);
}

TEST(LineProcess, TellsTheEndAndALineWithoutEnd) {
  LineProcess gone("/bin/true");
  std::string line;
  EXPECT_EQ(gone.hear(line, deadline_in(20)), LineProcess::Heard::ended);
  // No signal kills us for writing to it.
  EXPECT_EQ(gone.say("anyone?", deadline_in(20)), LineProcess::Heard::ended);
  LineProcess zeros("/bin/cat", {"/dev/zero"});
  EXPECT_EQ(zeros.hear(line, deadline_in(60)), LineProcess::Heard::too_long);
  LineProcess deaf("/bin/sleep", {"600"});
  EXPECT_EQ(deaf.say(std::string(1 << 24, 'x'), deadline_in(0.1)), LineProcess::Heard::late);
}

// In a session of its own and orphaned at once: no process group and no parent leads to it.
TEST(LineProcess, EndsWhatItsProgramHasDetached) {
  std::string line;
  {
    LineProcess p("/bin/sh", {"-c",
                              "(setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &) ; exec "
                              "sleep 600 >/dev/null"});
    ASSERT_EQ(p.hear(line, deadline_in(20)), LineProcess::Heard::line);
    ASSERT_EQ(kill(pid_t(std::stoi(line)), 0), 0);
    ASSERT_EQ(kill(p.pid(), 0), 0);
  }
  EXPECT_NE(kill(pid_t(std::stoi(line)), 0), 0);
}

TEST(LineProcess, SaysWhyAProgramCannotBeStarted) {
  std::string what;
  try {
    LineProcess p("/no/such/program");
  } catch (const Error& e) { what = e.what(); }
  EXPECT_NE(what.find("/no/such/program"), what.npos) << what;
  EXPECT_NE(what.find("No such file"), what.npos) << what;
}

}  // namespace
}  // namespace hearth::chess
