// SFT and DPO through the command line: they learn, resume to the bit after a stop and after a
// kill, leave folders that generate, and refuse bad data in one line.
#include <thread>

#include "cpu/backend.h"
#include "e2e/command.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "served_folder.h"
#include "train/examples/example_task.h"

namespace hearth {
namespace {

using nlohmann::json;

std::map<std::string, std::string> files_of_newest(const fs::path& run) {
  const fs::path dir = *find_newest_valid(run / "checkpoints").dir;
  return {{"model", read_file(dir / "model.safetensors")},
          {"optimizer", read_file(dir / "state" / "optimizer.safetensors")},
          {"log", read_file(run / "log.jsonl")}};
}

std::vector<json> log_of(const fs::path& run) {
  std::vector<json> lines;
  std::ifstream log(run / "log.jsonl");
  for (std::string line; std::getline(log, line);) lines.push_back(json::parse(line));
  return lines;
}

class AlignCommands : public testing::Test {
 protected:
  void SetUp() override {
    write_served_folder(model);
    std::string rows, pairs;
    for (int i = 0; i < 48; ++i) {
      const std::string prompt = "q" + std::to_string(i % 12),
                        good(size_t(1 + i % 5), char('a' + i % 3));
      rows += json{{"prompt", prompt}, {"completion", good}}.dump() + "\n";
      pairs += json{{"prompt", prompt}, {"chosen", good}, {"rejected", "zz" + good}}.dump() + "\n";
    }
    write_file_atomic(data, rows);
    write_file_atomic(preferences, pairs);
  }

  Arguments sft(const fs::path& run, fs::path file = {}) const {
    if (file.empty()) file = data;
    return {"sft",
            "--model",
            model.string(),
            "--data",
            file.string(),
            "--run",
            run.string(),
            "--max-length",
            "64",
            "--batch",
            "2",
            "--accumulate",
            "2",
            "--lr",
            "3e-3",
            "--holdout",
            "0.1",
            "--epochs",
            "20",
            "--threads",
            "2",
            "--dtype",
            "fp32",
            "--json"};
  }
  Arguments dpo(const fs::path& run, fs::path file = {}) const {
    if (file.empty()) file = preferences;
    return {"dpo",       "--model",    model.string(), "--data",   file.string(),
            "--run",     run.string(), "--batch",      "4",        "--lr",
            "1e-3",      "--holdout",  "0.2",          "--epochs", "4",
            "--threads", "2",          "--json",       "--dtype",  "fp32"};
  }
  static Arguments for_steps(Arguments call, const char* steps) {
    const auto epochs = std::find(call.begin(), call.end(), "--epochs");
    epochs[0] = "--steps", epochs[1] = steps;
    return call;
  }

  // A run killed after its first checkpoint and resumed, against one left alone.
  void expect_same_after_kill(const Arguments& whole, const fs::path& run, const Arguments& killed,
                              const fs::path& parts) {
    json_of(hearth::run(folder, whole));
    const pid_t pid = start(folder, killed, "killed");
    for (int i = 0; i < 60000 && !fs::exists(parts / "latest"); ++i) {
      siginfo_t info{};
      waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == pid) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(pid, SIGKILL);
    wait_for(pid);
    json_of(hearth::run(folder, {killed[0], "--run", parts.string(), "--resume", "--json"}));
    EXPECT_EQ(files_of_newest(run), files_of_newest(parts));
  }

  Folder folder;
  const fs::path model = folder / "model", data = folder / "data.jsonl",
                 preferences = folder / "pairs.jsonl";
};

TEST_F(AlignCommands, SftLearnsAndLeavesAModelFolder) {
  for (const char* packing : {"bfd", "none"}) {
    const fs::path run = folder / (std::string("sft-") + packing);
    const json j = json_of(hearth::run(folder, sft(run) + Arguments{"--packing", packing}));
    const std::vector<json> log = log_of(run);
    EXPECT_TRUE(log.front().contains("val_loss"));
    EXPECT_LT(j["val_loss"].get<double>(), 0.7 * log.front()["val_loss"].get<double>()) << packing;
    EXPECT_TRUE(fs::exists(run / "latest/tokenizer.json"));
    EXPECT_EQ(read_file(run / "latest/chat_template.jinja"), served_template());
    EXPECT_TRUE(fs::exists(run / "perf.jsonl"));
    const json text = json_of(hearth::run(folder, {"generate", "--model", run.string(), "--prompt",
                                                   "q3", "--max-tokens", "4", "--json"}));
    EXPECT_FALSE(text.empty());
  }
}

TEST_F(AlignCommands, SftResumesToTheBit) {
  const fs::path whole = folder / "whole", parts = folder / "parts";
  const Arguments often{"--eval-every", "3"};
  json_of(hearth::run(folder, sft(whole) + often));
  const json first =
      json_of(hearth::run(folder, sft(parts) + often + Arguments{"--stop-after-step", "7"}));
  EXPECT_EQ(first["reason"], "stopped");
  json_of(hearth::run(folder,
                      {"sft", "--run", parts.string(), "--resume", "--threads", "1", "--json"}));
  EXPECT_EQ(files_of_newest(whole), files_of_newest(parts));
}

TEST_F(AlignCommands, SurviveAKill) {
  const Arguments often{"--checkpoint-every", "2"};
  expect_same_after_kill(sft(folder / "a") + often, folder / "a", sft(folder / "b") + often,
                         folder / "b");
  expect_same_after_kill(dpo(folder / "c") + often, folder / "c", dpo(folder / "d") + often,
                         folder / "d");
}

TEST_F(AlignCommands, DpoLearnsEveryLoss) {
  for (const char* loss : {"sigmoid", "hinge", "ipo", "cdpo", "robust", "sigmoid_norm"}) {
    const fs::path run = folder / loss;
    Arguments args = dpo(run) + Arguments{"--loss", loss};
    if (std::string_view(loss) == "cdpo" || std::string_view(loss) == "robust")
      args = args + Arguments{"--label-smoothing", "0.1"};
    const json j = json_of(hearth::run(folder, args));
    const std::vector<json> log = log_of(run);
    EXPECT_EQ(log.front()["accuracy"], 0.5) << loss;  // policy and reference are one
    EXPECT_EQ(log.front()["margin"], 0) << loss;
    EXPECT_GT(log.back()["accuracy"].get<double>(), 0.9) << loss;
    EXPECT_LT(j["val_loss"].get<double>(), log.front()["val_loss"].get<double>()) << loss;
  }
}

TEST_F(AlignCommands, DpoReferenceCachedOrLiveIsTheSame) {
  json_of(hearth::run(folder, dpo(folder / "cached")));
  json_of(hearth::run(folder, dpo(folder / "live") + Arguments{"--reference", "live"}));
  EXPECT_TRUE(fs::exists(folder / "cached/reference.json"));
  EXPECT_TRUE(read_json(folder / "cached/reference.json").contains("sums"));
  EXPECT_FALSE(read_json(folder / "live/reference.json").contains("sums"));
  EXPECT_EQ(files_of_newest(folder / "cached"), files_of_newest(folder / "live"));
}

TEST_F(AlignCommands, DpoRefusesTheReferenceOfAnotherModelOrOtherData) {
  const std::string config = read_file(model / "config.json"), pairs = read_file(preferences);
  for (const char* reference : {"cached", "live"}) {
    SCOPED_TRACE(reference);
    const std::string run = (folder / reference).string();
    json_of(hearth::run(folder,
                        dpo(run) + Arguments{"--stop-after-step", "2", "--reference", reference}));
    const Arguments resume{"dpo", "--run", run, "--resume", "--json"};
    write_file_atomic(model / "config.json", config + "\n");
    expect_error(hearth::run(folder, resume), 1, "the model that the run began from");
    write_file_atomic(model / "config.json", config);
    write_file_atomic(preferences, pairs.substr(pairs.find('\n') + 1));
    expect_error(hearth::run(folder, resume), 1, "the data that the run began with");
    write_file_atomic(preferences, pairs);
    // Either way of holding the reference may follow the other.
    json_of(hearth::run(folder, resume + Arguments{"--stop-after-step", "3", "--reference",
                                                   reference[0] == 'l' ? "cached" : "live"}));
  }
}

// Checkpoints identify the reference and the data. The file is a cache that may be lost.
TEST_F(AlignCommands, DpoWithoutItsReferenceFileIsTheSameRun) {
  const fs::path run = folder / "run", file = run / "reference.json", other = folder / "other";
  json_of(hearth::run(folder, for_steps(dpo(folder / "whole"), "4")));
  json_of(hearth::run(folder, for_steps(dpo(run), "4") + Arguments{"--stop-after-step", "2"}));
  fs::remove(file);
  write_served_folder(other);
  write_file_atomic(other / "config.json", read_file(other / "config.json") + "\n");
  const std::string pairs = read_file(preferences);
  write_file_atomic(folder / "other.jsonl", pairs.substr(pairs.find('\n') + 1));
  const Arguments resume{"dpo", "--run", run.string(), "--resume", "--json"};
  expect_error(hearth::run(folder, resume + Arguments{"--data", (folder / "other.jsonl").string()}),
               1, "the data that the run began with");
  expect_error(hearth::run(folder, resume + Arguments{"--model", other.string()}), 1,
               "the model that the run began from");
  EXPECT_FALSE(fs::exists(file));  // a refused call leaves nothing behind
  json_of(hearth::run(folder, resume));
  EXPECT_EQ(read_file(file), read_file(folder / "whole/reference.json"));
  EXPECT_EQ(files_of_newest(run), files_of_newest(folder / "whole"));
}

// The same pairs in the same order are other data if another part of them is held out.
TEST_F(AlignCommands, DpoRefusesPairsThatMoveToTheHeldOutOnes) {
  const std::string pairs = read_file(preferences);
  const auto split_at = [&](size_t row) {
    size_t at = 0;
    for (size_t i = 0; i < row; ++i) at = pairs.find('\n', at) + 1;
    write_file_atomic(folder / "first.jsonl", pairs.substr(0, at));
    write_file_atomic(folder / "rest.jsonl", pairs.substr(at));
  };
  split_at(40);
  Arguments call = dpo(folder / "run", folder / "first.jsonl");
  *(std::find(call.begin(), call.end(), "--holdout") + 1) = "0";
  json_of(hearth::run(folder, for_steps(call, "2") + Arguments{"--val", folder / "rest.jsonl",
                                                               "--stop-after-step", "1"}));
  const Arguments resume{"dpo", "--run", (folder / "run").string(), "--resume", "--json"};
  split_at(39);
  expect_error(hearth::run(folder, resume), 1, "the data that the run began with");
  split_at(40);
  json_of(hearth::run(folder, resume));
}

// A signal in the pass before the first step ends it, and the next start goes on from there.
TEST_F(AlignCommands, DpoGoesOnWithWhatTheReferenceSaid) {
  DpoConfig c;
  c.model = model.string(), c.data = {preferences.string()}, c.batch = 4, c.epochs = 1;
  const auto backend = make_cpu_backend(1);
  std::atomic<int> stop = 1;
  const RunResult stopped =
      hearth::dpo(c, {.run = folder / "cut", .quiet = true, .stop = &stop}, *backend);
  EXPECT_EQ(stopped.reason, Ending::stopped);
  EXPECT_EQ(stopped.steps, 0);
  json kept = read_json(folder / "cut/reference.json");
  EXPECT_FALSE(kept.contains("sums"));
  hearth::dpo(c, {.run = folder / "whole", .quiet = true}, *backend);
  const json whole = read_json(folder / "whole/reference.json");
  ASSERT_EQ(whole.at("sums").size(), 48u);
  EXPECT_EQ(kept["key"], whole["key"]);
  // Sums that are there are taken as they are.
  kept["sums"] = json::array();
  for (int i = 0; i < 8; ++i) kept["sums"].push_back({-1.0, -2.0});
  write_file_atomic(folder / "cut/reference.json", kept.dump());
  hearth::dpo(c, {.run = folder / "cut", .resume = true, .quiet = true}, *backend);
  const json cut = read_json(folder / "cut/reference.json");
  EXPECT_EQ(cut["sums"][7], json({-1.0, -2.0}));
  for (size_t i = 8; i < 48; ++i) EXPECT_EQ(cut["sums"][i], whole["sums"][i]);
}

// Before its first checkpoint a run has begun with nothing: a wrong file is no trap.
TEST_F(AlignCommands, DpoMayBeginAgainWithOtherData) {
  make_dirs(folder / "again");
  write_file_atomic(folder / "again/reference.json", R"({"key": "of something else"})");
  json_of(hearth::run(folder, dpo(folder / "again")));
}

// Where answers end is learned, so a model and an adapter say it wherever they go.
TEST_F(AlignCommands, CheckpointsKeepTheEndsOfAnswers) {
  const int32_t closes = *served_tokenizer().special("<|system|>");
  write_file_atomic(model / "generation_config.json",
                    R"({"eos_token_id": [256, 7], "temperature": 0.6, "top_k": 20})");
  write_file_atomic(model / "chat_template.jinja",
                    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|system|>{% endfor %}"
                    "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  const json wanted = {256, 7, closes};
  const auto ends = [&](const fs::path& run) {
    const json j =
        read_json(*find_newest_valid(run / "checkpoints").dir / "generation_config.json");
    EXPECT_EQ(j.value("temperature", 0.0), 0.6);  // how the base is sampled stays
    EXPECT_EQ(j.value("top_k", 0), 20);
    return j.at("eos_token_id");
  };
  json_of(hearth::run(folder, for_steps(sft(folder / "sft"), "1")));
  EXPECT_EQ(ends(folder / "sft"), wanted);
  json_of(hearth::run(folder, for_steps(sft(folder / "lora"), "1") + Arguments{"--lora", "2"}));
  EXPECT_EQ(ends(folder / "lora"), wanted);
  json_of(hearth::run(folder, for_steps(dpo(folder / "dpo"), "1")));
  EXPECT_EQ(ends(folder / "dpo"), wanted);
}

TEST_F(AlignCommands, AResumedSftRefusesAnotherModel) {
  const fs::path run = folder / "run", other = folder / "other";
  json_of(hearth::run(folder, sft(run) + Arguments{"--stop-after-step", "2"}));
  write_served_folder(other);
  const Arguments resume{"sft", "--run", run, "--resume", "--json", "--stop-after-step", "3"};
  expect_error(hearth::run(folder, resume + Arguments{"--model", other}), 1,
               "model = " + model.string() + ", not " + other.string());
  fs::remove_all(model);
  EXPECT_EQ(json_of(hearth::run(folder, resume + Arguments{"--model", model}))["steps"], 3);
}

TEST_F(AlignCommands, SftRefusesOtherData) {
  const std::string rows = read_file(data), run = (folder / "run").string();
  json_of(hearth::run(folder, sft(run) + Arguments{"--stop-after-step", "2"}));
  const Arguments resume{"sft", "--run", run, "--resume", "--json", "--stop-after-step", "3"};
  write_file_atomic(data, rows.substr(rows.find('\n') + 1));
  expect_error(hearth::run(folder, resume), 1, "the data that the run began with");
  write_file_atomic(data, rows);
  json_of(hearth::run(folder, resume));
}

TEST_F(AlignCommands, RowsThatAreLeftOutAreSaidWithTheReason) {
  const auto turns = [](const char* second) {
    return json{{"messages",
                 {{{"role", "user"}, {"content", "a"}}, {{"role", second}, {"content", "b"}}}}}
               .dump() +
           "\n";
  };
  const fs::path file = folder / "rows.jsonl";
  const auto short_run = [&](Arguments call) {
    *(std::find(call.begin(), call.end(), "--holdout") + 1) = "0";
    return hearth::run(folder, for_steps(call, "1"));
  };
  write_file_atomic(file, turns("user") + turns("assistant") + turns("user"));
  const Ran some = short_run(sft(folder / "some", file));
  EXPECT_EQ(some.status, 0) << some.err;
  EXPECT_NE(some.err.find("2 of 3 rows left out: no turn of the assistant to learn in them"),
            std::string::npos)
      << some.err;
  write_file_atomic(file, std::string_view("{\"prompt\": \"a\", \"completion\": \"\"}\n"
                                           "{\"prompt\": \"a\", \"completion\": \"b\"}\n"));
  const Ran empty = short_run(sft(folder / "empty", file));
  EXPECT_EQ(empty.status, 0) << empty.err;
  EXPECT_NE(empty.err.find("data: 1 of 2 rows have an empty answer"), std::string::npos)
      << empty.err;
  write_file_atomic(file, turns("gpt"));
  expect_error(short_run(sft(folder / "none", file)), 1,
               "rows.jsonl:1] expected a role system, user or assistant, got \"gpt\"; did you mean "
               "assistant?");
  const auto pair = [](const char* rejected) {
    return json{{"prompt", "p"}, {"chosen", "a"}, {"rejected", rejected}}.dump() + "\n";
  };
  write_file_atomic(file, pair("a") + pair("b"));
  const Ran pairs = short_run(dpo(folder / "pairs", file));
  EXPECT_EQ(pairs.status, 0) << pairs.err;
  EXPECT_NE(pairs.err.find("1 of 2 rows left out: both answers are equal"), std::string::npos)
      << pairs.err;
}

TEST_F(AlignCommands, SayThatTheyValidateOnTheirTrainingData) {
  Arguments calls[] = {for_steps(sft(folder / "sft"), "1"), for_steps(dpo(folder / "dpo"), "1")};
  for (Arguments& call : calls) {
    const std::string file = *(std::find(call.begin(), call.end(), "--data") + 1);
    const auto held_out = std::find(call.begin(), call.end(), "--holdout");
    held_out[0] = "--val", held_out[1] = file;
    const Ran r = hearth::run(folder, call);
    json_of(r);
    EXPECT_NE(r.err.find("hearth: " + file + " is given to both --data and --val: "),
              std::string::npos)
        << r.err;
  }
}

TEST_F(AlignCommands, HelpOffersTextOnlyWhereTextIsRead) {
  const auto help_of_data = [&](const char* command) {
    const std::string all = hearth::run(folder, {command, "--help"}).out;
    const size_t begin = all.find("--data"), end = all.find("--val", begin);
    return all.substr(begin, end - begin);
  };
  EXPECT_NE(help_of_data("sft").find("text"), std::string::npos);
  EXPECT_EQ(help_of_data("dpo").find("text"), std::string::npos);
  EXPECT_EQ(help_of_data("dpo").find("Parquet"), std::string::npos);
  write_file_atomic(folder / "plain.txt", "some text\n");
  expect_error(hearth::run(folder, dpo(folder / "text", folder / "plain.txt")), 1,
               "prompt + chosen + rejected");
}

TEST_F(AlignCommands, BadInputIsOneLine) {
  const auto with = [&](const Arguments& extra) { return sft(folder / "bad") + extra; };
  const auto rows = [&](const std::string& text) {
    write_file_atomic(folder / "bad.jsonl", text);
    return sft(folder / "bad", folder / "bad.jsonl");
  };
  expect_error(hearth::run(folder, rows("{\"prompt\": 1, \"completion\": \"a\"}\n")), 1,
               "bad.jsonl:1");
  expect_error(hearth::run(folder, rows("not json\n")), 1, "bad.jsonl:1");
  expect_error(hearth::run(folder, rows("")), 1,
               "bad.jsonl] expected rows with something to learn, got none");
  expect_error(hearth::run(folder, rows("{\"question\": \"a\"}\n")), 1, "got keys: \"question\"");
  expect_error(hearth::run(folder, with({"--max-length", "100000"})), 2, "256 tokens");
  expect_error(hearth::run(folder, with({"--model", (folder / "none").string()})), 1, "none");
  expect_error(hearth::run(folder, with({"--holdout", "1"})), 2, "holdout");
  expect_error(hearth::run(folder, with({"--batch", "-1"})), 2, "batch");
  expect_error(hearth::run(folder, dpo(folder / "bad", data)), 1, "chosen");
  expect_error(hearth::run(folder, dpo(folder / "bad") + Arguments{"--beta", "0"}), 2, "beta");
  expect_error(hearth::run(folder, dpo(folder / "bad") + Arguments{"--label-smoothing", "0.1"}), 2,
               "cdpo");
  for (const std::string loss : {"cdpo", "robust"})  // without smoothing they are the sigmoid loss
    expect_error(hearth::run(folder, dpo(folder / "bad") + Arguments{"--loss", loss}), 2,
                 "[--label-smoothing] expected a share above 0 and below 0.5 for --loss " + loss +
                     ", got 0");
  EXPECT_FALSE(fs::exists(folder / "bad/config.toml"));
}

}  // namespace
}  // namespace hearth
