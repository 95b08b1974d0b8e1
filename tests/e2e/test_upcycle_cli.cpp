// A dense model becomes one with experts by a command, says the same and goes on training.
#include <fmt/format.h>

#include "e2e/short_runs.h"

namespace hearth {
namespace {

TEST(UpcycleCommand, SaysWhatTheDenseModelSaysAndTrainsOn) {
  const ShortRuns runs;
  const fs::path dense = runs.folder / "dense", experts = runs.folder / "experts";
  const Ran made = run(runs.folder, runs.arguments("pretrain", dense));
  ASSERT_EQ(made.status, 0) << made.err;
  const Ran converted =
      run(runs.folder, {"convert", "--from", dense.string(), "--upcycle-moe", "8", "--granularity",
                        "2", "--top-k", "4", "--to", experts.string(), "--json"});
  ASSERT_EQ(converted.status, 0) << converted.err;
  EXPECT_NE(converted.out.find("\"model_type\":\"hearth\""), std::string::npos) << converted.out;
  const std::string alone = " is for hearth alone: no other program reads the model_type hearth\n";
  EXPECT_NE(converted.err.find(experts.string() + alone), std::string::npos) << converted.err;
  const Ran plain =
      run(runs.folder, {"convert", "--from", dense.string(), "--to", runs.folder / "plain"});
  ASSERT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(plain.err.find(alone), std::string::npos) << plain.err;
  const auto generated = [&](const fs::path& model) {
    const Ran r = run(runs.folder, {"generate", "--model", model.string(), "--prompt", "ab",
                                    "--max-tokens", "12", "--greedy", "--threads", "1"});
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  };
  EXPECT_EQ(generated(experts), generated(dense));
  const fs::path more = runs.folder / "more";
  const Ran sft =
      run(runs.folder, words("sft --run " + more.string() + " --model " + experts.string() +
                             " --steps 2 --warmup 0 --threads 1 --batch 2 --max-length 32 --data " +
                             (runs.folder / "rows.jsonl").string()));
  ASSERT_EQ(sft.status, 0) << sft.err;
  const std::string log = read_file(more / "log.jsonl");
  for (const char* key : {"balance_loss", "router_entropy", "expert_violation", "expert_load"})
    EXPECT_NE(log.find(fmt::format("\"{}\":", key)), std::string::npos) << key;
}

// Tasks without balance losses log how evenly tokens are shared among the experts, too.
TEST(ExpertLoads, AreLoggedByEveryTask) {
  const ShortRuns runs;
  const fs::path experts = runs.folder / "experts";
  const Ran made = run(runs.folder, {"convert", "--from", (runs.folder / "model").string(),
                                     "--upcycle-moe", "4", "--to", experts.string()});
  ASSERT_EQ(made.status, 0) << made.err;
  for (const std::string& task : {std::string("sft"), std::string("dpo"), std::string("grpo")}) {
    if (!ShortRuns::can_run(task)) continue;
    for (const bool lora : {false, true}) {
      SCOPED_TRACE(fmt::format("{} lora {}", task, lora));
      const fs::path folder = runs.folder / fmt::format("{}-{}", task, lora);
      Arguments call = runs.arguments(task, folder);
      std::ranges::replace(call, (runs.folder / "model").string(), experts.string());
      if (lora) call = call + words("--lora 2,4");
      const Ran r = run(runs.folder, call);
      ASSERT_EQ(r.status, 0) << r.err;
      int steps = 0;
      std::istringstream in(read_file(folder / "log.jsonl"));
      for (std::string line; std::getline(in, line);) {
        const auto j = nlohmann::json::parse(line);
        if (!j.contains("loss")) continue;
        ++steps;
        if (task == "grpo" && j["updates"] == 0) continue;
        EXPECT_GE(j.value("expert_violation", -1.0), 0) << line;
        ASSERT_EQ(j["expert_load"].size(), 4u) << line;
        double sum = 0;
        for (const double x : j["expert_load"]) sum += x;
        EXPECT_NEAR(sum, 4, 1e-3) << line;
      }
      EXPECT_EQ(steps, 5);
    }
  }
}

TEST(UpcycleCommand, SaysThatOneExpertLearnsNoChoice) {
  const ShortRuns runs;
  const fs::path experts = runs.folder / "experts", more = runs.folder / "more";
  const Ran made =
      run(runs.folder, {"convert", "--from", (runs.folder / "model").string(), "--upcycle-moe", "4",
                        "--top-k", "1", "--to", experts.string()});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.err.find("with --top-k 1 the weight of an expert is always 1"), std::string::npos)
      << made.err;
  Arguments call = runs.arguments("sft", more);
  std::ranges::replace(call, (runs.folder / "model").string(), experts.string());
  const Ran r = run(runs.folder, call + words("--stop-after-step 1"));
  ASSERT_EQ(r.status, 0) << r.err;
  const char* note = "the loss of the tokens teaches the routers nothing";
  EXPECT_NE(r.err.find(note), std::string::npos) << r.err;
  const Ran again = run(runs.folder, {"sft", "--run", more.string(), "--resume"});
  EXPECT_EQ(again.err.find(note), std::string::npos) << again.err;
}

TEST(UpcycleCommand, NamesTheFlagThatIsMissing) {
  const ShortRuns runs;
  const Ran r = run(runs.folder, {"convert", "--from", (runs.folder / "model").string(), "--top-k",
                                  "2", "--to", (runs.folder / "to").string()});
  EXPECT_NE(r.status, 0);
  EXPECT_NE(r.err.find("--top-k and --granularity need --upcycle-moe"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace hearth
