// hearth grpo from the outside: runs that say the same bytes again, what they log and leave out,
// calls that are refused.
#include <fmt/format.h>

#include <map>

#include "e2e/grpo_sums.h"
#include "formats/checkpoint_dir.h"
#include "rewards/answers.h"
#include "rewards/regex.h"

namespace hearth {
namespace {

TEST(GrpoCommand, LogsEveryStepAndTheGapIsZero) {
  const Sums& s = sums();
  const nlohmann::json r = json_of(run(s.folder, s.grpo("plain", 8)));
  EXPECT_EQ(r["steps"], 8);
  EXPECT_EQ(r["updates"], 32);
  EXPECT_EQ(r["completions"], 128);
  EXPECT_EQ(r["logprob_gap_max"], 0.0);
  int steps = 0, evaluations = 0;
  for (const nlohmann::json& line : lines_of(s.log("plain"))) {
    evaluations += line.contains("eval_exact");
    if (!line.contains("reward")) continue;
    ++steps;
    for (const char* key :
         {"reward_std", "equal_groups", "length", "truncated", "kl", "entropy", "clip_low",
          "clip_high", "logprob_gap_max", "logprob_gap_mean", "lr", "grad_norm", "version"})
      EXPECT_TRUE(line.contains(key)) << key;
    EXPECT_EQ(line["logprob_gap_max"], 0.0);
    EXPECT_EQ(line["version"], 4 * steps);
  }
  EXPECT_EQ(steps, 8);
  EXPECT_EQ(evaluations, 3);  // at 0, 4 and 8
  for (const nlohmann::json& line : lines_of(read_file(s.path("plain") + "/perf.jsonl")))
    for (const char* key :
         {"reward_wait_ms", "train_ms", "rollout_tokens_per_s", "train_tokens_per_s", "score_ms"})
      EXPECT_EQ(line.contains(key), line.contains("rollout_ms")) << key;
}

// Two groups of each step, with the log-probabilities of two completions of each.
TEST(GrpoCommand, ShowsSomeOfItsRollouts) {
  const Sums& s = sums();
  json_of(run(s.folder, s.grpo("shown", 3)));
  const auto lines = lines_of(read_file(s.path("shown") + "/rollouts.jsonl"));
  ASSERT_EQ(lines.size(), 3u * 2 * 4);
  std::map<int, int> of_step;
  for (const nlohmann::json& r : lines) {
    ++of_step[r.at("step")];
    EXPECT_FALSE(r.at("prompt").get<std::string>().empty());
    EXPECT_TRUE(r.at("reward") == 0 || r.at("reward") == 1) << r;
    EXPECT_TRUE(r.at("advantage").is_number());
    if (r.at("index") > 1) {
      EXPECT_FALSE(r.contains("logprobs"));
      continue;
    }
    ASSERT_EQ(r.at("logprobs").size(), r.at("tokens"));
    std::string text;
    for (const auto& t : r.at("token_texts")) text += t.get<std::string>();
    EXPECT_TRUE(text.starts_with(r.at("completion").get<std::string>())) << r;
    for (const double x : r.at("logprobs")) EXPECT_LE(x, 0);
  }
  EXPECT_EQ(of_step, (std::map<int, int>{{1, 8}, {2, 8}, {3, 8}}));
}

TEST(GrpoCommand, ThreadsAndBatchesOfRolloutsChangeNothing) {
  const Sums& s = sums();
  json_of(run(s.folder, s.grpo("two", 4)));
  Arguments other = s.grpo("one", 4) + Arguments{"--rollout-batch", "3", "--reward-workers", "5"};
  for (size_t i = 0; i + 1 < other.size(); ++i)
    if (other[i] == "--threads") other[i + 1] = "1";
  json_of(run(s.folder, other));
  EXPECT_EQ(s.log("one"), s.log("two"));
}

TEST(GrpoCommand, AProgramThatFailsEndsTheRunByTheLimit) {
  const Sums& s = sums();
  // It answers the question before the run and nothing after it.
  const std::string broken = reward_script(s.folder, "broken", R"(read -r line
[ -e "$0.asked" ] && exit 1
touch "$0.asked"
echo '{"id":1,"reward":0}'
read -r line
exit 1
)");
  const auto with = [&](const std::string& name, const std::string& program, const char* limit) {
    Arguments a = s.grpo(name, 2);
    for (std::string& x : a)
      if (x == "exact") x = "program:" + program;
    fs::remove(program + ".asked");
    return a + Arguments{"--reward-failures", limit, "--eval-every", "0", "--eval-data", ""};
  };
  const Ran stopped = run(s.folder, with("stopped", broken, "5"));
  EXPECT_EQ(stopped.status, 1);
  EXPECT_NE(stopped.err.find("completions got no reward"), std::string::npos) << stopped.err;
  EXPECT_NE(stopped.err.find(broken), std::string::npos) << stopped.err;
  const Ran went_on = run(s.folder, with("goes_on", broken, "-1"));
  EXPECT_EQ(went_on.status, 1);  // a run without a reward is no success
  EXPECT_NE(went_on.err.find("not one of 32 completions had a reward"), std::string::npos)
      << went_on.err;
  int steps = 0;
  for (const nlohmann::json& line : lines_of(s.log("goes_on"))) {
    if (!line.contains("loss")) continue;
    ++steps;
    EXPECT_EQ(line.at("unrewarded"), 16);
    for (const char* key : {"reward", "entropy", "logprob_gap_max"})
      EXPECT_TRUE(line.at(key).is_null()) << key;  // nothing was had or measured: no zero
  }
  EXPECT_EQ(steps, 2);
  // 16 failures a step: the limit of 20 is the run's, not the process's.
  const Arguments halves = with("halves", broken, "20");
  const Ran first = run(s.folder, halves + Arguments{"--stop-after-step", "1"});
  EXPECT_NE(first.err.find("not one of 16 completions had a reward"), std::string::npos)
      << first.err;
  fs::remove(broken + ".asked");
  const Ran second = run(s.folder, halves + Arguments{"--resume"});
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.err.find("completions got no reward"), std::string::npos) << second.err;
}

// What is right is the reward's to say; the best evaluation is kept.
TEST(GrpoCommand, CountsTheAnswersOfItsReward) {
  const Sums& s = sums();
  json_of(run(s.folder, {"sft", "--model", s.path("base"), "--run", s.path("taught"), "--data",
                         s.path("sums/sft.jsonl"), "--lr", "1e-2", "--steps", "60", "--threads",
                         "2", "--dtype", "fp32", "--json"}));
  const auto from_taught = [&](Arguments a) {
    for (std::string& x : a)
      if (x == s.path("base")) x = s.path("taught");
    return a;
  };
  // Worked answers that end in what the model says before it learns more.
  json_of(
      run(s.folder, from_taught(s.grpo("asked", 0)) +
                        Arguments{"--eval-data", s.path("sums/prompts.jsonl"), "--eval-write"}));
  std::ofstream worded(s.folder / "worded.jsonl");
  for (const nlohmann::json& row : lines_of(read_file(s.folder / "asked/eval-0.jsonl")))
    if (const auto n = answer_number(row.at("completion").get<std::string>()))
      worded << nlohmann::json{{"prompt", row.at("prompt")}, {"answer", "so\n#### " + *n}}.dump()
             << "\n";
  worded.close();
  Arguments a = from_taught(s.grpo("numeric", 8)) +
                Arguments{"--eval-data", s.path("worded.jsonl"), "--lr", "1e-5"};
  for (std::string& x : a)
    if (x == "exact") x = "numeric";
  json_of(run(s.folder, a));
  double most = -1;
  int64_t best = 0;
  for (const nlohmann::json& line : lines_of(s.log("numeric"))) {
    if (!line.contains("eval_reward")) continue;
    EXPECT_EQ(line.at("eval_exact"), line.at("eval_reward"));
    const double reward = line["eval_reward"];
    if (line["step"] == 0) { EXPECT_EQ(reward, 1); }
    if (line["step"] > 0 && reward > most) most = reward, best = line["step"];
  }
  EXPECT_GT(most, 0);
  EXPECT_EQ(fs::read_symlink(s.path("numeric") + "/best").filename(), step_name(best));
}

TEST(GrpoCommand, LeavesOutWhatDoesNotFitAndSaysSo) {
  const Sums& s = sums();
  std::ofstream(s.folder / "long.jsonl")
      << read_file(s.folder / "sums/prompts.jsonl")
      << nlohmann::json{{"prompt", std::string(200, '1')}, {"answer", "1"}}.dump() << "\n";
  Arguments a = s.grpo("long", 1);
  for (std::string& x : a)
    if (x == s.path("sums/prompts.jsonl")) x = s.path("long.jsonl");
  const Ran r = run(s.folder, a + Arguments{"--stop", "[END]"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("1 of "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("left out"), std::string::npos) << r.err;
  // And what is in brackets is a string like any other.
  EXPECT_NE(read_file(s.folder / "long/config.toml").find("stop = [\"[END]\"]"), std::string::npos);
}

TEST(GrpoCommand, RepeatedPromptsAreSaidOnce) {
  const Sums& s = sums();
  std::ofstream few(s.folder / "few.jsonl");
  for (const nlohmann::json& row : lines_of(read_file(s.folder / "sums/prompts.jsonl")))
    if (few.tellp() < 100) few << row.dump() << "\n";
  few.close();
  const size_t rows = lines_of(read_file(s.folder / "few.jsonl")).size();
  const Arguments a = s.grpo("few", 2) + Arguments{"--data",       s.path("few.jsonl"),
                                                   "--prompts",    std::to_string(rows + 1),
                                                   "--eval-every", "0"};
  const Ran r = run(s.folder, a);
  EXPECT_EQ(r.status, 0) << r.err;
  const std::string said =
      fmt::format("--prompts {} is more than the {} prompts of ", rows + 1, rows);
  const size_t at = r.err.find(said);
  ASSERT_NE(at, std::string::npos) << r.err;
  EXPECT_EQ(r.err.find(said, at + 1), std::string::npos) << r.err;
}

TEST(GrpoCommand, ACurriculumGoesFromEasyToHard) {
  const Sums& s = sums();
  std::ofstream rated(s.folder / "rated.jsonl");
  int rows = 0;
  for (const nlohmann::json& row : lines_of(read_file(s.folder / "sums/prompts.jsonl"))) {
    if (++rows > 20) break;
    nlohmann::json with = row;
    with["rating"] = (rows * 7) % 20;
    rated << with.dump() << "\n";
  }
  rated.close();
  const auto args = [&](const char* field) {
    Arguments a = s.grpo(std::string("by-") + field, 5) +
                  Arguments{"--curriculum", field, "--sample-every", "1", "--eval-every", "0"};
    for (std::string& x : a)
      if (x == s.path("sums/prompts.jsonl")) x = s.path("rated.jsonl");
    return a;
  };
  expect_error(run(s.folder, args("score")), 1, "rated.jsonl:");
  json_of(run(s.folder, args("rating")));
  std::map<std::string, int> rating;
  for (const nlohmann::json& row : lines_of(read_file(s.folder / "rated.jsonl")))
    rating[row["prompt"]] = row["rating"];
  std::vector<int> first;  // of each step, four prompts apart
  for (const nlohmann::json& line : lines_of(read_file(s.path("by-rating") + "/samples.jsonl"))) {
    const std::string text = line["text"];
    first.push_back(rating.at(text.substr(0, text.find('\n'))));
  }
  EXPECT_EQ(first, (std::vector<int>{0, 4, 8, 12, 16}));
}

TEST(GrpoCommand, BadCallsAreOneLineAndLeaveNoFolder) {
  const Sums& s = sums();
  const auto changed = [&](const std::string& from, const std::string& to) {
    Arguments a = s.grpo("bad", 2);
    for (std::string& x : a)
      if (x == from) x = to;
    return a;
  };
  expect_error(run(s.folder, changed("exact", "exakt")), 2, "nearest is exact");
  for (const std::string command : {"foo.py", "./judge@0.5", "python3 judge.py"})
    expect_error(run(s.folder, changed("exact", command)), 2,
                 "; a program is given as program:" + command + "\n");
  expect_error(run(s.folder, changed("exact", "regex:a(b")), 2,
               *regex_library() ? "got \"a(b\": missing closing parenthesis" : "libpcre2-dev");
  expect_error(run(s.folder, changed(s.path("base"), s.path("nothing"))), 1, "nothing");
  expect_error(run(s.folder, changed(s.path("sums/prompts.jsonl"), s.path("no.jsonl"))), 1,
               "no.jsonl");
  expect_error(run(s.folder, changed("exact", "chess")), 1, "prompts.jsonl:1");
  expect_error(run(s.folder, s.grpo("bad", 0) + Arguments{"--eval-data", "", "--eval-every", "0"}),
               2, "expected 1 or more, or --eval-data");
  expect_error(run(s.folder, s.grpo("bad", 2) + Arguments{"--max-completion", "100000"}), 2,
               "[--max-completion] expected 1 to the model's 32 tokens, got 100000");
  // A step that no memory holds: 2^36 completions.
  expect_error(
      run(s.folder, s.grpo("bad", 2) + Arguments{"--prompts", "1048576", "--group", "65536"}), 2,
      "lower --prompts, --group or --max-completion");
  EXPECT_FALSE(fs::exists(s.path("bad")));
  json_of(run(s.folder, s.grpo("other", 2)));
  expect_error(run(s.folder, s.grpo("other", 2)), 1, "--resume");
  expect_error(run(s.folder, s.grpo("other", 4) + Arguments{"--resume", "--group", "8"}), 1,
               "group");
}

TEST(GrpoCommand, BenchPrintsItsSplit) {
  const Folder folder;
  const nlohmann::json r =
      json_of(run(folder, {"bench", "grpo", "--preset", "tiny", "--prompts", "2", "--group", "2",
                           "--max-completion", "4", "--prompt-tokens", "5", "--vocab", "300",
                           "--repeats", "1", "--warmup-steps", "1", "--json"}));
  EXPECT_EQ(r["unit"], "completion tokens/s");
  EXPECT_EQ(r["logprob_gap_max"], 0.0);
  for (const char* key : {"rollout_tokens_per_s", "train_tokens_per_s", "step_ms", "rollout_ms",
                          "train_ms", "score_ms", "reward_wait_ms"})
    EXPECT_TRUE(r.contains(key)) << key;
}

}  // namespace
}  // namespace hearth
