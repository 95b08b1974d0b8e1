// SFT, DPO and GRPO of adapters from the outside: they learn beside a base that stays as it is, go
// on to the bit, and leave folders that run unmerged and merged.
#include <thread>

#include "e2e/command.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "served_folder.h"

namespace hearth {
namespace {

using nlohmann::json;

std::vector<json> log_lines(const fs::path& run) {
  std::vector<json> lines;
  std::ifstream log(run / "log.jsonl");
  for (std::string line; std::getline(log, line);) lines.push_back(json::parse(line));
  return lines;
}

std::map<std::string, std::string> newest_files(const fs::path& run) {
  const fs::path dir = *find_newest_valid(run / "checkpoints").dir;
  std::map<std::string, std::string> files{{"log", read_file(run / "log.jsonl")}};
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json",
                           "state/optimizer.safetensors"})
    files[name] = read_file(dir / name);
  return files;
}

class AlignLoraCommands : public testing::Test {
 protected:
  void SetUp() override {
    write_served_folder(model);
    std::string rows, pairs, prompts;
    for (int i = 0; i < 32; ++i) {
      const std::string prompt = "q" + std::to_string(i % 12),
                        good(size_t(1 + i % 5), char('a' + i % 3));
      rows += json{{"prompt", prompt}, {"completion", good}}.dump() + "\n";
      pairs += json{{"prompt", prompt}, {"chosen", good}, {"rejected", "zz" + good}}.dump() + "\n";
      prompts += json{{"prompt", prompt}, {"answer", good}}.dump() + "\n";
    }
    write_file_atomic(folder / "sft.jsonl", rows);
    write_file_atomic(folder / "dpo.jsonl", pairs);
    write_file_atomic(folder / "grpo.jsonl", prompts);
  }

  Arguments call(const std::string& method, const std::string& name, const std::string& lora) {
    Arguments a{method,    "--model",  model.string(),       "--data", file(method + ".jsonl"),
                "--run",   file(name), "--threads",          "2",      "--json",
                "--dtype", "fp32",     "--checkpoint-every", "3"};
    if (!lora.empty()) a = a + Arguments{"--lora", lora};
    if (method == "sft")
      return a + Arguments{"--max-length", "64",      "--batch", "4",         "--lr",
                           "2e-2",         "--steps", "20",      "--holdout", "0.1"};
    if (method == "dpo")
      return a + Arguments{"--batch", "4", "--lr", "1e-2", "--steps", "10", "--holdout", "0.2"};
    return a + Arguments{"--reward",         "length:3", "--steps", "8",    "--prompts", "3",
                         "--group",          "4",        "--lr",    "1e-2", "--beta",    "0.02",
                         "--max-completion", "8"};
  }
  std::string file(const std::string& name) const { return (folder / name).string(); }
  json tokens(const Arguments& from) const {
    return json_of(run(folder, Arguments{"generate", "--prompt", "q1", "--greedy", "--max-tokens",
                                         "12", "--ignore-eos", "--dtype", "fp32", "--json"} +
                                   from))["tokens"];
  }

  // Stopped once, killed once, and resumed, against a run left alone.
  void expect_same_in_parts(const std::string& method, const std::string& lora) {
    SCOPED_TRACE(method);
    const std::string whole = method + "-whole", parts = method + "-parts";
    json_of(run(folder, call(method, whole, lora)));
    const json first =
        json_of(run(folder, call(method, parts, lora) + Arguments{"--stop-after-step", "4"}));
    EXPECT_EQ(first["reason"], "stopped");
    const pid_t pid =
        start(folder, {method, "--run", file(parts), "--resume", "--threads", "1"}, "killed");
    const std::string at = fs::read_symlink(folder / parts / "latest");
    for (int i = 0; i < 60000 && fs::read_symlink(folder / parts / "latest") == at; ++i) {
      siginfo_t info{};
      waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == pid) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(pid, SIGKILL);
    wait_for(pid);
    json_of(run(folder, {method, "--run", file(parts), "--resume", "--json"}));
    EXPECT_EQ(newest_files(folder / whole), newest_files(folder / parts));
  }

  const Folder folder;
  const fs::path model = folder / "model";
};

TEST_F(AlignLoraCommands, SftLearnsAndItsAdapterRunsAndMerges) {
  const std::string before = read_file(model / "model.safetensors");
  const json r = json_of(run(folder, call("sft", "run", "4,8")));
  const double first = log_lines(folder / "run").front()["val_loss"].get<double>();
  EXPECT_LT(r["val_loss"].get<double>(), 0.8 * first);
  const fs::path saved = folder / "run" / "latest";
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"})
    EXPECT_TRUE(fs::exists(saved / name)) << name;
  EXPECT_EQ(read_file(saved / "chat_template.jinja"), served_template());
  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  EXPECT_EQ(json::parse(read_file(saved / "adapter_config.json"))["base_model_name_or_path"],
            model.string());
  EXPECT_EQ(read_file(model / "model.safetensors"), before);

  const json unmerged = tokens({"--model", model.string(), "--adapter", file("run")});
  EXPECT_NE(unmerged, tokens({"--model", model.string()}));
  json_of(run(folder, {"convert", "--adapter", file("run"), "--merge", file("merged"), "--json"}));
  EXPECT_EQ(unmerged, tokens({"--model", file("merged")}));
  EXPECT_EQ(read_file(folder / "merged" / "chat_template.jinja"), served_template());
}

TEST_F(AlignLoraCommands, StoppedAndKilledTheyGoOnAsIfTheyHadNotBeen) {
  expect_same_in_parts("sft", "4,8,0.1");
  expect_same_in_parts("dpo", "4");
  expect_same_in_parts("grpo", "4");
}

TEST_F(AlignLoraCommands, DposReferenceIsTheBase) {
  json_of(run(folder, call("dpo", "all", "")));
  json_of(run(folder, call("dpo", "cached", "4")));
  json_of(run(folder, call("dpo", "live", "4") + Arguments{"--reference", "live"}));
  // The numbers of a run of all weights, which loads the model by itself.
  EXPECT_EQ(read_file(folder / "cached/reference.json"), read_file(folder / "all/reference.json"));
  EXPECT_FALSE(read_json(folder / "live/reference.json").contains("sums"));
  EXPECT_EQ(newest_files(folder / "cached"), newest_files(folder / "live"));
  const std::vector<json> log = log_lines(folder / "live");
  EXPECT_EQ(log.front()["margin"], 0);
  EXPECT_EQ(log.front()["accuracy"], 0.5);
  EXPECT_GT(log.back()["margin"].get<double>(), 0);
  EXPECT_LT(log.back()["val_loss"].get<double>(), log.front()["val_loss"].get<double>());
}

TEST_F(AlignLoraCommands, GrpoSamplesFromAdaptersExactly) {
  const json r = json_of(run(folder, call("grpo", "run", "4")));
  EXPECT_EQ(r["logprob_gap_max"], 0.0);
  EXPECT_EQ(r["updates"], 8);
  std::vector<double> kl;
  for (const json& line : log_lines(folder / "run"))
    if (line.contains("kl")) kl.push_back(line["kl"].get<double>());
  ASSERT_EQ(kl.size(), 8u);
  EXPECT_EQ(kl.front(), 0);  // it begins at its reference, the base
  EXPECT_GT(kl.back(), 0);
  EXPECT_FALSE(tokens({"--model", model.string(), "--adapter", file("run")}).empty());
}

TEST_F(AlignLoraCommands, WrongCallsAreOneLine) {
  const auto bad = [&](const std::string& method, const std::string& lora, Arguments more = {}) {
    return run(folder, call(method, "bad", lora) + more);
  };
  expect_error(bad("sft", "4,x"), 2, "expected rank[,alpha[,dropout]], got \"4,x\"");
  expect_error(bad("sft", "4", {"--lora-targets", "c_attn"}), 2, "got \"c_attn\"");
  expect_error(bad("sft", "", {"--lora-targets", "q_proj"}), 2, "expected --lora with it");
  expect_error(bad("dpo", "4,8,0.1"), 2, "expected no dropout with DPO");
  expect_error(bad("grpo", "4,8,0.1"), 2, "expected no dropout with GRPO");
  EXPECT_FALSE(fs::exists(folder / "bad" / "config.toml"));

  json_of(run(folder, call("sft", "run", "4") + Arguments{"--stop-after-step", "2"}));
  const Arguments resume{"sft", "--run", file("run"), "--resume"};
  expect_error(run(folder, resume + Arguments{"--lora", "8"}), 1, "lora = 4, not 8");
  expect_error(run(folder, {"dpo", "--model", file("run"), "--run", file("next"), "--data",
                            file("dpo.jsonl"), "--lora", "4"}),
               2, "is itself an adapter: merge it first");
  std::string bytes = read_file(model / "model.safetensors");
  bytes.back() = char(bytes.back() ^ 1);
  write_file_atomic(model / "model.safetensors", bytes);
  expect_error(run(folder, resume), 1, "expected the model that the run began from");
  expect_error(run(folder, {"generate", "--model", file("run"), "--prompt", "a"}), 1,
               "is not the one this adapter was trained on");
}

// A run of adapters is a model like any other: it finds its base, also after both were moved.
TEST_F(AlignLoraCommands, ARunNamedAsAModelLoadsItsBase) {
  json_of(run(folder, call("sft", "run", "4,8")));
  const json unmerged = tokens({"--model", model.string(), "--adapter", file("run")});
  EXPECT_EQ(tokens({"--model", file("run")}), unmerged);
  EXPECT_EQ(tokens({"--model", file("run/latest")}), unmerged);
  const auto chat = [&](const Arguments& which) {
    return json_of(
        run_on("a\n", folder, Arguments{"chat", "--json", "--temperature", "0"} + which));
  };
  EXPECT_EQ(chat({"--model", file("run")})["tokens"],
            chat({"--model", model.string(), "--adapter", file("run")})["tokens"]);
  json_of(run(folder, {"convert", "--from", file("run"), "--to", file("merged"), "--json"}));
  // What follows starts at the merged weights, to the bit.
  for (const std::string method : {"sft", "dpo", "grpo"}) {
    std::map<std::string, std::string> logs;
    for (const std::string from : {"run", "merged"}) {
      Arguments a = call(method, method + "-" + from, "");
      for (std::string& x : a)
        if (x == model.string()) x = file(from);
      json_of(run(folder, a + Arguments{"--steps", "2"}));
      logs[from] = read_file(folder / (method + "-" + from) / "log.jsonl");
    }
    EXPECT_EQ(logs["run"], logs["merged"]) << method;
  }
  make_dirs(folder / "moved");
  for (const char* name : {"model", "run"}) fs::rename(folder / name, folder / "moved" / name);
  EXPECT_EQ(tokens({"--model", file("moved/run")}), unmerged);
  fs::remove_all(folder / "moved" / "model");
  expect_error(run(folder, {"generate", "--model", file("moved/run"), "--prompt", "a"}), 1,
               "was not found: pass its path with --model");
}

// The base is a run that goes on afterwards, for longer than it keeps checkpoints.
TEST_F(AlignLoraCommands, ABaseThatIsTrainedFurtherStaysTheirs) {
  write_chain(folder / "train.bin", 2000, 1);
  const auto pretrain = [&](const char* steps) {
    json_of(run(folder, {"pretrain",
                         "--run",
                         file("base"),
                         "--data",
                         file("train.bin"),
                         "--tokenizer",
                         model.string(),
                         "--vocab",
                         "260",
                         "--context",
                         "64",
                         "--layers",
                         "1",
                         "--dim",
                         "16",
                         "--heads",
                         "2",
                         "--hidden",
                         "16",
                         "--batch",
                         "2",
                         "--seq",
                         "16",
                         "--lr",
                         "0.01",
                         "--checkpoint-every",
                         "1",
                         "--keep",
                         "1",
                         "--threads",
                         "1",
                         "--json",
                         "--warmup",
                         "0",
                         "--steps",
                         steps}));
  };
  const auto go_on = [&](const char* steps) {
    json_of(
        run(folder, {"pretrain", "--run", file("base"), "--resume", "--steps", steps, "--json"}));
  };
  pretrain("3");
  for (const std::string method : {"sft", "dpo", "grpo"}) {
    SCOPED_TRACE(method);
    Arguments a = call(method, method + "-on-run", method == "grpo" ? "" : "4");
    a[2] = file("base");
    json_of(run(folder, a + Arguments{"--stop-after-step", "2"}));
  }
  const json before = tokens({"--model", file("sft-on-run")});
  go_on("6");
  go_on("9");
  EXPECT_EQ(tokens({"--model", file("sft-on-run")}), before);
  for (const std::string method : {"sft", "dpo", "grpo"}) {
    SCOPED_TRACE(method);
    const json r = json_of(run(folder, {method, "--run", file(method + "-on-run"), "--resume",
                                        "--stop-after-step", "4", "--json"}));
    EXPECT_EQ(r["reason"], "stopped");
  }
}

}  // namespace
}  // namespace hearth
