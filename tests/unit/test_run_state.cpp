// What a run goes on from: the state of every task within its ranges, logs that are what a
// checkpoint recorded, and a folder whose links and checkpoints follow from the newest one.
#include "formats/toml.h"
#include "train/run_state.h"

#include <sys/file.h>

#include <bit>
#include <fstream>

#include "data/cursor_state.h"
#include "formats/checkpoint_dir.h"
#include "formats/run_folder.h"
#include "formats/run_settings.h"
#include "test_io_support.h"
#include "train/checkpoint/checkpoint.h"
#include "train/dpo/reference_sums.h"
#include "train/grpo/grpo_state.h"
#include "train/log.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;
namespace fs = std::filesystem;

template <class State>
std::string error_in(const json& j) {
  return error_of([&] { State::from_json({j, "trainer.json", "run"}); });
}

// Each value alone in the place of a good one; the error is one line that names the field.
template <class State>
void expect_refused(const json& good, const std::vector<std::pair<std::string, json>>& bad) {
  EXPECT_EQ(error_in<State>(good), "");
  for (const auto& [field, value] : bad) {
    json j = good;
    j[json::json_pointer("/" + field)] = value;
    std::string name = "run." + field;
    std::replace(name.begin(), name.end(), '/', '.');
    while (isdigit(name.back()) || name.back() == '.') name.pop_back();  // of an entry: the list
    SCOPED_TRACE(field + " = " + value.dump());
    const std::string error = error_in<State>(j);
    expect_error(error, "[trainer.json] ");
    expect_error(error, name);
  }
}

const int64_t lowest = INT64_MIN;
const json words_of_nan = update_to_json({.grad_norm = NAN, .grad_scale = NAN});
const json half_a_step = update_to_json({.good_steps = 0.5f});
const json negative_streak = update_to_json({.streak = -1});

TEST(RunState, RefusesFieldsOutOfRange) {
  RunState s;
  s.step = 9, s.data_step = 11, s.losses = {1.5}, s.last_eval = 2.5, s.evaluated = 8;
  s.log = {10, std::string(64, 'a')};
  expect_refused<RunState>(s.to_json(), {{"step", -1},
                                         {"step", lowest},
                                         {"step", uint64_t(1) << 63},
                                         {"step", 1.5},
                                         {"step", "9"},
                                         {"step", int64_t(UINT32_MAX) + 1},
                                         {"total", -1},
                                         {"data_step", 8},
                                         {"tokens", -1},
                                         {"update", json::array()},
                                         {"update", {1, 2}},
                                         {"update/0", -1},
                                         {"update/7", int64_t(1) << 32},
                                         {"update", words_of_nan},
                                         {"update", half_a_step},
                                         {"update", negative_streak},
                                         {"reloads", -1},
                                         {"good_step", -2},
                                         {"good_step", 10},
                                         {"best_step", -2},
                                         {"best_step", 10},
                                         {"evaluated", -2},
                                         {"evaluated", 10},
                                         {"last_eval_step", 9},
                                         {"spikes", 4},
                                         {"logits_bytes", -1},
                                         {"loss_scale", 0},
                                         {"loss_scale", -2},
                                         {"loss_scale", 1e30},
                                         {"scale_steps", -1},
                                         {"scale_steps", 2001},
                                         {"best_eval", "low"},
                                         {"last_eval", json::array()},
                                         {"finite_eval", 1},
                                         {"losses", std::vector<double>(129)},
                                         {"losses/0", "x"},
                                         {"log_bytes", -1},
                                         {"samples_bytes", lowest},
                                         {"log_sha256", "abc"},
                                         {"train_seconds", -1}});
}

struct CursorState {
  static void from_json(const StateFields& f) { cursor_of(f.object("cursor")); }
};

TEST(RunState, CursorRefusesFieldsOutOfRange) {
  Cursor c;
  c.sources = {{}, {}};
  expect_refused<CursorState>({{"cursor", cursor_to_json(c)}},
                              {{"cursor/epoch", -1},
                               {"cursor/shard", lowest},
                               {"cursor/position", -5},
                               {"cursor/tokens", -1},
                               {"cursor/sources/1", json{{"epoch", 1}}},
                               {"cursor/sources", 3},
                               {"cursor", json::array()}});
}

TEST(RunState, GrpoRefusesFieldsOutOfRange) {
  GrpoState s;
  s.completions = 5, s.micro_tokens = 64;
  expect_refused<GrpoState>(s.to_json(), {{"version", -1},
                                          {"completions", -1},
                                          {"unrewarded", 6},
                                          {"ema", "x"},
                                          {"beta", -0.1},
                                          {"beta", json()},
                                          {"last_exact", 1.5},
                                          {"last_exact", -2},
                                          {"last_reward", true},
                                          {"micro_tokens", 0}});
}

TEST(RunState, AnOlderVersionIsNamed) {
  const json old{{"version", 1}, {"run", json::object()}};
  expect_error(error_of([&] { trainer_fields(old, "trainer.json"); }),
               "[trainer.json] the run was made by an older version of hearth");
}

TEST(RunState, ReferenceSumsAreFiniteNumbers) {
  const TempDir dir;
  const fs::path file = dir / "reference.json";
  write_file_atomic(file, R"({"key": "k", "sums": [[-1.5, -2], [-3, null]]})");
  expect_error(error_of([&] { ReferenceFile(file, "k"); }),
               "expected sums[1] to be two finite numbers");
  write_file_atomic(file, R"({"key": "k", "sums": [[-1.5, -2]]})");
  EXPECT_EQ(ReferenceFile(file, "k").sums.size(), 1u);
  EXPECT_TRUE(ReferenceFile(file, "other").sums.empty());
}

// Three steps, of which a checkpoint has marked two.
struct Logged {
  Logged() {
    MarkedLog log(file, {});
    log.append(R"({"step":1})");
    log.append(R"({"step":2})");
    mark = log.mark();
    log.append(R"({"step":3})");
  }
  std::string trouble() const { return MarkedLog(file, mark).trouble(); }
  const TempDir dir;
  const fs::path file = dir / "log.jsonl";
  LogMark mark;
};

TEST(MarkedLog, SaysNothingOfWhatTheRunWrote) {
  const Logged l;
  EXPECT_EQ(l.trouble(), "");
  EXPECT_EQ(read_file(l.file), "{\"step\":1}\n{\"step\":2}\n");
  MarkedLog again(l.file, l.mark);  // goes on with the same sum
  again.append(R"({"step":3})");
  EXPECT_EQ(again.mark().sha256, sha256_hex(to_bytes(read_file(l.file))));
  EXPECT_EQ(MarkedLog(l.file, {l.mark.bytes, ""}).trouble(), "");  // an older checkpoint
}

TEST(MarkedLog, SaysThatItWasCutDeletedOrChanged) {
  Logged l;
  fs::resize_file(l.file, 15);  // within the second line
  EXPECT_EQ(l.trouble(),
            "log.jsonl is shorter than the checkpoint recorded (15 of 22 bytes): its lines after "
            "step 1 are lost; the run goes on");
  EXPECT_EQ(read_file(l.file), "{\"step\":1}\n");
  fs::remove(l.file);
  EXPECT_EQ(l.trouble(),
            "log.jsonl is shorter than the checkpoint recorded (0 of 22 bytes): its lines are "
            "lost; the run goes on");
  const std::string changed = "{\"step\":1}\n{\"step\":7}\n";
  write_file_atomic(l.file, changed);
  EXPECT_EQ(l.trouble(),
            "log.jsonl is not what the checkpoint recorded: its first 22 bytes have changed; they "
            "are kept and the run goes on");
  EXPECT_EQ(read_file(l.file), changed);
}

TEST(RunLog, TellsWhichLogWasCut) {
  const TempDir run;
  LogMark log, samples;
  {
    RunLog first(run.path(), {}, {}, 10, true);
    first.step({.step = 1});
    first.sample(1, "a text");
    log = first.log_mark(), samples = first.samples_mark();
  }
  fs::remove(run / "samples.jsonl");
  std::vector<std::string> said;
  RunLog second(run.path(), log, samples, 10, true, [&](auto& line) { said.push_back(line); });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].starts_with("samples.jsonl is shorter")) << said[0];
}

TEST(RunFolder, IsCheckedUnderItsLock) {
  const TempDir dir;
  const fs::path run = dir / "run";
  {
    const Fd lock = open_run_folder(run, false, "a = 1\n");
    expect_error(error_of([&] { open_run_folder(run, false, "a = 2\n"); }), "locked");
    expect_error(error_of([&] { open_run_folder(run, true, "a = 2\n"); }), "locked");
  }
  // Who found it new before the other took the lock finds a run in it now.
  expect_error(error_of([&] { open_run_folder(run, false, "a = 2\n"); }),
               "has a run without a checkpoint to resume from: delete it");
  const std::string began = read_file(run / "config.toml");
  EXPECT_TRUE(began.starts_with("a = 1\n")) << began;
  EXPECT_EQ(read_toml(run / "config.toml").size(), 1u);
  EXPECT_EQ(started_in(run), fs::current_path());
  open_run_folder(run, true, "a = 3\n");
  EXPECT_EQ(read_file(run / "config.toml"), began);
}

// A run that failed before its first checkpoint must not block its folder without a way out.
TEST(RunFolder, TellsWhatToDoWithAnOldRun) {
  const TempDir dir;
  const fs::path run = dir / "run";
  const auto again = [&] { return error_of([&] { expect_new_or_resumed(run, false); }); };
  const auto with_other_settings = [&] {
    return error_of([&] { expect_settings_of_run(run, {.values = {{"lr", 0.2}}}); });
  };
  {
    const Fd lock = open_run_folder(run, false, "lr = 0.1\n");
    expect_error(again(), "another process trains in it: choose a new folder");
    EXPECT_EQ(with_other_settings().find("delete"), std::string::npos);
  }
  expect_error(again(),
               "has a run without a checkpoint to resume from: delete it or choose a new folder");
  expect_error(with_other_settings(), "this run has no checkpoint yet: delete " + run.string() +
                                          " or choose another --run");
  make_dirs(run / "checkpoints/step-00000001");
  expect_error(again(), "has a run in it: add --resume");
  EXPECT_EQ(with_other_settings().find("delete"), std::string::npos);
}

// Removing what a crash left would otherwise remove it somewhere else.
TEST(RunFolder, HoldsItsCheckpointsItself) {
  const TempDir dir;
  make_dirs(dir / "elsewhere/.tmp-precious");
  make_dirs(dir / "run");
  fs::create_directory_symlink(dir / "elsewhere", dir / "run/checkpoints");
  expect_error(error_of([&] { open_run_folder(dir / "run", true, ""); }), "symbolic link");
  EXPECT_TRUE(fs::exists(dir / "elsewhere/.tmp-precious"));
}

TEST(RunFolder, IsNotNewWithoutItsConfig) {
  for (const char* name :
       {"log.jsonl", "samples.jsonl", "perf.jsonl", "checkpoints/step-00000001"}) {
    const TempDir dir;
    make_dirs((dir / name).parent_path());
    write_file_atomic(dir / name, std::string_view("{}\n"));
    expect_error(error_of([&] { open_run_folder(dir.path(), false, ""); }), "] has a run ");
    EXPECT_EQ(read_file(dir / name), "{}\n");
    EXPECT_FALSE(fs::exists(dir / "config.toml"));
  }
}

// A run folder with checkpoints that hold a state and no weights.
class Reconcile : public testing::Test {
 protected:
  fs::path add(int64_t step, json more = {}) {
    make_dirs(run.path() / "checkpoints");
    CheckpointWriter w(run.path() / "checkpoints", step_name(step));
    json state{{"step", step}, {"best_step", -1}, {"good_step", -1}};
    state.update(more.is_null() ? json::object() : more);
    write_file_atomic(w.path("state/trainer.json"),
                      json{{"version", trainer_version}, {"run", state}}.dump());
    write_file_atomic(w.path("state/optimizer.safetensors"), "moments");
    return w.commit();
  }
  // Those that a run could go on from.
  std::set<int64_t> with_optimizer() const {
    std::set<int64_t> all;
    for (const int64_t step : steps())
      if (fs::exists(run.path() / "checkpoints" / step_name(step) / "state/optimizer.safetensors"))
        all.insert(step);
    return all;
  }
  void link(const std::string& name, int64_t step) {
    set_link(run.path(), name, "checkpoints/" + step_name(step));
  }
  std::set<int64_t> steps() const {
    std::set<int64_t> all;
    for (const auto& entry : fs::directory_iterator(run.path() / "checkpoints"))
      all.insert(parse_step_name(entry.path().filename().string()).value_or(-1));
    return all;
  }
  const TempDir run;
};

// Killed between the commit of step 5, the best so far, and everything that follows from it.
TEST_F(Reconcile, FinishesWhatAKillLeft) {
  for (int64_t i = 1; i <= 4; ++i) add(i, {{"best_step", 1}});
  link("latest", 4), link("best", 1);
  const fs::path newest = add(5, {{"best_step", 5}});
  reconcile(run.path(), newest, 2);
  EXPECT_EQ(linked_step(run.path(), "latest"), 5);
  EXPECT_EQ(linked_step(run.path(), "best"), 5);
  EXPECT_EQ(steps(), (std::set<int64_t>{4, 5}));
  EXPECT_EQ(with_optimizer(), (std::set<int64_t>{4, 5}));
}

TEST_F(Reconcile, TheBestLosesItsOptimizerWhenOnlyThatKeepsIt) {
  for (int64_t i = 1; i <= 5; ++i) {
    reconcile(run.path(), add(i, {{"best_step", i < 2 ? -1 : 2}, {"good_step", i}}), 2);
    EXPECT_EQ(with_optimizer(), (i == 1 ? std::set<int64_t>{1} : std::set<int64_t>{i - 1, i}));
    EXPECT_EQ(steps().contains(2), i > 1);
  }
  EXPECT_EQ(verify_checkpoint(run.path() / "checkpoints" / step_name(2)), std::nullopt);
}

TEST_F(Reconcile, SparesTheBestAndTheGoodStep) {
  for (int64_t i = 1; i <= 5; ++i) add(i, {{"best_step", 2}, {"good_step", 1}});
  reconcile(run.path(), run.path() / "checkpoints" / step_name(5), 1);
  EXPECT_EQ(linked_step(run.path(), "best"), 2);
  EXPECT_EQ(steps(), (std::set<int64_t>{1, 2, 5}));
  EXPECT_EQ(with_optimizer(), (std::set<int64_t>{1, 5})) << "1 is what a bad row goes back to";
}

// A run that fell back to step 3 leaves the damaged step 5 alone and does not count it.
TEST_F(Reconcile, DoesNotCountDamagedLaterOnes) {
  for (int64_t i = 1; i <= 5; ++i) add(i, {{"best_step", -1}});
  link("best", 5);
  reconcile(run.path(), run.path() / "checkpoints" / step_name(3), 2);
  EXPECT_EQ(linked_step(run.path(), "latest"), 3);
  EXPECT_EQ(linked_step(run.path(), "best"), -1);
  EXPECT_EQ(steps(), (std::set<int64_t>{2, 3, 4, 5}));
}

TEST_F(Reconcile, RefusesAStateOfAnotherStep) {
  add(3);
  fs::rename(run.path() / "checkpoints" / step_name(3), run.path() / "checkpoints" / step_name(4));
  expect_error(
      error_of([&] { reconcile(run.path(), run.path() / "checkpoints" / step_name(4), 2); }),
      "expected run.step to be that of step-00000004, got 3");
}

}  // namespace
}  // namespace hearth
