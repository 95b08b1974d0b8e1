// Flags of a model's shape: what follows from one that others leave open, and those without effect.
#include "e2e/short_runs.h"
#include "served_folder.h"

namespace hearth {
namespace {

nlohmann::json config_of(const Folder& folder, const Arguments& flags) {
  return json_of(run(folder, Arguments{"info", "--json"} + flags))["config"];
}

TEST(ModelFlags, InfoTakesThoseOfPretraining) {
  const Folder folder;
  const nlohmann::json c =
      config_of(folder, {"--preset", "tiny", "--layers", "3", "--no-tied", "--heads", "2"});
  EXPECT_EQ(c["layers"], 3);
  EXPECT_EQ(c["tied"], false);
  EXPECT_EQ(c["kv_heads"], 1);
  EXPECT_EQ(config_of(folder, {"--dim", "64", "--heads", "2"})["head_dim"], 32);
  expect_error(run(folder, {"info", "--layers", "2"}), 2, "need --preset, or --dim");
  expect_error(run(folder, {"info", "--model", "X", "--layers", "2"}), 2, "[--model] ");
  expect_error(run(folder, {"info", "--model", "X", "--tokenizer", "Y"}), 2,
               "[--tokenizer] has no effect: --model has a vocabulary");
  EXPECT_EQ(run(folder, {"info"}).status, 0);
}

// Divided by itself, the weight of a token's only expert would be 1 and teach the router nothing.
TEST(ModelFlags, OneExpertKeepsItsWeightUnlessAskedTo) {
  const Folder folder;
  const auto norms = [&](const std::string& flags) {
    std::istringstream in(flags);
    Arguments all;
    for (std::string word; in >> word;) all.push_back(word);
    return config_of(folder, all)["norm_topk"].get<bool>();
  };
  for (const std::string base : {"--preset tiny --experts 4", "--dim 64 --heads 2 --experts 4"}) {
    EXPECT_TRUE(norms(base)) << base;
    EXPECT_FALSE(norms(base + " --top-k 1")) << base;
    EXPECT_TRUE(norms(base + " --top-k 1 --norm-topk")) << base;
    EXPECT_FALSE(norms(base + " --top-k 2 --norm-topk=false")) << base;
  }
  EXPECT_TRUE(norms("--preset tiny"));
  write_chain(folder / "train.bin", 2000, 1);
  const std::string note = "the loss of the tokens teaches the routers nothing";
  for (const bool asked : {false, true}) {
    const std::string at = folder / (asked ? "normed" : "plain");
    const Ran r = run(folder, tiny_run(folder / "train.bin", at, 1) +
                                  Arguments{"--experts", "2", "--top-k", "1",
                                            asked ? "--norm-topk" : "--norm-topk=false"});
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.err.find(note) != std::string::npos, asked) << r.err;
    EXPECT_EQ(config_of(folder, {"--config", at + "/config.toml"})["norm_topk"], asked);
  }
}

// The settings of a pretraining run, or a file for one, describe a model to `info` too.
TEST(ModelFlags, InfoReadsSettingsOfPretraining) {
  const Folder folder;
  write_chain(folder / "train.bin", 2000, 1);
  const std::string first = folder / "first", second = folder / "second";
  ASSERT_EQ(run(folder, tiny_run(folder / "train.bin", first, 1)).status, 0);
  ASSERT_EQ(run(folder, {"pretrain", "--model", first, "--run", second, "--data",
                         folder / "train.bin", "--steps", "1", "--batch", "1", "--seq", "8"})
                .status,
            0);
  const nlohmann::json own = config_of(folder, {"--model", first});
  EXPECT_EQ(own["dim"], 32);
  for (const std::string& from : {first, second})
    EXPECT_EQ(config_of(folder, {"--config", from + "/config.toml"}), own) << from;
  EXPECT_EQ(config_of(folder, {"--config", first + "/config.toml", "--vocab", "400"})["vocab"],
            400);
  const std::string file = folder / "mine.toml";
  write_file_atomic(file,
                    "threads = 1\n[pretrain]\npreset = \"tiny\"\nlayers = 3\nlr = 1e-3\n"
                    "[sft]\nepochs = 2\n");
  EXPECT_EQ(config_of(folder, {"--config", file})["layers"], 3);
  write_file_atomic(file, "preset = \"tiny\"\nlearning_rat = 1e-3\n");
  expect_error(run(folder, {"info", "--config", file}), 2, "got \"learning_rat\"");
}

// A recipe and a tokenizer are part of what pretrain makes the model from.
TEST(ModelFlags, InfoReadsTheRecipeAndTheTokenizerOfASettingsFile) {
  const Folder folder;
  write_served_folder(folder / "tok");
  const std::string file = folder / "run.toml";
  const auto config = [&](const std::string& text) {
    write_file_atomic(file, text);
    return config_of(folder, {"--config", file});
  };
  const nlohmann::json c = config("recipe = \"nocap-baseline\"\nlayers = 2\nlr = 1e-3\n");
  EXPECT_EQ(c["layers"], 2);
  EXPECT_EQ(c["dim"], 768);
  EXPECT_EQ(config("[pretrain]\nrecipe = \"nocap-baseline\"\n")["layers"], 12);
  const std::string tiny = "preset = \"tiny\"\ntokenizer = \"" + (folder / "tok").string() + "\"\n";
  EXPECT_EQ(config(tiny)["vocab"], 260);
  EXPECT_EQ(config(tiny + "vocab = 300\n")["vocab"], 300);
  // info's own --recipe prints one.
  write_file_atomic(file, std::string_view("[info]\nrecipe = \"nocap-baseline\"\n"));
  EXPECT_TRUE(run(folder, {"info", "--config", file}).out.starts_with("# "));
  expect_error(run(folder, {"info", file}), 2, "did you mean --config " + file + "?");
}

// An error names a flag of the command line, or the key of a settings file.
TEST(ModelFlags, ErrorsNameTheFlags) {
  const Folder folder;
  const auto refused = [&](const Arguments& flags, const std::string& part) {
    expect_error(run(folder, Arguments{"info"} + flags), 2, part);
  };
  const std::string file = folder / "run.toml";
  write_file_atomic(file, std::string_view("kv_heads = 3\n"));
  refused({"--dim", "64", "--heads", "4", "--kv-heads", "3"},
          "[model] expected --kv-heads to divide 4 heads, got 3");
  refused({"--dim=64", "--heads=4", "--config", file},
          "[model] expected kv_heads to divide 4 heads, got 3");
  refused({"--dim", "64", "--heads=5"}, "[model] expected --heads to divide --dim 64, got 5");
  refused({"--preset", "tiny", "--layers", "0"}, "[model] expected --layers between 1 and 2^31");
  refused({"--preset", "tiny", "--layers", "20000"}, "[model] expected at most 10000 layers, got");
  refused({"--preset", "tiny", "--experts", "4", "--top-k", "5"},
          "[model] expected --top-k between 1 and 4 of 4 experts, got 5");
  refused({"--preset", "tiny", "--rope-scaling", "longrope", "--rope-short-factors", "1"},
          "[model] expected a --rope-context of 2 or more for longrope, got 0");
  refused({"--preset", "tiny", "--rope-scaling", "longrope", "--rope-context", "16"},
          " numbers in --rope-short-factors, one per pair of rotated dims, got 0");
}

// A value that is no number, or too large for the type of its flag, is answered by those it takes.
TEST(ModelFlags, ErrorsNameTheRange) {
  const Folder folder;
  for (const auto& [call, part] :
       {std::pair{"info --threads abc",
                  "[--threads] expected a whole number (0 to 4096), got \"abc\""},
        {"info --threads -1", "--threads: expected 0 to 4096, got -1"},
        {"info --memory-limit= --threads 1",
         "[--memory-limit] needs a value: maximum GPU memory in GiB"},
        {"info --preset tiny --layers abc", "[--layers] expected a whole number, got 'abc'"},
        {"info --preset tiny --layers 99999999999999999999",
         "[--layers] expected -9223372036854775808 to 9223372036854775807, got 999999999999999999"},
        {"info --preset tiny --dropout-mlp 1", "[model] expected a --dropout-mlp in [0, 1), got 1"},
        {"info --preset tiny --logit-softcap -1",
         "[model] expected a --logit-softcap of 0 or more, got -1"},
        {"tokenizer train --input x --out y --vocab 99999999999999",
         "[--vocab] expected a whole number of at most 2147483647, got \"99999999999999\""},
        {"tokenizer train --input x --out y --threads 99999999999999",
         "[--threads] expected a whole number (0 or more) of at most 2147483647, got"},
        {"generate --model x --prompt a --temperature abc",
         "[--temperature] expected a number, got \"abc\""}})
    expect_error(run(folder, words(call)), 2, part);
}

TEST(ModelFlags, WidthsOfMlpsFollowDim) {
  const Folder folder;
  const auto widths = [&](const Arguments& flags) {
    const nlohmann::json c = config_of(folder, flags);
    return std::pair(c["hidden"].get<int>(), c["expert_hidden"].get<int>());
  };
  using Widths = std::pair<int, int>;
  EXPECT_EQ(widths({"--preset", "tiny"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "128"}), Widths(448, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "256"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "128", "--hidden", "896"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "gpt2", "--dim", "384"}), Widths(1536, 0));
  EXPECT_EQ(widths({"--preset", "modern-124m", "--dim", "384"}), Widths(1024, 0));
  EXPECT_EQ(widths({"--preset", "moe-8x124m", "--dim", "384"}), Widths(1024, 1024));
  EXPECT_EQ(widths({"--preset", "moe-8x124m", "--hidden", "512"}), Widths(512, 512));
  EXPECT_EQ(widths({"--preset", "moe-64", "--dim", "384"}), Widths(1024, 256));
  EXPECT_EQ(widths({"--preset", "moe-64", "--hidden", "512"}), Widths(512, 512));
  EXPECT_EQ(widths({"--preset", "moe-64", "--dim", "384", "--expert-hidden", "96"}),
            Widths(1024, 96));
}

class FlagsWithoutEffect : public testing::Test {
 protected:
  void SetUp() override { write_chain(folder / "train.bin", 20000, 1); }
  Ran pretrain(const Arguments& more) {
    return run(folder, Arguments{"pretrain",
                                 "--vocab",
                                 "64",
                                 "--context",
                                 "16",
                                 "--layers",
                                 "1",
                                 "--dim",
                                 "32",
                                 "--heads",
                                 "2",
                                 "--steps",
                                 "1",
                                 "--batch",
                                 "2",
                                 "--data",
                                 folder / "train.bin",
                                 "--run",
                                 folder / "run",
                                 "--threads",
                                 "1"} +
                           more);
  }
  const Folder folder;
};

TEST_F(FlagsWithoutEffect, AreRefusedByName) {
  const std::vector<std::pair<Arguments, std::string>> calls{
      {{"--balance-loss", "0.01"}, "[--balance-loss] has no effect: the model has no experts"},
      {{"--router-z-loss", "0.01"}, "[--router-z-loss] has no effect: the model has no experts"},
      {{"--balance-rate", "0.01"}, "[--balance-rate] has no effect: the model has no experts"},
      {{"--experts", "2", "--balance-rate", "0.01"},
       "[--balance-rate] has no effect: the routers have no selection biases"},
      {{"--layout", "gpt2"},
       "[--layout] the keys of gpt2 cannot express this model, whose files "
       "would be llama"},
  };
  for (const auto& [flags, part] : calls) {
    SCOPED_TRACE(part);
    expect_error(pretrain(flags), 2, part);
    EXPECT_FALSE(fs::exists(folder / "run"));
  }
  expect_error(pretrain({"--router-bias"}), 2, "[model] --router-bias needs experts of 1 or more");
}

TEST_F(FlagsWithoutEffect, OthersAreTaken) {
  const Ran r = pretrain({"--balance-loss", "0", "--layout", "hearth"});
  EXPECT_EQ(r.status, 0) << r.err;
  const auto config = nlohmann::json::parse(read_file(folder / "run/latest/config.json"));
  EXPECT_EQ(config["model_type"], "hearth");
}

}  // namespace
}  // namespace hearth
