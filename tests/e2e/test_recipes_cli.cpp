// Recipes: settings that are built into the program, and `bench nocap`, which times a run of one.
#include <map>

#include "e2e/short_runs.h"
#include "formats/fields.h"
#include "formats/toml.h"
#include "optim/schedule.h"

namespace hearth {
namespace {

using nlohmann::json;

constexpr const char* small =
    "preset = \"tiny\"\nvocab = 260\ncontext = 32\nlayers = 1\ndim = 16\nheads = 2\nkv_heads = 2\n"
    "hidden = 16\nbatch = 2\nseq = \"16\"\nsteps = 12\nlr = 0.02\neval_every = 4\n"
    "eval_tokens = 64\ncheckpoint_every = 0\ndtype = \"fp32\"\n";

std::vector<json> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<json> all;
  for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
  return all;
}

// Every recipe of the source is in the program, and all its settings are flags of pretrain.
TEST(Recipes, AreTheFilesOfTheSource) {
  const Folder folder;
  int found = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(HEARTH_SOURCE_DIR) / "recipes")) {
    const std::string name = entry.path().stem();
    const Ran shown = run(folder, {"info", "--recipe", name});
    EXPECT_EQ(shown.status, 0) << shown.err;
    EXPECT_EQ(shown.out, read_file(entry.path()));
    // Data that is not there is refused only after every setting has been accepted.
    const Ran used = run(
        folder, {"pretrain", "--recipe", name, "--data", "none.bin", "--run",
                 (folder / "r").string(), "--device", "cpu", "--batch", "1", "--val", "none.bin"});
    EXPECT_NE(used.status, 0);
    EXPECT_NE(used.err.find("none.bin"), used.err.npos) << used.err;
    ++found;
  }
  EXPECT_GE(found, 3);
}

std::string text_of_recipe(const std::string& name) {
  return read_file(fs::path(HEARTH_SOURCE_DIR) / "recipes" / (name + ".toml"));
}

// nocap-full is what the rules of the benchmark say.
TEST(Recipes, NocapFullIsTheBenchmark) {
  std::map<std::string, std::string> of;
  for (const TomlItem& item : parse_toml(text_of_recipe("nocap-full"), "nocap-full"))
    of[item.key] = item.values.at(0);
  const auto number = [&](const char* key) { return std::stod(of.at(key)); };
  EXPECT_EQ(of["preset"], "nocap-d12");
  EXPECT_EQ(of["seq"], "1024");
  EXPECT_EQ(number("batch"), 16);
  EXPECT_EQ(number("tokens_per_step"), 16 * 1024 * 32);
  EXPECT_EQ(number("tokens_per_step") * number("steps"), 2'499'805'184);
  EXPECT_EQ(of["optimizer"], "adamw");
  EXPECT_EQ(number("beta1"), 0.9);
  EXPECT_EQ(number("beta2"), 0.95);
  EXPECT_EQ(number("weight_decay"), 0.1);
  EXPECT_EQ(of["decay_all"], "true");
  EXPECT_EQ(number("clip"), 0);
  EXPECT_EQ(number("eval_every"), 128);
  EXPECT_EQ(number("eval_tokens"), 1'048'576);
  EXPECT_EQ(number("target_loss"), 3.3821);
  const RateConfig rate{.lr = number("lr"),
                        .schedule = parse_enum<Schedule>(of["schedule"], "schedule"),
                        .warmup = int64_t(number("warmup")),
                        .decay_steps = int64_t(number("decay_steps"))};
  EXPECT_EQ(rate.lr, 0.0018);
  const auto factor = [spec = rate.schedule_spec(4768)](int64_t step) {
    return schedule_factor(spec, step);
  };
  EXPECT_EQ(factor(0), 1 / 256.0);
  EXPECT_EQ(factor(254), 255 / 256.0);
  for (const int64_t step : {255, 256, 2000, 3743, 3744}) EXPECT_EQ(factor(step), 1);
  EXPECT_EQ(factor(3745), 1023 / 1024.0);
  EXPECT_EQ(factor(4767), 1 / 1024.0);
}

TEST(Recipes, FlagsOverrideThemAndTheRunKeepsThem) {
  const ShortRuns runs;
  const fs::path at = runs.folder / "run";
  const Arguments args{"pretrain",
                       "--recipe",
                       "nocap-baseline",
                       "--layers",
                       "1",
                       "--dim",
                       "16",
                       "--heads",
                       "2",
                       "--vocab",
                       "260",
                       "--context",
                       "32",
                       "--batch",
                       "2",
                       "--seq",
                       "16",
                       "--tokens-per-step",
                       "32",
                       "--steps",
                       "4",
                       "--warmup",
                       "1",
                       "--decay-steps",
                       "2",
                       "--dtype",
                       "fp32",
                       "--device",
                       "cpu",
                       "--data",
                       (runs.folder / "train.bin").string(),
                       "--run",
                       at.string()};
  const Ran first = run(runs.folder, args + Arguments{"--stop-after-step", "2"});
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string config = read_file(at / "config.toml");
  EXPECT_NE(config.find("steps = 4\n"), config.npos) << config;  // a flag
  EXPECT_NE(config.find("decay_all = true\n"), config.npos);     // the recipe
  // A job that is restarted passes the same flags again. A recipe that contradicts the run is an
  // error, as flags are.
  const Ran rest = run(runs.folder, args + Arguments{"--resume"});
  EXPECT_EQ(rest.status, 0) << rest.err;
  const Ran other =
      run(runs.folder, {"pretrain", "--run", at.string(), "--resume", "--recipe", "nocap-fast"});
  EXPECT_NE(other.status, 0);
  EXPECT_NE(other.err.find("a run keeps the settings it began with"), other.err.npos) << other.err;
}

TEST(Recipes, AnUnknownOneIsALineThatListsThem) {
  const Folder folder;
  for (const Arguments& args : {Arguments{"pretrain", "--recipe", "fsat", "--data", "x"},
                                Arguments{"info", "--recipe", "fsat"}}) {
    const Ran r = run(folder, args);
    EXPECT_NE(r.status, 0);
    EXPECT_NE(r.err.find("nocap-fast"), r.err.npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
}

TEST(BenchNocap, TimesEachSeedToItsTarget) {
  const ShortRuns runs;
  write_file_atomic(runs.folder / "small.toml", std::string_view(small));
  const Arguments common{"bench",
                         "nocap",
                         "--json",
                         "--device",
                         "cpu",
                         "--recipe",
                         (runs.folder / "small.toml").string(),
                         "--data",
                         (runs.folder / "train.bin").string(),
                         "--val",
                         (runs.folder / "val.bin").string()};
  const Ran whole = run(
      runs.folder, common + Arguments{"--seeds", "2", "--run", (runs.folder / "kept").string()});
  ASSERT_EQ(whole.status, 0) << whole.err;
  const std::vector<json> seeds = lines_of(whole.out);
  ASSERT_EQ(seeds.size(), 2u) << whole.out;
  for (const json& j : seeds) {
    EXPECT_TRUE(j["reached"].get<bool>());
    EXPECT_EQ(j["steps"], 12);
    EXPECT_GT(j["value"].get<double>(), j["step_seconds"].get<double>());
    ASSERT_EQ(j["curve"].size(), 4u) << j;  // before the first step and every fourth
    EXPECT_EQ(j["curve"].back()["tokens"], 12 * 32);
    EXPECT_EQ(j["curve"].back()["val_loss"], j["val_loss"]);
  }
  EXPECT_NE(seeds[0]["val_loss"], seeds[1]["val_loss"]);
  EXPECT_TRUE(fs::exists(runs.folder / "kept" / "seed-2" / "log.jsonl"));

  // A target between the first and the last validation ends the run early.
  const double target = seeds[0]["curve"][1]["val_loss"].get<double>();
  const Ran early = run(runs.folder, common + Arguments{"--target", std::to_string(target + 1e-4)});
  ASSERT_EQ(early.status, 0) << early.err;
  const json j = lines_of(early.out).at(0);
  EXPECT_TRUE(j["reached"].get<bool>());
  EXPECT_EQ(j["steps"], 4) << j;

  // So does that of the recipe, which --target replaces.
  write_file_atomic(runs.folder / "small.toml",
                    with_toml_value(small, "target_loss", std::to_string(target + 1e-4)));
  const Ran own = run(runs.folder, common);
  ASSERT_EQ(own.status, 0) << own.err;
  EXPECT_EQ(lines_of(own.out).at(0)["steps"], 4) << own.out;
  EXPECT_EQ(lines_of(own.out).at(0)["target"], j["target"]);
  const Ran none = run(runs.folder, common + Arguments{"--target", "0"});
  ASSERT_EQ(none.status, 0) << none.err;
  EXPECT_EQ(lines_of(none.out).at(0)["steps"], 12) << none.out;
  EXPECT_TRUE(lines_of(none.out).at(0)["target"].is_null());
}

// A recipe in FP8 runs on a GPU without it.
TEST(BenchNocap, TakesAnotherDtypeThanTheRecipes) {
  const ShortRuns runs;
  write_file_atomic(runs.folder / "small.toml", std::string_view(small));
  const Arguments call{"bench",
                       "nocap",
                       "--json",
                       "--device",
                       "cpu",
                       "--steps",
                       "2",
                       "--recipe",
                       (runs.folder / "small.toml").string(),
                       "--data",
                       (runs.folder / "train.bin").string(),
                       "--val",
                       (runs.folder / "val.bin").string(),
                       "--run",
                       (runs.folder / "kept").string(),
                       "--dtype"};
  const Ran r = run(runs.folder, call + Arguments{"bf16"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines_of(r.out).at(0)["dtype"], "bf16");
  const std::string config = read_file(runs.folder / "kept" / "seed-1" / "config.toml");
  EXPECT_NE(config.find("\ndtype = \"bf16\"\n"), config.npos) << config;
  expect_error(run(runs.folder, call + Arguments{"fp9"}), 2, "[--dtype] expected");
}

// The recipe of the whole benchmark with a model, steps and data that a CPU can do.
TEST(BenchNocap, RunsTheFullRecipeMadeSmall) {
  const ShortRuns runs;
  std::string text = text_of_recipe("nocap-full");
  for (const auto& [key, value] : {std::pair{"vocab", "260"},
                                   {"context", "32"},
                                   {"layers", "1"},
                                   {"dim", "16"},
                                   {"heads", "2"},
                                   {"dtype", "\"fp32\""},
                                   {"seq", "\"16\""},
                                   {"batch", "2"},
                                   {"tokens_per_step", "\"64\""},
                                   {"steps", "24"},
                                   {"warmup", "2"},
                                   {"decay_steps", "6"},
                                   {"eval_every", "8"},
                                   {"eval_tokens", "64"},
                                   {"checkpoint_every", "10"}})
    text = with_toml_value(std::move(text), key, value);
  write_file_atomic(runs.folder / "full.toml", text);
  const Ran r = run(runs.folder, {"bench", "nocap", "--json", "--device", "cpu", "--recipe",
                                  (runs.folder / "full.toml").string(), "--data",
                                  (runs.folder / "train.bin").string(), "--val",
                                  (runs.folder / "val.bin").string()});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = lines_of(r.out).at(0);
  EXPECT_EQ(j["target"], 3.3821);
  EXPECT_EQ(j["reached"], j["val_loss"] <= 3.3821);
  EXPECT_EQ(j["tokens"].get<int64_t>(), j["steps"].get<int64_t>() * 64);
  ASSERT_GE(j["curve"].size(), 2u) << j;
  EXPECT_EQ(j["curve"][1]["step"], 8);
  EXPECT_LT(j["val_loss"], j["curve"][0]["val_loss"]);
}

TEST(BenchNocap, AFailedRunAndASpentBudgetAreSaid) {
  const ShortRuns runs;
  std::string text = small;
  text.replace(text.find("steps = 12"), 10, "steps = 100000000");
  write_file_atomic(runs.folder / "long.toml", std::string_view(text));
  const auto with = [&](const std::string& data, const char* budget) {
    return run(runs.folder, {"bench", "nocap", "--json", "--device", "cpu", "--recipe",
                             (runs.folder / "long.toml").string(), "--data", data, "--val",
                             (runs.folder / "val.bin").string(), "--budget", budget});
  };
  const Ran failed = with("none.bin", "60");
  EXPECT_NE(failed.status, 0);
  EXPECT_NE(failed.err.find("none.bin"), failed.err.npos) << failed.err;
  const Ran spent = with((runs.folder / "train.bin").string(), "2");
  ASSERT_EQ(spent.status, 0) << spent.err;
  const json j = lines_of(spent.out).at(0);
  EXPECT_EQ(j.count("steps"), 0u) << j;
  EXPECT_GE(j["curve"].size(), 1u) << j;
}

// A recipe that the flags cannot run names what can be changed.
TEST(BenchNocap, ASettingOfTheRecipeThatCannotWorkIsExplained) {
  const ShortRuns runs;
  const auto bench = [&](const std::string& recipe, const Arguments& more) {
    return run(runs.folder, Arguments{"bench", "nocap", "--device", "cpu", "--recipe", recipe,
                                      "--data", (runs.folder / "train.bin").string(), "--val",
                                      (runs.folder / "val.bin").string()} +
                                more);
  };
  expect_error(bench("full", {"--steps", "5"}), 2,
               "[--steps] expected at least the 1024 steps of the recipe's decay_steps, got 5; or "
               "write the recipe to a file (hearth info --recipe nocap-full), change it there");
  const std::string own = runs.folder / "own.toml";
  write_file_atomic(own, std::string(small) + "schedule = \"wsd\"\ndecay_steps = 8\n");
  expect_error(bench(own, {"--steps", "5"}), 2, "got 5; or change it in " + own);
  write_file_atomic(own, std::string(small) + "window = 8\nwindow_schedule = \"0:4,7:8\"\n");
  const Ran r = bench(own, {"--steps", "5"});
  EXPECT_EQ(r.status, 2) << r.err;
  EXPECT_NE(r.err.find("[bench nocap] the pretraining run of seed 1 failed: [--window-schedule] "
                       "expected changes before the run ends at step 5, got one at step 7; "
                       "--window-schedule is a setting of the recipe: change it in " +
                       own),
            r.err.npos)
      << r.err;
}

TEST(BenchNocap, AVariableThatChangesTheRecipeIsRefused) {
  const ShortRuns runs;
  write_file_atomic(runs.folder / "small.toml", std::string_view(small));
  setenv("HEARTH_OPTIMIZER", "lion", 1);
  const Ran r = run(runs.folder, {"bench", "nocap", "--device", "cpu", "--recipe",
                                  (runs.folder / "small.toml").string(), "--data",
                                  (runs.folder / "train.bin").string(), "--val",
                                  (runs.folder / "val.bin").string()});
  unsetenv("HEARTH_OPTIMIZER");
  EXPECT_NE(r.status, 0);
  EXPECT_NE(r.err.find("HEARTH_OPTIMIZER"), r.err.npos) << r.err;
}

// Ctrl-C ends the run that is being timed and removes its folder.
TEST(BenchNocap, ASignalLeavesNothingBehind) {
  const ShortRuns runs;
  std::string text = small;
  text.replace(text.find("steps = 12"), 10, "steps = 100000000");
  write_file_atomic(runs.folder / "long.toml", std::string_view(text));
  fs::create_directory(runs.folder / "tmp");
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before ? before : "";
  setenv("TMPDIR", (runs.folder / "tmp").c_str(), 1);
  const pid_t bench = start(runs.folder, {"bench", "nocap", "--device", "cpu", "--recipe",
                                          (runs.folder / "long.toml").string(), "--data",
                                          (runs.folder / "train.bin").string(), "--val",
                                          (runs.folder / "val.bin").string()});
  before ? setenv("TMPDIR", kept.c_str(), 1) : unsetenv("TMPDIR");
  for (int i = 0; i < 600 && fs::is_empty(runs.folder / "tmp"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(fs::is_empty(runs.folder / "tmp"));
  kill(bench, SIGINT);
  int status = 0;
  waitpid(bench, &status, 0);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 0, 130);
  EXPECT_TRUE(fs::is_empty(runs.folder / "tmp"));
  const std::string err = read_file(runs.folder / "run.err");
  EXPECT_TRUE(err.ends_with("stopped by SIGINT; a benchmark cannot be resumed, it begins anew\n"))
      << err;
}

}  // namespace
}  // namespace hearth
