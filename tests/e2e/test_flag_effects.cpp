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
      {"pretrain --optimizer lion --adam-eps 1e-6",
       "[--adam-eps] has no effect: --optimizer lion does not use it; leave it out\n"},
      {"pretrain --sample-prompt the",
       "[--sample-prompt] has no effect: without --sample-every there are no samples; leave it "
       "out\n"},
      {"grpo --kl k1",
       "[--kl] has no effect: there is no KL penalty without --beta; leave it out\n"},
      {"pretrain --target-loss 2", "[--target-loss] expected --val with it, got none\n"},
      {"sft --target-loss 2", "[--target-loss] expected --val or --holdout with it, got none\n"},
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
       {"pretrain --eval-every 0", "pretrain --eval-every 5 --val v.bin --target-loss 2",
        "pretrain --eval-every 5 --eval-every 0",
        "sft --holdout 0.1 --eval-every 5 --target-loss 2", "dpo --val v.jsonl --target-loss 2",
        "grpo --eval-data e.jsonl --eval-every 5", "pretrain --schedule wsd --decay-steps 10",
        "pretrain --schedule wsd-sqrt --decay-steps 10", "pretrain --eval-every 5 --help",
        "pretrain --decay-steps 0", "pretrain --optimizer muon --adam-eps 1e-6",
        "grpo --beta 0.1 --kl k1", "pretrain --sample-every 5 --sample-prompt the"}) {
    const Ran r = run(folder, words(line));  // it lacks --run
    EXPECT_EQ(r.err.find("no effect"), std::string::npos) << line << ": " << r.err;
    EXPECT_EQ(r.err.find("got none"), std::string::npos) << line << ": " << r.err;
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
  EXPECT_EQ(json_of(run(folder, resume + Arguments{"--eval-every", "3"}))["steps"], 4);
}

}  // namespace
}  // namespace hearth
