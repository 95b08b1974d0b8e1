// The settings of a run: what a resumed run may change, and what config.toml then says.
#include "formats/run_settings.h"

#include <bit>

#include "formats/run_folder.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(RunFolder, MayBeExtended) {
  const TempDir dir;
  const fs::path run = dir / "run";
  open_run_folder(run, false, "lr = 0.1\nsteps = 10\nepochs = 3\n");
  const auto check = [&](const nlohmann::ordered_json& settings) {
    return error_of([&] { expect_settings_of_run(run, {.values = settings}); });
  };
  EXPECT_EQ(check({{"lr", 0.1}, {"steps", 20}}), "");
  expect_error(check({{"steps", 9}}), "steps = 10, not 9");
  expect_error(check({{"lr", 0.2}, {"steps", 20}}), "lr = 0.1, not 0.2");
  write_changes(run, {.values = {{"lr", 0.1}, {"steps", 20}, {"epochs", 3}}});
  const std::string text = read_file(run / "config.toml");
  EXPECT_TRUE(text.starts_with("lr = 0.1\nsteps = 20\nepochs = 3\n# The run")) << text;
}

TEST(RunFolder, RemembersWhatAResumedRunChanged) {
  const TempDir dir;
  const fs::path run = dir / "run";
  open_run_folder(run, false, "steps = 10\nkeep = 3\nrecompute = \"none\"\ndata = [\"a\"]\n");
  write_changes(
      run,
      {.values = {{"steps", 10}, {"keep", 1000}, {"recompute", "block"}, {"data", {"elsewhere"}}},
       .free = {"data"}});
  const std::string text = read_file(run / "config.toml");
  EXPECT_TRUE(text.starts_with("steps = 10\nkeep = 1000\nrecompute = \"block\"\ndata = [\"a\"]\n"))
      << text;
}

// config.toml may be edited by hand, and that of an older version lacks newer settings.
TEST(RunFolder, RemembersWhatAResumedRunChangedInAnEditedFile) {
  const TempDir dir;
  const fs::path run = dir / "run";
  open_run_folder(run, false, "steps=10\n  keep=3 # enough\n'save_best'\t= true\nlr = 0.1");
  const RunSettings now{
      .values = {{"steps", 20},
                 {"keep", 1000},
                 {"save_best", false},
                 {"lr", 0.1},
                 {"eval_every", 7},
                 {"checkpoint_every", 500},
                 {"order", "shuffled"}},
      .defaults = {{"eval_every", 250}, {"checkpoint_every", 500}, {"order", "x"}},
      .free = {"order"}};
  write_changes(run, now);
  const std::string text = read_file(run / "config.toml");
  EXPECT_TRUE(text.starts_with("steps=20\n  keep=1000 # enough\n'save_best'\t= false\nlr = 0.1"))
      << text;
  EXPECT_NE(text.find("\neval_every = 7\n"), text.npos) << text;
  EXPECT_EQ(text.find("checkpoint_every"), text.npos) << text;  // it has its default
  EXPECT_EQ(text.find("order"), text.npos) << text;             // free in some runs only
  EXPECT_EQ(started_in(run), fs::current_path());
  write_changes(run, now);
  EXPECT_EQ(read_file(run / "config.toml"), text);
}

// One rule for config.toml, whose values are text, and for checkpoints.
TEST(RunSettings, AreComparedByTypeAndValue) {
  const TempDir dir;
  open_run_folder(dir / "run", false,
                  "lr = 1e-2\nseed = 18446744073709551615\nchat = true\nname = \"7\"\n"
                  "data = [\"a\", \"b\"]\nkeep = 1\n");
  const json saved{{"lr", 0.01},  {"seed", UINT64_MAX}, {"chat", true},
                   {"name", "7"}, {"data", {"a", "b"}}, {"keep", 1}};
  const RunSettings same{.values = {{"lr", 0.01},
                                    {"seed", UINT64_MAX},
                                    {"chat", true},
                                    {"name", "7"},
                                    {"data", {"a", "b"}},
                                    {"keep", 9},
                                    {"newer", 0.5}},
                         .defaults = {{"newer", 0.5}, {"lr", 7}},
                         .free = {"keep"}};
  const auto expect = [&](const RunSettings& now, const std::string& error) {
    for (const std::string& got :
         {error_of([&] { expect_settings_of_run(dir / "run", now); }),
          error_of([&] { expect_same_settings(saved, now, "trainer.json"); })}) {
      if (error.empty())
        EXPECT_EQ(got, "");
      else
        expect_error(got, error);
    }
  };
  expect(same, "");
  const std::vector<std::tuple<const char*, json, const char*>> others{
      {"lr", 0.02, "lr = 0.01, not 0.02"},
      {"seed", UINT64_MAX - 1, "seed = 18446744073709551615, not 18446744073709551614"},
      {"chat", false, "chat = true, not false"},
      {"name", "8", "name = 7, not 8"},
      {"name", "", "name = 7, not none"},
      {"data", {"a"}, "data = a,b, not a"},
      {"newer", 0, "newer = 0.5, not 0"}};  // an older run did what the default does
  for (const auto& [key, value, error] : others) {
    RunSettings now = same;
    now.values[key] = value;
    expect(now, error);
  }
}

struct NumberConfig {
  float decay = 0.1f, eps = 1e-8f, large = 3e38f, third = 1.f / 3, none = 0;
  double rate = 0.1, exact = 0.10000000149011612;
  void visit(auto&& v) {
    v("decay", decay, ""), v("eps", eps, ""), v("large", large, ""), v("third", third, "");
    v("none", none, ""), v("rate", rate, ""), v("exact", exact, "");
  }
};

// A float is written in its shortest form, and a run that has its full digits is the same run.
TEST(RunSettings, WriteFloatsInTheirShortestForm) {
  NumberConfig config;
  const RunSettings now = RunSettings::of({}, config);
  const std::string text = now.toml();
  EXPECT_TRUE(
      text.ends_with("decay = 0.1\neps = 1e-08\nlarge = 3e+38\nthird = 0.33333334\n"
                     "none = 0.0\nrate = 0.1\nexact = 0.10000000149011612\n"))
      << text;
  const TempDir dir;
  open_run_folder(dir / "new", false, text);
  open_run_folder(dir / "old", false,
                  "decay = 0.10000000149011612\neps = 9.99999993922529e-09\n"
                  "large = 3.0000000054977558e+38\nthird = 0.3333333432674408\nnone = 0.0\n"
                  "rate = 0.1\nexact = 0.10000000149011612\n");
  for (const char* run : {"new", "old"})
    EXPECT_EQ(error_of([&] { expect_settings_of_run(dir / run, now); }), "");
  config.decay = 0.10000001f;
  expect_error(error_of([&] { expect_settings_of_run(dir / "old", RunSettings::of({}, config)); }),
               "decay = 0.10000000149011612, not 0.10000001");
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 0x1001) {
    const float x = std::bit_cast<float>(bits);
    ASSERT_EQ(float(shortest_number(x)), x);
  }
}

TEST(RunFolder, KeepsTheModelItBeganWith) {
  const TempDir dir;
  make_dirs(dir / "base");
  make_dirs(dir / "other");
  fs::create_directory_symlink(dir / "base", dir / "link");
  const fs::path run = dir / "run", base = dir / "base";
  open_run_folder(run, false, "model = \"" + base.string() + "\"\n");
  for (const fs::path& same : {base, dir / "link", fs::relative(base)})
    expect_model_of_run(run, same.string());
  const std::string expected = "model = " + base.string() + ", not ";
  const std::string other = (dir / "other").string();
  expect_error(error_of([&] { expect_model_of_run(run, other); }), expected + other);
  fs::remove_all(base);  // the run does not need it any more
  expect_model_of_run(run, base.string());
  expect_error(error_of([&] { expect_model_of_run(run, other); }), expected + other);

  open_run_folder(dir / "random", false, "model = \"\"\n");
  expect_model_of_run(dir / "random", "");
  expect_error(error_of([&] { expect_model_of_run(dir / "random", other); }),
               "model = none, not " + other);
}

}  // namespace
}  // namespace hearth::test
