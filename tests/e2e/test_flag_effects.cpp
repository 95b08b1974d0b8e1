// Flags that the other settings make useless are refused where a user asks for them in vain.
#include "e2e/short_runs.h"

namespace hearth {
namespace {

TEST(FlagEffects, UselessFlagsOfANewRunAreRefused) {
  const Folder folder;
  const std::vector<std::pair<const char*, const char*>> useless{
      {"pretrain --eval-every 5",
       "[--eval-every] has no effect: there is no validation data; leave it out, or give --val\n"},
      {"sft --eval-every 5 --holdout 0", "leave it out, or give --val or --holdout\n"},
      {"grpo --eval-every 5", "leave it out, or give --eval-data\n"},
      {"pretrain --schedule cosine --decay-steps 10",
       "[--decay-steps] has no effect: only --schedule wsd and wsd_sqrt use it; leave it out\n"},
      {"sft --decay-steps 10", "[--decay-steps] has no effect"},
      {"pretrain --schedule wsd --decay-steps 10 --decay-share 0.5",
       "[--decay-share] has no effect: --decay-steps gives the length of the decay; leave it "
       "out\n"},
      {"sft --schedule constant --lr-floor 0.1",
       "[--lr-floor] has no effect: only --schedule cosine and linear use it; leave it out\n"},
      {"pretrain --schedule wsd-sqrt --decay-share 0.2 --lr-floor 0.1",
       "[--lr-floor] has no effect"},
      {"grpo --ema-decay 0.5",
       "[--ema-decay] has no effect: only --baseline ema uses it; leave it out\n"},
      {"pretrain --optimizer lion --adam-eps 1e-6",
       "[--adam-eps] has no effect: --optimizer lion does not use it; leave it out\n"},
      {"pretrain --sample-prompt the",
       "[--sample-prompt] has no effect: without --sample-every there are no samples; leave it "
       "out\n"},
      {"grpo --kl k1",
       "[--kl] has no effect: there is no KL penalty without --beta; leave it out\n"},
      {"pretrain --eval-tokens 64",
       "[--eval-tokens] has no effect: there is no validation data; leave it out, or give --val\n"},
      {"pretrain --eval-documents", "[--eval-documents] has no effect: there is no validation"},
      {"pretrain --sample-tokens 100",
       "[--sample-tokens] has no effect: without --sample-every there are no samples"},
      {"pretrain --document-start 3 --document-mask=no",
       "[--document-start] has no effect: only --document-mask and --eval-documents use it"},
      {"pretrain --target-loss 2", "[--target-loss] expected --val with it, got none\n"},
      {"sft --target-loss 2", "[--target-loss] expected --val or --holdout with it, got none\n"},
      {"pretrain --optimizer muon --cautious-decay --weight-decay 0",
       "[--cautious-decay] has no effect: the weight decay of the matrices is 0; leave it out\n"},
      {"sft --optimizer normuon --cautious-decay", "[--cautious-decay] has no effect"},
      {"pretrain --optimizer muon --cautious-decay --group-weight-decay matrix:0,head:0.1",
       "[--cautious-decay] has no effect"},
      {"dpo --target-loss 2", "[--target-loss] expected --val or --holdout with it, got none\n"},
  };
  for (const auto& [line, error] : useless) {
    SCOPED_TRACE(line);
    expect_error(run(folder, words(line)), 2, error);
  }
}

TEST(FlagEffects, FlagsInUseAreNot) {
  const Folder folder;
  for (const char* line :
       {"pretrain --eval-every 0",
        "pretrain --eval-every 5 --val v.bin --target-loss 2",
        "pretrain --eval-every 5 --eval-every 0",
        "sft --holdout 0.1 --eval-every 5 --target-loss 2",
        "dpo --val v.jsonl --target-loss 2",
        "grpo --eval-data e.jsonl --eval-every 5",
        "pretrain --schedule wsd --decay-steps 10",
        "pretrain --schedule wsd-sqrt --decay-steps 10",
        "pretrain --eval-every 5 --help",
        "pretrain --decay-steps 0",
        "pretrain --optimizer muon --adam-eps 1e-6",
        "grpo --baseline ema --ema-decay 0.5",
        "sft --lr-floor 0.1",
        "pretrain --schedule wsd --decay-share 0.2 --lr-floor 0",
        "grpo --beta 0.1 --kl k1",
        "pretrain --optimizer muon --cautious-decay",
        "pretrain --optimizer muon --cautious-decay --weight-decay 0 --group-weight-decay matrix:1",
        "sft --optimizer muon --cautious-decay --weight-decay 0.1",
        "pretrain --optimizer muon --cautious-decay=false --weight-decay 0",
        "pretrain --sample-every 5 --sample-prompt the"}) {
    const Ran r = run(folder, words(line));  // it lacks --run
    EXPECT_EQ(r.err.find("no effect"), std::string::npos) << line << ": " << r.err;
    EXPECT_EQ(r.err.find("got none"), std::string::npos) << line << ": " << r.err;
  }
}

TEST(FlagEffects, BeamSearchDoesNotSample) {
  const Folder folder;
  const auto generate = [&](const std::string& line) {
    return run(folder, words("generate --model none --prompt a --beams " + line));
  };
  expect_error(generate("2 --temperature 0.7 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 3"), 2,
               "[--beams] beam search draws no samples, so --temperature, --top-k, --top-p, "
               "--min-p, --seed would have no effect; leave out --beams or the flags of sampling");
  expect_error(generate("2 --top-k=5"), 2, "so --top-k would have no effect");
  // Without beams they have one, 0 and 1 turn them off, and a file may have any.
  write_file_atomic(folder / "all.toml", std::string_view("temperature = 0.7\nseed = 2\n"));
  for (const std::string& line :
       {std::string("1 --temperature 0.7 --seed 3"), std::string("2 --greedy"),
        std::string("2 --temperature 0 --top-k 0 --top-p 1"),
        std::string("2 --temperature 0.0 --top-p=1.0 --min-p 0.00"),
        std::string("2 --repetition-penalty 1.1 --length-penalty 0.5"),
        "2 --config " + (folder / "all.toml").string()})
    EXPECT_EQ(generate(line).err.find("no effect"), std::string::npos) << line;
}

TEST(FlagEffects, UselessModelFlagsOfANewRunAreRefused) {
  const Folder folder;
  const std::vector<std::pair<const char*, const char*>> useless{
      {"--rope-factor 4", "[--rope-factor] has no effect: rope_scaling is none; leave it out\n"},
      {"--rope-context 128", "[--rope-context] has no effect: rope_scaling is none"},
      {"--rope-scaling linear --rope-factor 2 --rope-high 4",
       "[--rope-high] has no effect: rope_scaling is lin"},
      {"--position alibi --rope-theta 1e4", "[--rope-theta] has no effect: position is alibi"},
      {"--preset gpt2 --rotary 0.5", "[--rotary] has no effect: position is learned"},
      {"--rope-local-theta 100",
       "[--rope-local-theta] has no effect: no layer has the letter L in rope_pattern"},
      {"--layers 2 --rope-pattern RRL --rope-local-theta 100", "[--rope-local-theta] has no eff"},
      {"--relative-buckets 32", "[--relative-buckets] has no effect: position is rope"},
      {"--relative-distance 64", "[--relative-distance] has no effect: position is rope"},
      {"--window-pattern SL", "[--window-pattern] has no effect: window and long_window are 0"},
      {"--long-window 4",
       "[--long-window] has no effect: no layer has the letter L in window_pattern"},
      {"--window 4 --window-pattern L",
       "[--window] has no effect: no layer has the letter S in window_pattern"},
      {"--window-pattern L --window-schedule 0:8,1:0",
       "[--window-schedule] has no effect: no layer has the letter S in window_pattern; leave it "
       "out\n"},
      {"--window-pattern S --long-window-schedule 0:8,1:0",
       "[--long-window-schedule] has no effect: no layer has the letter L in window_pattern"},
      {"--layers 1 --x0-skip", "[--x0-skip] has no effect: the model has only one layer"},
      {"--layers 2 --u-skips", "[--u-skips] has no effect: the model has fewer than three layers"},
      {"--layers 1 --value-residual",
       "[--value-residual] has no effect: the model has only one layer with attention"},
      {"--layers 3 --mixer-pattern NAN --value-residual", "[--value-residual] has no effect"},
      {"--gate-inputs 8", "[--gate-inputs] has no effect: output_gate is none"},
      {"--top-k 2", "[--top-k] has no effect: the model has no experts"},
      {"--preset moe-64 --experts 0 --router softmax",
       "[--router] has no effect: the model has no"},
      {"--norm-topk", "[--norm-topk] has no effect: the model has no experts"},
  };
  for (const auto& [line, error] : useless) {
    SCOPED_TRACE(line);
    expect_error(run(folder, Arguments{"pretrain"} + words(line)), 2, error);
  }
  // A new run, although it may be resumed.
  const Ran r = run(folder, words("pretrain --rope-factor=4 --resume --data t.bin --run none"));
  EXPECT_EQ(r.status, 2);
  EXPECT_NE(r.err.find("[--rope-factor] has no effect: rope_scaling is none"), std::string::npos);
}

TEST(FlagEffects, ModelFlagsInUseAreNot) {
  const Folder folder;
  write_file_atomic(folder / "all.toml",
                    std::string_view("top_k = 2\nrope_factor = 1\nrelative_buckets = 32\n"
                                     "eval_tokens = 64\nsample_tokens = 5\n"));
  write_file_atomic(folder / "yarn.toml", std::string_view("rope_scaling = \"yarn\"\n"));
  const std::string all = folder / "all.toml", yarn = folder / "yarn.toml";
  for (const std::string& line :
       {std::string("--rope-scaling yarn --rope-factor 4 --rope-context 64 --rope-low 1"),
        std::string("--rope-scaling=linear --rope-factor=4 --rope-context 0"),
        std::string("--rope-pattern LR --rope-local-theta 100"),
        std::string("--position relative --relative-buckets 8 --relative-distance 64"),
        std::string("--long-window 4 --window-pattern SL"),
        std::string("--preset speedrun-124m --window 6 --long-window 12"),
        std::string("--window-pattern SL --window-schedule 0:8,1:0"),
        std::string("--window-pattern SL --long-window-schedule 0:8,1:0"),
        std::string("--layers 2 --x0-skip --value-residual"),
        std::string("--layers 3 --u-skips"),
        std::string("--layers 1 --x0-skip=false --u-skips=no --no-value-residual"),
        std::string("--layers 3 --mixer-pattern NA --layers 4 --value-residual"),
        std::string("--output-gate per_head --gate-inputs 8"),
        std::string("--experts 4 --top-k 2"),
        std::string("--preset moe-64 --top-k 2 --router softmax"),
        std::string("--long-window 0 --gate-inputs 0"),
        std::string("--document-mask --document-start 3"),
        std::string("--val v.bin --eval-documents --document-start 3 --eval-tokens 64"),
        std::string("--recipe nocap-fast --document-start 3"),
        std::string("--sample-every 2 --sample-tokens 5"),
        "--config " + all,
        "--rope-factor 4 --config " + yarn}) {
    const Ran r = run(folder, Arguments{"pretrain"} + words(line));  // it lacks --run
    EXPECT_EQ(r.err.find("no effect"), std::string::npos) << line << ": " << r.err;
  }
}

// A resumed run may be given a setting that it has no use for, but not a target it cannot reach.
TEST(FlagEffects, OfAResumedRunOnlyATargetIsRefused) {
  const Folder folder;
  write_chain(folder / "train.bin", 2000, 1);
  json_of(run(folder, tiny_run(folder / "train.bin", folder / "run", 4) +
                          Arguments{"--stop-after-step", "2"}));
  const Arguments resume{"pretrain", "--run", folder / "run", "--resume", "--json"};
  expect_error(run(folder, resume + Arguments{"--target-loss", "2"}), 2,
               "[--target-loss] expected --val with it, got none");
  EXPECT_EQ(json_of(run(folder, resume + words("--eval-every 3 --sample-tokens 5")))["steps"], 4);
}

// A setting of Muon is refused where a user asks for it in vain. A recipe may have it while the
// user chooses another optimizer.
TEST(Arguments, SettingsOfMuonNeedMuon) {
  const Folder folder;
  for (const std::string flag :
       {"--momentum", "--muon-scale", "--muon-heads", "--cautious-decay"}) {
    const Arguments value = flag == "--momentum"     ? Arguments{"0.9"}
                            : flag == "--muon-scale" ? Arguments{"spectral"}
                            : flag == "--muon-heads" ? Arguments{"pair"}
                                                     : Arguments{};
    const Ran r = run(folder, Arguments{"pretrain", "--preset", "tiny", flag} + value);
    EXPECT_EQ(r.status, 2) << flag;
    EXPECT_NE(r.err.find("[" + flag +
                         "] has no effect: only --optimizer muon and normuon use it; leave it out"),
              std::string::npos)
        << r.err;
  }
  const Ran with = run(folder, {"pretrain", "--preset", "tiny", "--momentum", "0.9", "--optimizer",
                                "muon", "--data", folder / "none.bin"});
  EXPECT_EQ(with.err.find("no effect"), std::string::npos) << with.err;
  const Ran recipe = run(folder, {"pretrain", "--recipe", "nocap-fast", "--optimizer", "adamw",
                                  "--data", folder / "none.bin"});
  EXPECT_EQ(recipe.err.find("no effect"), std::string::npos) << recipe.err;
}

}  // namespace
}  // namespace hearth
