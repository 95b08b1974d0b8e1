// Text of the chess tasks, and golden rewards: every figure is worked out by hand from the weights.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "data_files.h"
#include "sys/error.h"
#include "tasks/chess/rewards.h"
#include "tasks/chess/score.h"

namespace hearth::chess {
namespace {

Move mv(const char* s) { return parse_uci(s).value(); }

Label start_label() {
  return {mv("e2e4"),
          {{mv("e2e4"), 0.45},
           {mv("d2d4"), 0.3},
           {mv("g1f3"), 0.2},
           {mv("c2c4"), -0.1},
           {mv("b1c3"), 0}}};
}
const char* const perfect = " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.45 0.30 0.20 -0.10 0.00 B: e2e4";

TEST(ChessTasks, PolicyTextIsExact) {
  EXPECT_EQ(policy_prompt(Board()), "P: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  EXPECT_EQ(policy_completion(start_label()), perfect);
}

TEST(ChessTasks, EnvironmentTextIsExact) {
  EXPECT_EQ(environment_prompt(Board(), std::vector{mv("e2e4")}),
            "A: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1+e2e4+e2e4+");
  EXPECT_EQ(environment_completion(Board(), mv("e2e4")),
            "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0");
  const Board before_mate =
      Board::from_fen("rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2");
  EXPECT_EQ(environment_completion(before_mate, mv("d8h4")),
            "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3+1+1+0");
  const Board before_draw = Board::from_fen("8/8/4k3/8/8/3p4/3K4/8 w - - 0 60");
  EXPECT_EQ(environment_completion(before_draw, mv("d2d3")),
            "8/8/4k3/8/8/3K4/8/8 b - - 0 60+0.5+1+0");
  EXPECT_EQ(environment_completion(before_draw, mv("d2d4")),
            "8/8/4k3/8/8/3p4/3K4/8 w - - 0 60+0.001+0+1");
  const std::vector<Move> twelve(12, mv("g1f3"));
  EXPECT_EQ(environment_prompt(Board(), twelve).size(),
            environment_prompt(Board(), std::vector(10, mv("g1f3"))).size());
}

TEST(ChessTasks, PromptsAreReadBack) {
  const Prompt p = parse_prompt(policy_prompt(Board()));
  EXPECT_EQ(p.task, Prompt::Task::policy);
  EXPECT_EQ(p.board, Board());
  const Prompt a = parse_prompt(environment_prompt(Board(), std::vector{mv("a2a3"), mv("e2e4")}));
  EXPECT_EQ(a.task, Prompt::Task::environment);
  EXPECT_EQ(a.board, Board());
  EXPECT_EQ(a.move, mv("e2e4"));
  const std::string fen = Board().fen();
  for (const std::string& bad :
       {std::string(), std::string("P:"), "Q: " + fen, std::string("P: nonsense"), "A: " + fen,
        "A: " + fen + "+e2e4+e2e4", "A: " + fen + "+e2e4+d2d4+", "A: " + fen + "+e2e4++",
        "A: " + fen + "+e9e4+e9e4+", "A: " + fen + "+e2e4+e2e4+x"})
    EXPECT_THROW(parse_prompt(bad), Error) << bad;
}

double policy_value(const std::string& completion, const Label& label = start_label()) {
  return policy_reward(Board(), completion, label).value();
}

TEST(ChessRewards, PolicyGoldenCases) {
  const double all = 4 + 2 + 1.5 + 1;
  const auto mapped = [&](double sum, double weights) { return -0.3 + 1.3 * sum / weights; };
  EXPECT_DOUBLE_EQ(policy_value(perfect), 1);
  EXPECT_DOUBLE_EQ(policy_value(std::string(perfect).substr(1) + "\n"), 1);
  // The second-best move as the best.
  EXPECT_DOUBLE_EQ(policy_value(" M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.45 0.3 0.2 -0.1 0 B: d2d4"),
                   mapped(4.5, all));
  // Every evaluation 5 pawns off: MSE 25.
  EXPECT_DOUBLE_EQ(policy_value(" M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 5.45 5.3 5.2 4.9 5 B: e2e4"),
                   mapped(7.5 + 0.75, all));
  // 20 off is as bad as can be, not worse.
  EXPECT_DOUBLE_EQ(policy_value(" M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 99 99 99 99 99 B: e2e4"),
                   mapped(7.5, all));
  // In another order, each with its own evaluation.
  EXPECT_DOUBLE_EQ(policy_value(" M: b1c3 c2c4 e2e4 d2d4 g1f3 E: 0 -0.1 0.45 0.3 0.2 B: e2e4"), 1);
  // Two of five candidates wrong, one of them illegal; theirs count by place (c2c4, b1c3).
  EXPECT_DOUBLE_EQ(policy_value(" M: e2e4 d2d4 g1f3 a2a3 e2e5 E: 0.45 0.3 0.2 -0.1 5 B: e2e4"),
                   mapped(6 + 1.5 * 0.6 + (1 - 25.0 / 5 / 100), all));
  // One move five times.
  EXPECT_DOUBLE_EQ(policy_value(" M: e2e4 e2e4 e2e4 e2e4 e2e4 E: 0.45 0.45 0.45 0.45 0.45 B: e2e4"),
                   mapped(6 + 1.5 * 0.2 + 1, all));
  // Without Stockfish only the form is told; a puzzle tells the best move too.
  const Reward blind = policy_reward(Board(), perfect, {});
  EXPECT_DOUBLE_EQ(blind.value(), 1);
  EXPECT_FALSE(blind.score("best") || blind.score("candidates") || blind.score("evaluations"));
  EXPECT_DOUBLE_EQ(policy_value(perfect, {mv("d2d4"), {}}), mapped(2, 6));
  EXPECT_DOUBLE_EQ(policy_value("", {mv("d2d4"), {}}), -0.3);
}

TEST(ChessRewards, PolicyTextOutOfFormHasTheLeastReward) {
  for (const char* bad :
       {"", " ", "M:", "e2e4", " M: e2e4 d2d4 g1f3 c2c4 E: 0 0 0 0 B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 0", " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 0 B:",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 nan B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 1e9 B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 - B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 1.2.3 B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 00000000000 B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3  E: 0 0 0 0 0 B: e2e4",
        " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 0 B: e2e4 and more",
        " M: e4 d2d4 g1f3 c2c4 b1c3 E: 0 0 0 0 0 B: e2e4"})
    EXPECT_DOUBLE_EQ(policy_value(bad), -0.3) << bad;
}

TEST(ChessRewards, EnvironmentGoldenCases) {
  const std::string truth = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1";
  const auto value = [](const std::string& text) {
    return environment_reward(Board(), mv("e2e4"), text).value();
  };
  EXPECT_DOUBLE_EQ(value(truth + "+0.001+0+0"), 1);
  EXPECT_DOUBLE_EQ(value(truth + "+0.0010+0+0\n"), 1);
  EXPECT_DOUBLE_EQ(value(truth + "+0.5+0+0"), -0.3 + 1.3 * 0.9);
  EXPECT_DOUBLE_EQ(value(truth + "+0.001+1+0"), -0.3 + 1.3 * 0.9);
  EXPECT_DOUBLE_EQ(value(truth + "+0.001+1+1"), -0.3 + 1.3 * 0.8);
  // One letter of 58 wrong (e3 for -, which is two): distance 2 in 59.
  ASSERT_EQ(truth.size(), 58u);
  const std::string other = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1";
  const double likeness = 1 - 2.0 / 59;
  EXPECT_DOUBLE_EQ(value(other + "+0.001+0+0"), -0.3 + 1.3 * (7 + 3 * likeness * likeness) / 10);
  for (const std::string& bad :
       {std::string(), truth, truth + "+0.001+0", truth + "+0.001+0+0+",
        truth + "+0.001+false+false", truth + "+inf+0+0", truth + "+nan+0+0",
        std::string("+0.001+0+0"), std::string("no position+0.001+0+0"),
        truth + "+0.001+0+0 and more", std::string(600, '8') + "+0.001+0+0"})
    EXPECT_DOUBLE_EQ(value(bad), -0.3) << bad;
}

TEST(ChessRewards, AnyTextHasAFiniteReward) {
  std::mt19937 random(5);
  const std::string right[] = {perfect, environment_completion(Board(), mv("e2e4"))};
  const Prompt prompts[] = {{Prompt::Task::policy, Board(), mv("a2a3")},
                            {Prompt::Task::environment, Board(), mv("e2e4")}};
  for (int round = 0; round < 20000; ++round) {
    const size_t task = random() % 2;
    std::string text = right[task];
    for (unsigned edits = random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2)
        text[at] = char(random());
      else
        text.insert(at, text.substr(random() % text.size(), random() % 40));
    }
    const double value = chess_reward(prompts[task], text, start_label()).value();
    ASSERT_TRUE(std::isfinite(value) && value >= -0.3 - 1e-12 && value <= 1 + 1e-12) << text;
  }
}

TEST(ChessScores, RatesOfAFile) {
  const TemporaryFolder folder;
  const std::string fen = Board().fen();
  const auto row = [&](nlohmann::json j) { return j.dump() + "\n"; };
  const std::string a = environment_prompt(Board(), std::vector{mv("e2e4")});
  const std::string right = environment_completion(Board(), mv("e2e4"));
  put_file(folder / "rows.jsonl",
           row({{"prompt", "P: " + fen}, {"completion", perfect}, {"reference", perfect}}) +
               row({{"prompt", "P: " + fen}, {"completion", perfect}, {"best", "d2d4"}}) +
               row({{"prompt", "P: " + fen}, {"completion", perfect}}) +
               row({{"prompt", "P: " + fen}, {"completion", "? B: e2e4 "}, {"best", "d2d4"}}) +
               row({{"prompt", a}, {"completion", right}}) +
               row({{"prompt", a}, {"completion", right.substr(0, right.size() - 1) + "1"}}));
  const ScoredFile scored = score_file(folder / "rows.jsonl", nullptr);
  EXPECT_EQ(scored.unlabelled, 1);
  const auto j = scored.scores.json();
  EXPECT_EQ(j["policy"]["rows"], 4);
  EXPECT_EQ(j["policy"]["legal"], 0.75);
  EXPECT_EQ(j["policy"]["legal_move"], 1.0);
  EXPECT_EQ(j["policy"]["legal_candidates"], 0.75);
  EXPECT_EQ(j["policy"]["format"], 0.75);
  EXPECT_EQ(j["policy"]["best_known"], 3);
  EXPECT_DOUBLE_EQ(j["policy"]["best"].get<double>(), 1.0 / 3);
  EXPECT_EQ(j["policy"]["candidates"], 1.0);
  EXPECT_EQ(j["environment"]["rows"], 2);
  EXPECT_EQ(j["environment"]["exact"], 0.5);
  EXPECT_EQ(j["environment"]["fen"], 1.0);
  EXPECT_EQ(j["environment"]["flags"], 0.75);
  EXPECT_TRUE(Scores().json()["policy"]["best"].is_null());
}

TEST(ChessScores, BadRowsNameTheirLine) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& line) {
    put_file(folder / "rows.jsonl", "\n" + line + "\n");
    return error_of([&] { score_file(folder / "rows.jsonl", nullptr); });
  };
  EXPECT_TRUE(mentions(error("[]"), {"rows.jsonl:2", "an object"}));
  EXPECT_TRUE(mentions(error("{"), {"rows.jsonl:2", "valid JSON"}));
  EXPECT_TRUE(mentions(error(R"({"prompt": "P: x"})"), {"rows.jsonl:2", "6 fields"}));
  EXPECT_TRUE(mentions(error(R"({"prompt": 3})"), {"rows.jsonl:2", "prompt"}));
  const std::string p = R"({"prompt": "P: )" + Board().fen() + R"(", "completion": "", )";
  EXPECT_TRUE(mentions(error(p + R"("best": "e2e5"})"), {"rows.jsonl:2", "legal"}));
  EXPECT_TRUE(
      mentions(error(p + R"("reference": "M:"})"), {"rows.jsonl:2", "in the format of the task"}));
}

}  // namespace
}  // namespace hearth::chess
