// What the command line makes of flags it does not know, of the environment, of --resume, and what
// it prints of text from elsewhere.
#include <fcntl.h>
#include <stdlib.h>

#include <regex>

#include "e2e/command.h"
#include "model/config.h"
#include "served_folder.h"

namespace hearth {
namespace {

TEST(Arguments, NamesFromElsewhereAreKnown) {
  const Folder folder;
  const std::vector<std::array<std::string, 3>> known{
      {"pretrain", "--learning-rate", "--lr"},       {"pretrain", "--max-steps", "--steps"},
      {"pretrain", "--batch-size", "--batch"},       {"pretrain", "--seq_len", "--seq"},
      {"pretrain", "--context-length", "--context"}, {"pretrain", "--output-dir", "--run"},
      {"sft", "--num-epochs", "--epochs"},           {"sft", "--max-seq-length", "--max-length"},
      {"generate", "--temp", "--temperature"},       {"generate", "--top_p", "--top-p"},
      {"generate", "--n-predict", "--max-tokens"},   {"chat", "--max-new-tokens", "--max-tokens"},
      {"grpo", "--num_generations", "--group"},      {"pretrain", "--stesp", "--steps"},
  };
  for (const auto& [command, theirs, ours] : known) {
    SCOPED_TRACE(command + " " + theirs);
    expect_error(run(folder, {command, theirs, "1"}), 2, "did you mean " + ours + "?");
  }
}

TEST(Arguments, WhatIsFarIsNotSuggested) {
  const Folder folder;
  for (const char* flag : {"--frobnicate", "--qqqq"}) {
    const Ran r = run(folder, {"pretrain", flag, "1"});
    expect_error(r, 2, "hearth pretrain --help lists them");
    EXPECT_EQ(r.err.find("did you mean"), std::string::npos) << r.err;
  }
  const Ran command = run(folder, {"frobnicate"});
  expect_error(command, 2, "hearth --help lists them");
}

TEST(Arguments, WrongCallsAreExplained) {
  const Folder folder;
  const std::vector<std::pair<Arguments, std::string>> calls{
      {{"generate", "--prompt", "hi"}, "hearth generate needs --model"},
      {{"generate", "runs/mine", "hi"},
       "hearth generate takes no argument without a flag, got runs/mine; did you mean --model "
       "runs/mine?"},
      {{"generate", "--model", "runs/mine", "a b"}, "got a b; did you mean --prompt 'a b'?"},
      {{"info", "gpt2"}, "hearth info takes no argument without a flag, got gpt2"},
      {{"generate", "-m", "X", "-p", "hi"}, "got -m; did you mean --model?"},
      {{"generate", "--model", "X", "-p", "hi"}, "got -p; did you mean --prompt?"},
      {{"generate", "--model", "X", "-n", "2"}, "got -n; did you mean --n or --max-tokens?"},
      {{"generate", "--model", "X", "-n20"}, "got -n20; did you mean --n"},
      {{"serve", "--model", "X", "-p", "80"}, "got -p; did you mean --port?"},
      {{"generate", "-model", "X"}, "got -model; did you mean --model?"},
      {{"tokenizer"}, "hearth tokenizer needs a command: "},
      {{"pretrian", "--preset", "tiny"},
       "[hearth] expected a command, got \"pretrian\"; did you mean pretrain?"},
      {{"pretrian", "--help"}, "got \"pretrian\"; did you mean pretrain?"},
      {{"train", "--help"}, "got \"train\"; did you mean pretrain?"},
      {{"runs"}, "got \"runs\"; did you mean board?"},
      {{"info", "--preset", "tiny", "--act", "gelu"},
       "got \"gelu\"; did you mean gelu_tanh or gelu_erf?"},
      {{"info", "--preset", "tiny", "--act", "swigul"}, "did you mean swiglu?"},
      {{"data", "prepar", "--out", "x"},
       "[data] expected a command, got \"prepar\"; did you mean prepare?"},
      {{"generate", "--model", "X", "--n", "two"}, "[--n] expected a whole number, got \"two\""},
      {{"bench", "fit", "--batch", "-3"}, "--batch: expected 1 to 67108864, got -3;"},
      {{"bench", "fit", "--batch", "much"},
       "[--batch] expected a whole number (1 to 67108864), got \"much\""},
      {{"eval", "--limit", "-1"}, "--limit: expected 0 or more, got -1;"},
      {{"generate", "--speculate", "65"}, "--speculate: expected 0 to 64, got 65;"},
  };
  for (const auto& [call, part] : calls) {
    SCOPED_TRACE(part);
    const Ran r = run(folder, call);
    expect_error(r, 2, part);
    EXPECT_EQ(r.err.find("another call"), std::string::npos) << r.err;
  }
}

// A flag without its value must not take the next flag for it.
TEST(Arguments, AMissingValueIsNamed) {
  const Folder folder;
  const Arguments sft{"sft", "--model", "X", "--data", "d.jsonl", "--run", folder / "run"};
  expect_error(run(folder, sft + Arguments{"--lora", "--lr", "1e-3"}), 2,
               "[--lora] needs a value, got the flag --lr: train only LoRA adapters: "
               "rank[,alpha[,dropout]]");
  expect_error(run(folder, sft + Arguments{"--lora", "--lr=1e-3"}), 2, "got the flag --lr: ");
  expect_error(run(folder, sft + Arguments{"--lora"}), 2, "[--lora] needs a value: train only");
  expect_error(run(folder, {"pretrain", "--run", "--resume"}), 2,
               "[--run] needs a value, got the flag --resume: run folder");
  // What is no flag of the command is a value, and so is anything behind =.
  expect_error(run(folder, {"generate", "--model", "--none", "--prompt=--model"}), 1, "--none");
}

TEST(Arguments, WithoutAnyTheCommandsAreListed) {
  const Folder folder;
  const Ran r = run(folder, {});
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "");
  for (const char* command : {"pretrain", "generate", "serve"})
    EXPECT_NE(r.out.find(command), std::string::npos) << r.out;
}

TEST(Arguments, HelpAndVersionAreCommandsToo) {
  const Folder folder;
  const std::vector<std::pair<Arguments, Arguments>> calls{
      {{"help"}, {"--help"}},
      {{"help", "sft"}, {"sft", "--help"}},
      {{"help", "data"}, {"data", "--help"}},
      {{"help", "data", "get"}, {"data", "get", "--help"}},
      {{"data", "get", "help"}, {"data", "get", "--help"}},
      {{"convert", "help"}, {"convert", "--help"}},
      {{"help", "pretrain", "--data"}, {"pretrain", "--help"}},
      {{"version"}, {"--version"}},
  };
  for (const auto& [words, flags] : calls) {
    SCOPED_TRACE(words.back());
    const Ran r = run(folder, words), same = run(folder, flags);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_FALSE(r.out.empty());
    EXPECT_EQ(r.out, same.out);
  }
  for (const char* command : {"help", "version"}) {
    EXPECT_EQ(run(folder, {"help", command}).status, 0) << command;
    EXPECT_NE(run(folder, {"help"}).out.find(std::string("\n  ") + command + " "),
              std::string::npos);
  }
  expect_error(run(folder, {"help", "pretrian"}), 2, "got \"pretrian\"; did you mean pretrain?");
  expect_error(run(folder, {"help", "data", "gte"}), 2, "[data] expected a command, got \"gte\"");
}

// A setting that several commands share must not point to a flag that only one of them has.
TEST(Arguments, HelpOfTrainingNamesOnlyFlagsOfTheCommand) {
  const Folder folder;
  const std::regex flag("--[a-z0-9][a-z0-9-]*");
  for (const char* command : {"pretrain", "sft", "dpo", "grpo"}) {
    const std::string help = run(folder, {command, "--help"}).out;
    for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at) {
      const std::regex line("(^|\n)  (-h,)?(--[a-z0-9-]+\\{true\\},)?" + at->str() + "[ ,{]");
      EXPECT_TRUE(std::regex_search(help, line)) << command << " has no " << at->str();
    }
  }
}

TEST(Arguments, ASwitchTakesTruthValues) {
  const Folder folder;
  const fs::path toml = folder / "flags.toml";
  write_file_atomic(toml, std::string_view("decay_all = \"maybe\"\n"));
  const Arguments call{"pretrain", "--preset", "tiny",    "--run", folder / "run",
                       "--data",   "x.bin",    "--batch", "1"};
  expect_error(run(folder, call + Arguments{"--config", toml}), 2,
               "flags.toml: decay_all] expected true or false");
  write_file_atomic(toml, std::string_view("warmup = [1, 2]\n"));
  expect_error(run(folder, call + Arguments{"--config", toml}), 2,
               "flags.toml] expected one value for warmup, got a list of 2");
  expect_error(run(folder, call + Arguments{"--decay-all=maybe"}), 2,
               "[--decay-all] expected true or false");
  setenv("HEARTH_DECAY_ALL", "maybe", 1);
  const Ran r = run(folder, call);
  setenv("HEARTH_DECAY_ALL", "yes", 1);
  const Ran taken = run(folder, call);
  unsetenv("HEARTH_DECAY_ALL");
  expect_error(r, 2, "[HEARTH_DECAY_ALL] expected true or false (or 1, yes, on, 0, no, off)");
  expect_error(taken, 1, "x.bin");
}

// A misspelled variable is named once; those of flags, of kernels and of the build are known.
TEST(Arguments, AnUnknownVariableIsNamed) {
  const Folder folder;
  const std::vector<std::pair<const char*, const char*>> variables{
      {"HEARTH_TREADS", "2"}, {"HEARTH_LR", "1"}, {"HEARTH_PIN", "off"}, {"HEARTH_TEST_X", "1"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const Ran r = run(folder, {"info"});
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.err,
            "hearth: the environment variable HEARTH_TREADS is not known and has no effect; the "
            "nearest is HEARTH_THREADS\n");
}

TEST(Arguments, ATableOfAFileBelongsToACommand) {
  const Folder folder;
  const fs::path toml = folder / "flags.toml";
  const auto info = [&](const std::string& text) {
    write_file_atomic(toml, std::string_view(text));
    return run(folder, {"info", "--preset", "tiny", "--config", toml});
  };
  // The tables of other commands are skipped, by their full and by their last name.
  const Ran others = info("[pretrain]\nlr = 1\n[data.stat]\njson = true\n[stat]\njson = true\n");
  EXPECT_EQ(others.status, 0) << others.err;
  EXPECT_FALSE(others.out.starts_with("{")) << others.out;
  const Ran own = info("[info]\njson = true\n");
  EXPECT_EQ(own.status, 0) << own.err;
  EXPECT_TRUE(own.out.starts_with("{")) << own.out;
  expect_error(info("[info]\nprest = \"gpt2\"\n"), 2, "got \"prest\"; did you mean preset?");
  expect_error(info("[model]\nlayers = 3\n"), 2,
               "flags.toml] expected a table named after a command (info, tokenizer.*, data.*, ");
  expect_error(info("[pretrian]\nlr = 1\n"), 2, "got [pretrian]; did you mean [pretrain]?");
  // An abbreviation is no name; [train] is, of tokenizer train, but not where pretrain reads it.
  expect_error(info("[pre]\nlr = 1\n"), 2, "got [pre]; did you mean [pretrain] or [data.prepare]?");
  expect_error(info("[finetune]\nlr = 1\n"), 2, "got [finetune]; did you mean [sft]?");
  write_file_atomic(toml, std::string_view("[train]\nlr = 1\n"));
  expect_error(run(folder, {"pretrain", "--config", toml}), 2,
               "expected [pretrain], got [train], which is short for [tokenizer.train] and "
               "[bench.train]");
  expect_error(info("[hearth.info]\njson = true\n"), 2, "got [hearth.info]");
  expect_error(info("[help]\njson = true\n"), 2, "sft, dpo), got [help]");
}

TEST(Arguments, HeadsOverAPresetStayConsistent) {
  const Folder folder;
  const auto shape = [&](const std::string& preset, const Arguments& flags) {
    const Ran r = run(folder, Arguments{"bench", "attention", "--preset", preset, "--batch", "1",
                                        "--seq", "8", "--steps", "1", "--json"} +
                                  flags);
    EXPECT_EQ(r.status, 0) << r.err;
    return nlohmann::json::parse(r.out.substr(0, r.out.find('\n')))["shape"].get<std::string>();
  };
  EXPECT_EQ(shape("gpt2", {"--heads", "2"}), "fp32 1x8 heads 2/2 dim 384");
  EXPECT_EQ(shape("modern-124m", {"--heads", "16"}), "fp32 1x8 heads 16/4 dim 48");
  EXPECT_EQ(shape("modern-124m", {"--heads", "6", "--kv-heads", "2"}),
            "fp32 1x8 heads 6/2 dim 128");
  EXPECT_EQ(shape("gpt2", {"--heads", "2", "--head-dim", "64"}), "fp32 1x8 heads 2/2 dim 64");
  expect_error(run(folder, {"bench", "attention", "--preset", "modern-124m", "--heads", "6"}), 2,
               "[--heads] expected a multiple of 4");
}

TEST(Bench, AttentionCountsTheWindow) {
  const Folder folder;
  for (const int64_t window : {0, 64}) {
    SCOPED_TRACE(window);
    const Ran r =
        run(folder, {"bench", "attention", "--preset", "tiny", "--batch", "1", "--seq", "512",
                     "--steps", "1", "--json", "--window", std::to_string(window)});
    ASSERT_EQ(r.status, 0) << r.err;
    const auto j = nlohmann::json::parse(r.out.substr(0, r.out.find('\n')));
    double pairs = 0;
    for (int64_t i = 0; i < 512; ++i) pairs += double(window ? std::min(i + 1, window) : i + 1);
    const double flops = j["value"].get<double>() * 1e9 * j["ms"].get<double>() * 1e-3;
    EXPECT_NEAR(flops / (2 * 2 * 4 * 64 * pairs), 1, 0.01);
  }
}

class Resume : public testing::Test {
 protected:
  void SetUp() override { write_chain(data, 20000, 1); }
  Arguments over_preset(const Arguments& more) const {
    return Arguments{"pretrain", "--preset", "tiny", "--vocab", "64", "--context",
                     "16",       "--layers", "1",    "--dim",   "32", "--heads",
                     "2",        "--hidden", "64",   "--data",  data, "--run",
                     to,         "--batch",  "2",    "--steps", "4",  "--threads",
                     "1",        "--json"} +
           more;
  }
  const Folder folder;
  const fs::path data = folder / "train.bin", to = folder / "run";
};

TEST_F(Resume, KeepsTheArchitecture) {
  json_of(run(folder, over_preset({"--stop-after-step", "2"})));
  for (const char* preset : {"gpt2", "gpt2-xl", "tiny"}) {
    SCOPED_TRACE(preset);
    const Ran r = run(folder, {"pretrain", "--run", to, "--resume", "--preset", preset});
    expect_error(r, 1, "a run keeps the settings it began with: vocab = 64, not ");
    EXPECT_NE(r.err.find("--preset"), std::string::npos) << r.err;
  }
  expect_error(run(folder, {"pretrain", "--run", to, "--resume", "--layers", "2"}), 1,
               "layers = 1, not 2");
  // What describes the same model is no contradiction.
  EXPECT_EQ(json_of(run(folder, over_preset({"--resume", "--stop-after-step", "3"})))["steps"], 3);
  EXPECT_EQ(json_of(run(folder, {"pretrain", "--run", to, "--resume", "--json"}))["steps"], 4);
}

// Also where no checkpoint could contradict.
TEST_F(Resume, KeepsTheSettingsBeforeTheFirstCheckpoint) {
  json_of(run(folder, over_preset({})));
  fs::remove_all(to / "checkpoints");
  expect_error(run(folder, {"pretrain", "--run", to, "--resume", "--lr", "0.5"}), 1,
               "lr = 0.0006, not 0.5");
}

// The file's settings are like flags; what it does not name comes from the run.
TEST_F(Resume, TakesWhatASettingsFileDoesNotNameFromTheRun) {
  json_of(run(folder, over_preset({"--stop-after-step", "2"})));
  const fs::path toml = folder / "more.toml";
  const Arguments resume{"pretrain", "--run", to, "--resume", "--config", toml, "--json"};
  write_file_atomic(toml, std::string_view("steps = 6\nkeep = 1\n"));
  const Ran longer = run(folder, resume);
  EXPECT_EQ(json_of(longer)["steps"], 6);
  EXPECT_NE(longer.err.find("hearth: settings from " + toml.string() +
                            "; those that it does not name from " + to.string() + "/config.toml"),
            std::string::npos)
      << longer.err;
  write_file_atomic(toml, std::string_view("lr = 0.5\n"));
  const Ran other = run(folder, resume);
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("lr = 0.0006, not 0.5"), std::string::npos) << other.err;
  write_file_atomic(toml, std::string_view("stpes = 7\n"));
  expect_error(run(folder, resume), 2, "did you mean steps?");
  // The file may name the run.
  write_file_atomic(toml, "steps = 7\nresume = true\nrun = \"" + to.string() + "\"\n");
  EXPECT_EQ(json_of(run(folder, {"pretrain", "--config", toml, "--json"}))["steps"], 7);
}

TEST_F(Resume, AMissingRunIsSaid) {
  for (const char* command : {"pretrain", "sft", "dpo", "grpo"}) {
    SCOPED_TRACE(command);
    expect_error(run(folder, {command, "--run", folder / "none", "--resume"}), 1,
                 "none] there is no run to resume: ");
  }
  EXPECT_FALSE(fs::exists(folder / "none"));
  // With everything a new run needs it starts, and says so.
  const Ran r = run(folder, over_preset({"--resume"}));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("contains no run yet; starting a new one"), std::string::npos) << r.err;
  const Ran bare = run(folder, {"pretrain", "--run", folder / "new", "--resume", "--data", data});
  EXPECT_NE(bare.err.find("pretrain needs a model"), std::string::npos) << bare.err;
  EXPECT_FALSE(fs::exists(folder / "new"));
}

TEST_F(Resume, ValidatesOnTheSameTokens) {
  const Arguments val{"--val", data, "--eval-every", "2"};
  json_of(run(folder, over_preset(val + Arguments{"--stop-after-step", "2"})));
  EXPECT_NE(read_file(to / "config.toml").find("eval_tokens = 2048\n"), std::string::npos)
      << read_file(to / "config.toml");
  json_of(run(folder, {"pretrain", "--run", to, "--resume", "--json"}));
  Arguments whole = over_preset(val + Arguments{"--eval-tokens", "2048"});
  *(std::find(whole.begin(), whole.end(), "--run") + 1) = folder / "whole";
  json_of(run(folder, whole));
  EXPECT_EQ(read_file(to / "log.jsonl"), read_file(folder / "whole/log.jsonl"));
}

// Relative paths in config.toml are meant from where the run was started.
TEST_F(Resume, FromAnotherFolder) {
  const fs::path before = fs::current_path();
  Arguments call = over_preset({"--stop-after-step", "2"});
  for (auto& [flag, value] :
       {std::pair<std::string, std::string>{"--data", "train*.bin"}, {"--run", "run"}})
    *(std::find(call.begin(), call.end(), flag) + 1) = value;
  fs::current_path(folder.path());
  const Ran began = run(folder, call);
  fs::create_directory(folder / "else");
  fs::current_path(folder / "else");
  const Ran resumed = run(folder, {"pretrain", "--run", "../run", "--resume", "--json"});
  fs::current_path(before);
  json_of(began);
  EXPECT_EQ(json_of(resumed)["steps"], 4);
  EXPECT_NE(resumed.err.find("hearth: data = train*.bin is relative to " + folder.path().string()),
            std::string::npos)
      << resumed.err;
  EXPECT_TRUE(fs::is_empty(folder / "else"));
  Arguments whole = over_preset({});
  *(std::find(whole.begin(), whole.end(), "--run") + 1) = folder / "whole";
  json_of(run(folder, whole));
  EXPECT_EQ(read_file(to / "log.jsonl"), read_file(folder / "whole/log.jsonl"));
}

TEST_F(Resume, ProgressSaysOfWhatItIsAShare) {
  const Ran r = run(folder, over_preset({}));
  EXPECT_NE(r.err.find("% of measured peak)"), std::string::npos) << r.err;
}

TEST(Progress, APipeGetsLines) {
  const Folder folder;
  write_file_atomic(folder / "text.txt", std::string_view("once upon a time there was a cat"));
  const Ran r = run(folder, {"tokenizer", "train", "--input", folder / "text.txt", "--vocab", "260",
                             "--out", folder / "tok"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err.find('\r'), std::string::npos) << r.err;
  EXPECT_TRUE(r.err.ends_with("MB of text\n")) << r.err;
  write_served_folder(folder / "model");
  const Ran scored = run(folder, {"eval", "--task", "perplexity", "--model", folder / "model",
                                  "--data", folder / "text.txt"});
  EXPECT_EQ(scored.status, 0) << scored.err;
  EXPECT_EQ(scored.err.find('\r'), std::string::npos) << scored.err;
}

// A terminal nobody looks at; what is written to it is read back.
class Terminal {
 public:
  Terminal() : end_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(end_.get()), unlockpt(end_.get());
    name_ = ptsname(end_.get());
    keep_ = Fd(open(name_.c_str(), O_RDWR | O_NOCTTY));  // or what was written would be lost
  }
  const std::string& name() const { return name_; }
  std::string text() {
    fcntl(end_.get(), F_SETFL, O_NONBLOCK);
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = read(end_.get(), buffer, sizeof buffer)) > 0;) all.append(buffer, n);
    return all;
  }

 private:
  Fd end_, keep_;
  std::string name_;
};

TEST(Escapes, ATerminalSeesThemAndAPipeGetsThem) {
  const Folder folder;
  write_served_folder(folder / "model");
  const std::string prompt = "a\x1b[31mb\xc2\x9b\x07 \u00e9";
  const Arguments generate{
      "generate",  "--model", folder / "model", "--prompt=" + prompt, "--max-tokens", "0", "--echo",
      "--threads", "1"};
  EXPECT_EQ(run(folder, generate).out, prompt + "\n");
  Terminal terminal;
  EXPECT_EQ(wait_for(start(folder, generate, "seen", terminal.name())), 0);
  EXPECT_EQ(terminal.text(), "a\\x1b[31mb\\u009b\\x07 \u00e9\r\n");
}

TEST(Escapes, ErrorsAreOneVisibleLine) {
  const Folder folder;
  const Ran r = run(folder, {"generate", "--model", "no\x1b[2J\nthing", "--prompt", "x"});
  expect_error(r, 1, "no\\x1b[2J thing");
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos);
  std::string name;
  for (int i = 0; i < 2000; ++i) name += "\u00e9";
  const Ran cut = run(folder, {"generate", "--model", name, "--prompt", "x"});
  expect_error(cut, 1, " ... ");
  EXPECT_LE(cut.err.size(), 520u);
  EXPECT_NE(cut.err.find("File name too long"), std::string::npos) << cut.err;
}

TEST(Generate, SaysThatItDoesNotReadStandardInput) {
  const Folder folder;
  write_served_folder(folder / "model");
  const Arguments generate{"generate", "--model",  folder / "model", "--max-tokens",
                           "2",        "--greedy", "--threads",      "1"};
  const std::string note = "standard input was not read; --prompt-file - takes the prompt from it";
  const Ran ignored = run_on("abc", folder, generate), none = run(folder, generate);
  EXPECT_NE(ignored.err.find(note), std::string::npos) << ignored.err;
  EXPECT_EQ(ignored.out, none.out);
  EXPECT_EQ(none.err.find(note), std::string::npos) << none.err;
  for (const Arguments& prompt : {Arguments{"--prompt", "abc"}, Arguments{"--prompt-file", "-"}}) {
    const Ran told = run_on("abc", folder, generate + prompt);
    EXPECT_EQ(told.status, 0) << told.err;
    EXPECT_EQ(told.err.find(note), std::string::npos) << told.err;
    EXPECT_NE(told.err.find("prompt 3:"), std::string::npos) << told.err;
  }
}

// The bos that starts a text counts, as on the server.
TEST(Generate, AnEmptyPromptIsOneToken) {
  const Folder folder;
  write_served_folder(folder / "model");
  const Ran r = run(folder, {"generate", "--model", folder / "model", "--prompt", "",
                             "--max-tokens", "2", "--greedy", "--threads", "1", "--json"});
  EXPECT_EQ(json_of(r)["prompt_tokens"], 1);
  EXPECT_NE(r.err.find(" tokens, prompt 1:"), std::string::npos) << r.err;
}

TEST(Clipped, MaxTokensSaysSo) {
  const Folder folder;
  write_served_folder(folder / "model");
  const Arguments generate{"generate", "--model",      folder / "model", "--prompt",
                           "abcd",     "--ignore-eos", "--threads",      "1",
                           "--greedy", "--max-tokens"};
  const Ran cut = run(folder, generate + Arguments{"1000"});
  EXPECT_NE(cut.err.find("--max-tokens 1000 was cut to 252: the model's context of 256 tokens"),
            std::string::npos)
      << cut.err;
  const Ran whole = run(folder, generate + Arguments{"20"});
  EXPECT_EQ(whole.err.find("was cut"), std::string::npos) << whole.err;
  const Ran chat = run_on(
      "hi\n", folder,
      {"chat", "--model", folder / "model", "--seed", "1", "--max-tokens", "1000", "--json"});
  const bool full = chat.out.find("\"length\"") != std::string::npos;
  EXPECT_EQ(chat.err.find("--max-tokens 1000 was cut to ") != std::string::npos, full) << chat.err;
}

}  // namespace
}  // namespace hearth
