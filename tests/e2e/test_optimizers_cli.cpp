// --optimizer of every command that trains: stopped and resumed is the same run to the bit, and a
// run keeps the optimizer that it began with.
#include <set>

#include "e2e/short_runs.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "sys/hash/hash.h"

namespace hearth {
namespace {

using nlohmann::json;

struct Choice {
  const char* optimizer;
  std::set<std::string> slots;
  const char* beta2;  // in config.toml; empty: the command's own
};

class OptimizerCommand : public TaskTest {};

TEST_P(OptimizerCommand, ResumesToTheBit) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const std::set<std::string> coded{"moment1", "moment1_scale", "moment2", "moment2_scale"};
  for (const Choice& c :
       {Choice{"adamw_bf16", {"moment1", "moment2"}, ""}, Choice{"adamw_8bit", coded, ""},
        Choice{"lion", {"momentum"}, "beta2 = 0.99"},
        Choice{"normuon", {"momentum", "neuron", "moment1", "moment2"}, ""}}) {
    SCOPED_TRACE(c.optimizer);
    const fs::path whole = runs.folder / (std::string("whole-") + c.optimizer);
    const fs::path parts = runs.folder / (std::string("parts-") + c.optimizer);
    const Arguments chosen{"--optimizer", c.optimizer};
    const Ran all = run(runs.folder, runs.arguments(task, whole) + chosen);
    ASSERT_EQ(all.status, 0) << all.err;
    ASSERT_EQ(
        run(runs.folder, runs.arguments(task, parts) + chosen + Arguments{"--stop-after-step", "3"})
            .status,
        0);
    const Ran rest = run(runs.folder, {task, "--run", parts.string(), "--resume"});
    ASSERT_EQ(rest.status, 0) << rest.err;
    for (const char* file :
         {"log.jsonl", "latest/model.safetensors", "latest/state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;

    const std::string config = read_file(whole / "config.toml");
    EXPECT_NE(config.find(std::string("optimizer = \"") + c.optimizer + "\"\n"), config.npos);
    EXPECT_NE(config.find(c.beta2), config.npos) << config;
    const Safetensors saved(whole / "latest/state/optimizer.safetensors");
    std::set<std::string> slots;
    for (const auto& [name, tensor] : saved.tensors()) slots.insert(name.substr(0, name.find('.')));
    slots.erase("master");  // of a run in bf16
    EXPECT_EQ(slots, c.slots);
  }
}

TEST_P(OptimizerCommand, KeepsTheOneItBeganWith) {
  const ShortRuns runs;
  const std::string task = GetParam();
  const fs::path at = runs.folder / "run";
  const Arguments args = runs.arguments(task, at);
  ASSERT_EQ(run(runs.folder, args + Arguments{"--stop-after-step", "2"}).status, 0);
  const Ran other = run(runs.folder, args + Arguments{"--resume", "--optimizer", "lion"});
  EXPECT_NE(other.status, 0);
  EXPECT_NE(other.err.find("optimizer = adamw, not lion"), std::string::npos) << other.err;
  const Ran coded = run(runs.folder, args + Arguments{"--resume", "--optimizer", "adamw-8bit"});
  EXPECT_NE(coded.status, 0);
  EXPECT_NE(coded.err.find("optimizer = adamw, not adamw_8bit"), std::string::npos) << coded.err;
  const Ran same = run(runs.folder, args + Arguments{"--resume"});
  EXPECT_EQ(same.status, 0) << same.err;
}

// Settings of parameter groups are kept in the run, and a wrong one is a usage error of one line.
TEST(ParamGroupFlags, AreKeptAndChecked) {
  const ShortRuns runs;
  const fs::path at = runs.folder / "run";
  const Arguments args = runs.arguments("pretrain", at);
  const Ran wrong = run(runs.folder, args + Arguments{"--group-beta1", "embeddings:0.8"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_NE(wrong.err.find("[--group-beta1] expected GROUP:NUMBER"), std::string::npos)
      << wrong.err;
  EXPECT_FALSE(fs::exists(at));
  const Ran right =
      run(runs.folder, args + Arguments{"--group-beta1", "embedding:0.8", "--group-weight-decay",
                                        "embedding:0.01,vector:0.02", "--stop-after-step", "2"});
  ASSERT_EQ(right.status, 0) << right.err;
  const std::string config = read_file(at / "config.toml");
  EXPECT_NE(config.find("group_beta1 = \"embedding:0.8\""), config.npos) << config;
  EXPECT_NE(config.find("group_weight_decay = \"embedding:0.01,vector:0.02\""), config.npos);
  const Ran rest = run(runs.folder, {"pretrain", "--run", at.string(), "--resume"});
  EXPECT_EQ(rest.status, 0) << rest.err;
}

INSTANTIATE_TEST_SUITE_P(, OptimizerCommand, testing::Values("pretrain", "sft", "dpo", "grpo"));

}  // namespace
}  // namespace hearth
