// What commands do when flags leave it open: sampling by the model's generation_config.json,
// --dtype auto, and a context that fits.
#include "e2e/command.h"
#include "formats/json.h"
#include "formats/toml.h"
#include "served_folder.h"

namespace hearth {
namespace {

using nlohmann::json;

class Defaults : public testing::Test {
 protected:
  void SetUp() override { write_served_folder(folder / "model"); }

  Arguments generate(const Arguments& more = {}) const {
    return Arguments{"generate", "--model",      folder / "model", "--prompt",
                     "abc",      "--ignore-eos", "--json"} +
           more;
  }
  json ran(const Arguments& args) {
    const Ran r = run(folder, args);
    EXPECT_EQ(r.status, 0) << r.err;
    err = r.err;
    return json::parse(r.out);
  }
  std::string recorded_dtype(const std::string& name) {
    for (const TomlItem& item : read_toml(folder / (name + "/config.toml")))
      if (item.key == "dtype") return item.values.at(0);
    return "none";
  }

  Folder folder;
  std::string err;
};

TEST_F(Defaults, GenerateSamplesAsTheModelsFileSays) {
  write_file_atomic(folder / "model/generation_config.json",
                    R"({"do_sample": false, "top_k": 20, "max_new_tokens": 9})");
  const json greedy = ran(generate({"--seed", "1"}));
  EXPECT_EQ(greedy["tokens"].size(), 9u);
  EXPECT_NE(err.find("temperature 0, top_k 20, max_tokens 9 from "), err.npos) << err;
  EXPECT_EQ(ran(generate({"--seed", "2"}))["tokens"], greedy["tokens"]);
  EXPECT_EQ(
      ran(generate({"--greedy", "--generation-config", "none", "--max-tokens", "9"}))["tokens"],
      greedy["tokens"]);
  // Flags win.
  const json hot = ran(generate({"--temperature", "2", "--top-k", "0", "--max-tokens", "30"}));
  EXPECT_EQ(hot["tokens"].size(), 30u);
  EXPECT_EQ(err.find("generation_config"), err.npos) << err;
  const json none = ran(generate({"--temperature", "2", "--generation-config", "none"}));
  EXPECT_EQ(none["tokens"].size(), 128u);
  EXPECT_TRUE(std::equal(hot["tokens"].begin(), hot["tokens"].end(), none["tokens"].begin()));
}

TEST_F(Defaults, ChatSamplesAsTheModelsFileSays) {
  const auto answer = [&](const std::string& seed) {
    const Ran r =
        run_on("hi\n", folder, {"chat", "--model", folder / "model", "--json", "--seed", seed});
    EXPECT_EQ(r.status, 0) << r.err;
    return json::parse(r.out)["tokens"];
  };
  write_file_atomic(folder / "model/generation_config.json",
                    R"({"do_sample": true, "temperature": 5, "max_new_tokens": 9})");
  EXPECT_LE(answer("1").size(), 9u);
  EXPECT_NE(answer("1"), answer("2"));
  write_file_atomic(folder / "model/generation_config.json",
                    R"({"do_sample": false, "max_new_tokens": 9})");
  EXPECT_EQ(answer("1"), answer("2"));
}

TEST_F(Defaults, AWrongSamplingDefaultIsNamed) {
  write_file_atomic(folder / "model/generation_config.json", R"({"top_p": 7})");
  expect_error(run(folder, generate()), 1,
               "generation_config.json] expected top_p to be a number from 0 to 1, got \"7\"");
  EXPECT_EQ(run(folder, generate({"--generation-config", "none"})).status, 0);
}

TEST_F(Defaults, NoneLeavesABrokenFileAlone) {
  for (const char* text : {"{ \"top_p\": ", "[1, 2]"}) {
    SCOPED_TRACE(text);
    write_file_atomic(folder / "model/generation_config.json", std::string_view(text));
    for (const Arguments& call :
         {generate(), Arguments{"generate", "--model", folder / "model", "--prompt", "abc"},
          Arguments{"chat", "--model", folder / "model"}}) {
      expect_error(run(folder, call), 1, "generation_config.json");
      const Ran none = run(folder, call + Arguments{"--generation-config", "none"});
      EXPECT_EQ(none.status, 0) << none.err;
      EXPECT_NE(none.err.find("; its end tokens are ignored\n"), none.err.npos) << none.err;
    }
  }
}

TEST_F(Defaults, ATemperatureOutOfRangeNamesASaneRange) {
  for (const char* t : {"-1", "101"})
    expect_error(run(folder, generate({"--temperature", t})), 2,
                 "[--temperature] expected a number from 0 to 100, got ");
}

// What samples for a measurement knows its own settings.
TEST_F(Defaults, EvalIsNotTouchedByTheModelsFile) {
  write_chain(folder / "val.bin", 300, 1);
  const Arguments eval{"eval",   "--model",          folder / "model", "--task", "perplexity",
                       "--data", folder / "val.bin", "--dtype",        "fp32",   "--json"};
  const json before = ran(eval);
  write_file_atomic(folder / "model/generation_config.json",
                    R"({"temperature": 0.1, "repetition_penalty": 3})");
  EXPECT_EQ(ran(eval)["metrics"], before["metrics"]);
}

TEST_F(Defaults, AutoDtypeIsSaidAndRecorded) {
  const std::string best = ran({"info", "--json"})["cpu"]["auto_dtype"]["training"]["dtype"];
  write_chain(folder / "train.bin", 3000, 1);
  const Arguments steps =
      tiny_run(folder / "train.bin", folder / "run", 2) + Arguments{"--dtype", "auto"};
  Ran r = run(folder, steps);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err.starts_with("hearth: computing in " + best + ", ")) << r.err;
  EXPECT_EQ(recorded_dtype("run"), best);

  // A forced instruction set decides, and a resumed run keeps what it began with.
  const std::string plainest = ran({"info", "--json"})["cpu"]["usable"][0];
  setenv("HEARTH_ISA", plainest.c_str(), 1);
  r = run(folder, tiny_run(folder / "train.bin", folder / "plain", 2) +
                      Arguments{"--stop-after-step", "1", "--dtype", "auto"});
  unsetenv("HEARTH_ISA");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("hearth: computing in fp32, because this CPU (" + plainest + ")"),
            r.err.npos)
      << r.err;
  EXPECT_EQ(recorded_dtype("plain"), "fp32");
  r = run(folder, {"pretrain", "--run", folder / "plain", "--resume"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err.find("hearth: computing in"), r.err.npos) << r.err;
}

// A config may promise a context that no memory holds.
TEST_F(Defaults, AHugeContextCostsNothing) {
  const fs::path file = folder / "model/config.json";
  const json small = ran(generate({"--dtype", "fp32", "--seed", "3"}));
  json config = read_json(file);
  for (json* j : {&config, &config["hearth_config"]})
    for (const char* key : {"max_position_embeddings", "context"})
      if (j->contains(key)) (*j)[key] = int64_t(1) << 24;
  if (config["hearth_config"].is_null()) config.erase("hearth_config");
  write_file_atomic(file, config.dump());
  EXPECT_EQ(ran({"info", "--model", folder / "model", "--json"})["config"]["context"], 1 << 24);
  EXPECT_EQ(ran(generate({"--dtype", "fp32", "--seed", "3"}))["tokens"], small["tokens"]);
}

}  // namespace
}  // namespace hearth
