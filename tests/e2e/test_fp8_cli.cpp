// hearth bench fp8: speed and memory beside bf16, and the losses of runs on the same tokens.
#include "e2e/command.h"

namespace hearth {
namespace {

using nlohmann::json;

// Flags that make any preset a model of a few thousand parameters.
const Arguments small{"--layers",   "1",  "--dim",    "32",  "--heads",   "2",
                      "--kv-heads", "2",  "--hidden", "48",  "--vocab",   "64",
                      "--context",  "16", "--device", "cpu", "--threads", "1"};

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
  return all;
}

const std::string small_name = " vocab 64 context 16 layers 1 dim 32 heads 2 kv-heads 2 hidden 48";

TEST(Fp8Bench, TimesBothTypesAtEveryBatch) {
  const Folder folder;
  const Arguments call = Arguments{"bench",     "fp8",         "--preset", "gpt2,modern-124m",
                                   "--batches", "2x16,1x20x3", "--steps",  "1"} +
                         small;
  const Ran r = run(folder, call + Arguments{"--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<json> lines = lines_of(r.out);
  ASSERT_EQ(lines.size(), 4u) << r.out;
  for (const json& j : lines) {
    EXPECT_GT(j["value"], 0);
    EXPECT_GT(j["peer_value"], 0);
    EXPECT_EQ(j["subject"], "training");
    EXPECT_EQ(j["unit"], "tokens/s");
    for (const char* key : {"date", "device", "commit", "more", "peer"})
      EXPECT_TRUE(j.value(key, json()).is_string()) << key;
  }
  EXPECT_EQ(lines[0]["what"], "gpt2" + small_name + " fp8, 2 x 16");
  EXPECT_EQ(lines[3]["what"], "modern-124m" + small_name + " fp8, 1 x 20, 3 micro-batches");

  const Ran table = run(folder, call);
  ASSERT_EQ(table.status, 0) << table.err;
  for (const char* claim : {"memory does not fall", "custom norms break it", "compilation costs"})
    EXPECT_NE(table.out.find(claim), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find("not measured"), std::string::npos) << table.out;
}

TEST(Fp8Bench, ComparesLossesOfTheSameTokensAndSeeds) {
  const Folder folder;
  write_chain(folder / "train.bin", 4000, 1);
  write_chain(folder / "val.bin", 500, 2);
  const Arguments call = Arguments{"bench",
                                   "fp8",
                                   "--data",
                                   (folder / "train.bin").string(),
                                   "--val",
                                   (folder / "val.bin").string(),
                                   "--cases",
                                   "gpt2:adamw,modern-124m:normuon",
                                   "--loss-steps",
                                   "20",
                                   "--tokens-per-step",
                                   "64",
                                   "--seeds",
                                   "2",
                                   "--lr",
                                   "1e-2",
                                   "--eval-tokens",
                                   "256",
                                   "--run",
                                   (folder / "runs").string()} +
                         small;
  const Ran r = run(folder, call + Arguments{"--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<json> lines = lines_of(r.out);
  ASSERT_EQ(lines.size(), 2u) << r.out;
  for (const json& j : lines) {
    EXPECT_NE(j["value"], j["peer_value"]);
    EXPECT_NEAR(j["value"].get<double>(), j["peer_value"].get<double>(), 0.2);
    EXPECT_LT(j["value"], 4.1);  // ln 64 is 4.16
    EXPECT_TRUE(j["lower_is_better"].get<bool>());
  }
  EXPECT_EQ(lines[1]["what"],
            "loss of modern-124m" + small_name + " with normuon in fp8, 20 steps of 64 tokens");
  // The runs are kept, and both types of a seed began from the same weights and tokens.
  const auto first_loss = [&](const char* name) {
    std::istringstream log(read_file(folder / "runs" / name / "log.jsonl"));
    for (std::string line; std::getline(log, line);)
      if (const json j = json::parse(line); j.contains("loss")) return j["loss"].get<double>();
    return 0.0;
  };
  EXPECT_NEAR(first_loss("gpt2-adamw-bf16-1"), first_loss("gpt2-adamw-fp8-1"), 0.05);
  EXPECT_GT(std::abs(first_loss("gpt2-adamw-bf16-1") - first_loss("gpt2-adamw-bf16-2")), 1e-6);
}

TEST(Fp8Bench, SaysWhatItCannotRead) {
  const Folder folder;
  const auto bench = [&](const Arguments& more) {
    return run(folder, Arguments{"bench", "fp8", "--device", "cpu"} + more);
  };
  for (const char* batch : {"4", "4x", "0x16", "4x16x", "4x16x2x1", "4 x 16", "4x16b"})
    expect_error(bench({"--batches", batch}), 2, "[--batches] expected sequences x tokens");
  expect_error(bench({"--data", "x.bin"}), 2, "--val");
  expect_error(bench({"--data", "x.bin", "--val", "x.bin", "--cases", "gpt2"}), 2,
               "[--cases] expected preset:optimizer");
}

}  // namespace
}  // namespace hearth
