// Pretraining through the command line: resume to the bit, kills, damaged checkpoints, bad input.
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "e2e/command.h"
#include "formats/checkpoint_dir.h"

namespace hearth {
namespace {

fs::path newest(const fs::path& run) { return *find_newest_valid(run / "checkpoints").dir; }

// Every file of a model and its optimizer, by name.
std::map<std::string, std::string> weights_of(const fs::path& checkpoint) {
  return {{"model", read_file(checkpoint / "model.safetensors")},
          {"optimizer", read_file(checkpoint / "state" / "optimizer.safetensors")}};
}

fs::path latest_of(const fs::path& run) {
  std::error_code none;
  return fs::read_symlink(run / "latest", none);
}

// Waits until the run has saved a checkpoint later than `before`, or has ended.
void wait_for_checkpoint(const fs::path& run, const fs::path& before, pid_t pid) {
  for (int i = 0; i < 60000 && latest_of(run) == before; ++i) {
    if (has_ended(pid)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class Pretrain : public testing::Test {
 protected:
  void SetUp() override {
    write_chain(data, 20000, 1);
    write_chain(val, 4000, 2);
  }
  Folder folder;
  const fs::path data = folder / "train.bin", val = folder / "val.bin";
};

// Also under another name of the file; a resumed run said it when it began.
TEST_F(Pretrain, SaysThatItValidatesOnItsTrainingData) {
  fs::create_symlink(data, folder / "link.bin");
  const std::string link = folder / "link.bin",
                    said = link + " is given to both --data and --val: ";
  const Ran r = run(folder, tiny_run(data, folder / "both", 2) +
                                Arguments{"--val", val, "--val", link, "--stop-after-step", "1"});
  json_of(r);
  EXPECT_NE(r.err.find(said), std::string::npos) << r.err;
  const Ran resumed = run(folder, {"pretrain", "--run", folder / "both", "--resume", "--json"});
  json_of(resumed);
  EXPECT_EQ(resumed.err.find(said), std::string::npos) << resumed.err;
  const Ran other = run(folder, tiny_run(data, folder / "other", 1) + Arguments{"--val", val});
  json_of(other);
  EXPECT_EQ(other.err.find("given to both"), std::string::npos) << other.err;
}

TEST_F(Pretrain, LearnsAndReports) {
  const auto j = json_of(run(folder, tiny_run(data, folder / "run", 150) +
                                         Arguments{"--val", val.string(), "--eval-every", "50"}));
  EXPECT_EQ(j["steps"], 150);
  EXPECT_EQ(j["tokens"], 150 * 64);
  EXPECT_LT(j["val_loss"].get<double>(), 2.6);  // ln 64 = 4.16 at the start, ln 3 = 1.10 at best
  EXPECT_GT(j["tokens_per_s"].get<double>(), 0);
  EXPECT_TRUE(fs::exists(folder / "run/latest/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "run/best/config.json"));
  EXPECT_TRUE(fs::exists(folder / "run/config.toml"));
  std::ifstream log(folder / "run/log.jsonl");
  int steps = 0, validations = 0;
  for (std::string line; std::getline(log, line);) {
    const auto entry = nlohmann::json::parse(line);
    entry.contains("val_loss") ? ++validations : ++steps;
  }
  EXPECT_EQ(steps, 150);
  EXPECT_EQ(validations, 4);
}

TEST_F(Pretrain, ResumesToTheBit) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const Arguments extra{"--dtype", dtype, "--val", val.string(), "--eval-every", "10"};
    const fs::path whole = folder / (std::string("whole-") + dtype);
    const fs::path parts = folder / (std::string("parts-") + dtype);
    json_of(run(folder, tiny_run(data, whole, 40) + extra));
    const auto first = json_of(
        run(folder, tiny_run(data, parts, 40) + extra + Arguments{"--stop-after-step", "17"}));
    EXPECT_EQ(first["steps"], 17);
    EXPECT_EQ(first["reason"], "stopped");
    // The folder alone says what the run was.
    json_of(
        run(folder, {"pretrain", "--run", parts.string(), "--resume", "--threads", "1", "--json"}));
    EXPECT_EQ(weights_of(newest(whole)), weights_of(newest(parts))) << dtype;
    EXPECT_EQ(read_file(whole / "log.jsonl"), read_file(parts / "log.jsonl")) << dtype;
  }
}

TEST_F(Pretrain, OtherDataIsSaid) {
  const auto resumed = [&] {
    return run(folder, {"pretrain", "--run", folder / "run", "--resume", "--json"});
  };
  json_of(run(folder, tiny_run(data, folder / "run", 9) + Arguments{"--stop-after-step", "3"}));
  fs::rename(data, folder / "moved.bin");
  fs::copy_file(folder / "moved.bin", data);
  json_of(run(folder, Arguments{"pretrain", "--run", folder / "run", "--resume", "--json",
                                "--stop-after-step", "5"}));
  EXPECT_EQ(read_file(folder / "run.err").find("the data is not"), std::string::npos);
  write_chain(data, 20000, 5);
  const Ran other = resumed();
  EXPECT_EQ(other.status, 0);
  EXPECT_NE(other.err.find("the data is not what"), std::string::npos) << other.err;
}

TEST_F(Pretrain, SignalSavesAndResumes) {
  const fs::path whole = folder / "whole", parts = folder / "parts";
  json_of(run(folder, tiny_run(data, whole, 2000)));
  const Arguments often{"--checkpoint-every", "20"};
  const pid_t pid = start(folder, tiny_run(data, parts, 2000) + often, "signalled");
  wait_for_checkpoint(parts, {}, pid);
  kill(pid, SIGTERM);
  EXPECT_EQ(wait_for(pid), 128 + SIGTERM) << read_file(folder / "signalled.err");
  json_of(run(folder, {"pretrain", "--run", parts.string(), "--resume", "--json"}));
  EXPECT_EQ(weights_of(newest(whole)), weights_of(newest(parts)));
}

// As timeout(1) does: the process, then its group.
TEST_F(Pretrain, SignalsOfOneMomentAreOne) {
  const fs::path to = folder / "run";
  const pid_t pid = start(folder, tiny_run(data, to, 1000000), "signalled");
  wait_for_file(to / "log.jsonl", pid);
  for (int i = 0; i < 20; ++i) {
    kill(pid, SIGINT);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(wait_for(pid), 128 + SIGINT) << read_file(folder / "signalled.err");
  EXPECT_TRUE(fs::exists(to / "latest/model.safetensors"));
}

TEST_F(Pretrain, ALaterSignalEndsAtOnce) {
  const fs::path to = folder / "run";
  // One step that takes minutes.
  const Arguments long_step{"--tokens-per-step", "20000000"};
  const pid_t pid = start(folder, tiny_run(data, to, 2) + long_step, "signalled");
  wait_for_file(to / "config.toml", pid);
  for (int i = 0; i < 20 && !has_ended(pid); ++i) {  // one may come late
    kill(pid, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  }
  if (!has_ended(pid)) kill(pid, SIGKILL);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT) << read_file(folder / "signalled.err");
}

TEST_F(Pretrain, StopsAtTheTarget) {
  const auto j = json_of(run(
      folder, tiny_run(data, folder / "run", 1000) +
                  Arguments{"--val", val.string(), "--eval-every", "20", "--target-loss", "3.5"}));
  EXPECT_EQ(j["reason"], "target");
  EXPECT_LT(j["steps"], 1000);
  EXPECT_LE(j["val_loss"].get<double>(), 3.5);
}

TEST_F(Pretrain, FallsBackFromDamagedCheckpoints) {
  const fs::path whole = folder / "whole";
  const Arguments often{"--checkpoint-every", "10", "--keep", "4"};
  json_of(run(folder, tiny_run(data, whole, 40) + often));
  const std::string log = read_file(whole / "log.jsonl");
  const auto good = weights_of(whole / "checkpoints/step-00000040");
  using Damage = std::function<void(const fs::path&)>;
  const std::vector<std::pair<const char*, Damage>> damages{
      {"truncated",
       [](const fs::path& d) {
         fs::resize_file(d / "model.safetensors", fs::file_size(d / "model.safetensors") - 7);
       }},
      {"flipped",
       [](const fs::path& d) {
         std::fstream f(d / "state/optimizer.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
         f.seekg(5000);
         const char c = char(f.get() ^ 16);
         f.seekp(5000);
         f.put(c);
       }},
      {"missing", [](const fs::path& d) { fs::remove(d / "state/trainer.json"); }},
      {"no manifest", [](const fs::path& d) { fs::remove(d / "manifest.json"); }},
  };
  for (const auto& [name, damage] : damages) {
    const fs::path copy = folder / name;
    fs::copy(whole, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    damage(copy / "checkpoints/step-00000040");
    const Ran r = run(folder, {"pretrain", "--run", copy.string(), "--resume", "--json"});
    EXPECT_EQ(r.status, 0) << name << r.err;
    EXPECT_NE(r.err.find("step-00000040 is damaged"), std::string::npos) << name << r.err;
    EXPECT_EQ(weights_of(copy / "checkpoints/step-00000040"), good) << name;
    EXPECT_EQ(read_file(copy / "log.jsonl"), log) << name;
  }
}

// Kills at random moments of training: every restart goes on, and none loses more than the steps
// since the last checkpoint. The end is the end of a run that was never killed.
TEST_F(Pretrain, SurvivesFiftyKills) {
  const Arguments often{"--checkpoint-every", "7"};
  const fs::path whole = folder / "whole", killed = folder / "killed";
  constexpr int64_t steps = 1500;
  json_of(run(folder, tiny_run(data, whole, steps) + often));
  std::mt19937 random(7);
  int64_t last = 0;
  int advanced = 0;
  for (int kills = 0; kills < 50; ++kills) {
    const fs::path before = latest_of(killed);
    const pid_t pid =
        start(folder, tiny_run(data, killed, steps) + often + Arguments{"--resume"}, "killed");
    wait_for_checkpoint(killed, before, pid);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    kill(pid, SIGKILL);
    const int status = wait_for(pid);
    EXPECT_TRUE(status == 128 + SIGKILL || status == 0) << read_file(folder / "killed.err");
    if (!fs::exists(killed / "checkpoints")) continue;
    const FoundCheckpoint found = find_newest_valid(killed / "checkpoints");
    EXPECT_TRUE(found.skipped.empty());
    const int64_t step = found.dir ? *parse_step_name(found.dir->filename().string()) : 0;
    EXPECT_GE(step, last);
    advanced += step > last;
    last = step;
  }
  EXPECT_GT(advanced, 10);
  json_of(run(folder, tiny_run(data, killed, steps) + often + Arguments{"--resume"}));
  EXPECT_EQ(weights_of(newest(whole)), weights_of(newest(killed)));
  EXPECT_EQ(read_file(whole / "log.jsonl"), read_file(killed / "log.jsonl"));
}

TEST_F(Pretrain, RecoversFromNonFiniteGradients) {
  // A learning rate that blows up soon after the first checkpoint: the run goes back, then gives up
  // with one line rather than train on rubbish.
  Arguments args = tiny_run(data, folder / "run", 400);
  *(std::find(args.begin(), args.end(), "--lr") + 1) = "1e30";
  const Ran r =
      run(folder, args + Arguments{"--clip", "0", "--checkpoint-every", "1", "--warmup", "0"});
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("going back to step-"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("10 reloads"), std::string::npos) << r.err;
}

TEST_F(Pretrain, FollowsSchedulesAndResumesAcrossThem) {
  for (const char* order : {"shuffled", "sequential"}) {
    const Arguments extra{"--seq",      "0:8,20:16", "--batch", "4", "--tokens-per-step",
                          "0:32,10:64", "--order",   order};
    const fs::path whole = folder / (std::string("whole-") + order);
    const fs::path parts = folder / (std::string("parts-") + order);
    const auto j = json_of(run(folder, tiny_run(data, whole, 30) + extra));
    EXPECT_EQ(j["tokens"], 10 * 32 + 20 * 64);
    for (const char* stop : {"10", "20", "25"})
      json_of(run(folder, tiny_run(data, parts, 30) + extra +
                              Arguments{"--resume", "--stop-after-step", stop}));
    json_of(run(folder, {"pretrain", "--run", parts.string(), "--resume=true", "--json"}));
    EXPECT_EQ(weights_of(newest(whole)), weights_of(newest(parts))) << order;
    EXPECT_EQ(read_file(whole / "log.jsonl"), read_file(parts / "log.jsonl")) << order;
  }
  expect_error(run(folder, tiny_run(data, folder / "long", 30) + Arguments{"--seq", "0:16,20:32"}),
               2, "context 16");
}

TEST_F(Pretrain, ChoosesTheBatchOnce) {
  const fs::path run_folder = folder / "auto";
  const Arguments automatic{"--batch", "0", "--tokens-per-step", "128"};
  json_of(run(folder,
              tiny_run(data, run_folder, 20) + automatic + Arguments{"--stop-after-step", "5"}));
  const auto state = nlohmann::json::parse(read_file(newest(run_folder) / "state/trainer.json"));
  EXPECT_EQ(state["task"]["batches"], nlohmann::json({8}));
  json_of(run(folder, {"pretrain", "--run", run_folder.string(), "--resume", "--json"}));
}

// The memory of a machine decides how a step is divided, never how large it is.
TEST_F(Pretrain, NeedsAStepSize) {
  const Arguments none{"--batch", "0", "--tokens-per-step", "0"};
  const Ran r = run(folder, tiny_run(data, folder / "run", 4) + none);
  expect_error(r, 2, "[--batch] the size of a step is not set");
  EXPECT_NE(r.err.find("--tokens-per-step"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST_F(Pretrain, SamplesWhileItTrains) {
  write_file_atomic(folder / "text.txt",
                    std::string_view("once upon a time there was a cat. the cat sat."));
  json_of(run(folder, {"tokenizer", "train", "--input", folder / "text.txt", "--vocab", "260",
                       "--out", folder / "tok", "--json"}));
  const Arguments extra{"--vocab",         "264", "--tokenizer",     folder / "tok",
                        "--sample-every",  "5",   "--sample-tokens", "8",
                        "--sample-prompt", "the"};
  json_of(run(folder, tiny_run(data, folder / "run", 10) + extra));
  std::ifstream samples(folder / "run/samples.jsonl");
  int lines = 0;
  for (std::string line; std::getline(samples, line); ++lines)
    EXPECT_TRUE(nlohmann::json::parse(line)["text"].get<std::string>().starts_with("the"));
  EXPECT_EQ(lines, 2);
  expect_error(run(folder, tiny_run(data, folder / "no", 10) + Arguments{"--sample-every", "5"}), 2,
               "--tokenizer");
  expect_error(
      run(folder, tiny_run(data, folder / "no", 10) + Arguments{"--tokenizer", "none.json"}), 1,
      "none.json");
}

// --- bad input: one line, non-zero exit, nothing lost ---

TEST_F(Pretrain, RefusesBadTokenFiles) {
  const fs::path bad = folder / "bad.bin";
  const auto damaged = [&](auto change) {
    std::string bytes = read_file(data);
    change(bytes);
    write_file_atomic(bad, bytes);
    return run(folder, tiny_run(bad, folder / "run", 5));
  };
  expect_error(damaged([](std::string& b) { b[0] = 1; }), 1, "bad.bin");
  expect_error(damaged([](std::string& b) { b[4] = 9; }), 1, "version");
  expect_error(damaged([](std::string& b) { b.resize(b.size() - 10); }), 1, "bad.bin");
  expect_error(damaged([](std::string& b) { b[1024 + 2 * 777] = 100; }), 1, "2578");  // the byte
  expect_error(run(folder, tiny_run(folder / "none.bin", folder / "run", 5)), 1, "none.bin");
  write_chain(bad, 20, 1);  // too short for one batch
  expect_error(run(folder, tiny_run(bad, folder / "run", 5)), 1, "20 tokens");
}

TEST_F(Pretrain, RefusesWrongFlagsAndConfigs) {
  expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{"--learning-rate", "1"}), 2,
               "did you mean --lr?");
  expect_error(
      run(folder, {"pretrain", "--preset", "gpt-2", "--run", folder / "r", "--data", data}), 2,
      "gpt2");
  expect_error(run(folder, {"pretrain", "--preset", "gpt2", "--run", folder / "r"}), 2, "--data");
  expect_error(run(folder, {"pretrian"}), 2, "pretrain");
  expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{"--schedule", "cos"}), 2,
               "cosine");
  const fs::path toml = folder / "bad.toml";
  write_file_atomic(toml, std::string_view("steps = 5\nlearning = 0.1\n"));
  expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{"--config", toml}), 2,
               "learning");
  EXPECT_FALSE(fs::exists(folder / "r"));
}

TEST_F(Pretrain, RefusesNumbersNoRunCanUse) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad{
      {"--lr", {"-1", "nan", "inf", "1e300"}},
      {"--beta1", {"7", "1", "-0.1"}},
      {"--beta2", {"1", "nan"}},
      {"--adam-eps", {"0", "-1e-8"}},
      {"--weight-decay", {"-0.1", "-inf"}},
      {"--group-beta1", {"matrix:1", "embedding:-0.1", "0.9"}},
      {"--group-weight-decay", {"vector:nan", "norm:0"}},
      {"--clip", {"nan", "-1"}},
      {"--warmup", {"-3"}},
      {"--lr-floor", {"-0.5", "1.5"}},
      {"--steps", {"-4", "0", "4294967296", "9223372036854775807"}},
      {"--decay-steps", {"-1"}},
      {"--decay-share", {"-0.1", "1.5"}},
      {"--spike-z", {"-2"}},
      {"--target-loss", {"nan"}},
      {"--eval-every", {"-1"}},
      {"--eval-tokens", {"-1"}},
      {"--checkpoint-every", {"-1"}},
      {"--keep", {"-1"}},
      {"--sample-tokens", {"0"}},
      {"--workers", {"0", "257"}},
  };
  for (const auto& [flag, values] : bad)
    for (const std::string& value : values) {
      SCOPED_TRACE(flag + " " + value);
      expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{flag + "=" + value}), 2,
                   "[" + flag + "] expected");
    }
  const std::string odd = folder / "caf\xe9.bin";  // config.toml could not hold it
  fs::copy(data, odd);
  expect_error(run(folder, tiny_run(odd, folder / "r", 5)), 2, "[--data] expected UTF-8");
  // A decay of no steps would be none.
  expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{"--schedule", "wsd"}), 2,
               "[--decay-steps] expected 1 to the 5 steps");
  const fs::path toml = folder / "bad.toml";
  write_file_atomic(toml, std::string_view("clip = nan\n"));
  expect_error(run(folder, tiny_run(data, folder / "r", 5) + Arguments{"--config", toml}), 2,
               "[--clip] expected a number, got 'nan'");
  EXPECT_FALSE(fs::exists(folder / "r"));
}

// config.toml carries strings as they were given: a resumed run samples from the same prompt.
TEST_F(Pretrain, ResumesWithTheSameStrings) {
  const fs::path tokenizer = folder / "tokenizer";
  write_file_atomic(folder / "text.txt", std::string_view("a b c\n"));
  ASSERT_EQ(run(folder, {"tokenizer", "train", "--input", folder / "text.txt", "--vocab", "260",
                         "--out", tokenizer})
                .status,
            0);
  const std::string prompt = "[\"a\", 'b'] # \\n {c}\t=\n\x01\u00e9";
  const fs::path parts = folder / "parts";
  json_of(run(folder, tiny_run(data, parts, 4) +
                          Arguments{"--vocab", "260", "--context", "64", "--tokenizer", tokenizer,
                                    "--sample-every", "2", "--sample-tokens", "1",
                                    "--sample-prompt=" + prompt, "--stop-after-step", "2"}));
  json_of(run(folder, {"pretrain", "--run", parts.string(), "--resume", "--json"}));
  std::ifstream samples(parts / "samples.jsonl");
  int count = 0;
  for (std::string line; std::getline(samples, line); ++count)
    EXPECT_TRUE(nlohmann::json::parse(line)["text"].get<std::string>().starts_with(prompt)) << line;
  EXPECT_EQ(count, 2);
}

TEST_F(Pretrain, RefusesWhatCannotFit) {
  const Ran r = run(folder, {"pretrain", "--preset", "gpt2", "--vocab", "64", "--batch", "4096",
                             "--data", data, "--run", folder / "r"});
  expect_error(r, 1, "activations");
  EXPECT_NE(r.err.find("--"), std::string::npos);  // a remedy
  // The host could not hold the tokens of a step, whatever the micro-batch is.
  for (const char* batch : {"2", "0"})
    expect_error(
        run(folder, tiny_run(data, folder / "r", 5) +
                        Arguments{"--tokens-per-step", "1000000000000000", "--batch", batch}),
        2, "[--tokens-per-step] expected a step whose tokens fit in the ");
  EXPECT_FALSE(fs::exists(folder / "r"));
}

TEST_F(Pretrain, RefusesAnExistingRun) {
  json_of(run(folder, tiny_run(data, folder / "run", 5)));
  const auto before = weights_of(newest(folder / "run"));
  expect_error(run(folder, tiny_run(data, folder / "run", 5)), 1, "--resume");
  EXPECT_EQ(weights_of(newest(folder / "run")), before);
  Arguments other = tiny_run(data, folder / "run", 10) + Arguments{"--resume"};
  *(std::find(other.begin(), other.end(), "--lr") + 1) = "0.5";
  expect_error(run(folder, other), 1, "lr");
}

TEST_F(Pretrain, RefusesAFolderItCannotWrite) {
  expect_error(run(folder, tiny_run(data, "/proc/hearth-run", 5)), 1, "/proc/hearth-run");
  write_file_atomic(folder / "file", std::string_view("x"));
  expect_error(run(folder, tiny_run(data, folder / "file/run", 5)), 1, "file");
}

// A disk that fills up in the middle: one line, and the checkpoint before it is whole.
TEST_F(Pretrain, FullDiskKeepsTheLastCheckpoint) {
  const fs::path small = folder / "small";
  fs::create_directories(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1500k") != 0)
    GTEST_SKIP() << "needs the right to mount a small file system";
  const Ran r = run(folder, tiny_run(data, small / "run", 200) +
                                Arguments{"--checkpoint-every", "2", "--keep", "100"});
  const FoundCheckpoint found = find_newest_valid(small / "run/checkpoints");
  const bool kept = found.dir.has_value() && found.skipped.empty();
  umount(small.c_str());
  EXPECT_TRUE(kept);
  EXPECT_EQ(r.status, 1) << r.err;
  EXPECT_NE(r.err.find("No space left"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace hearth
