// hearth grpo that is stopped: killed at any point or left without rewards it goes on as if it had
// not been, and only on the prompts and the model that it began with.
#include <chrono>
#include <thread>

#include "e2e/grpo_sums.h"
#include "formats/checkpoint_dir.h"

namespace hearth {
namespace {

TEST(GrpoCommand, KilledAnywhereItGoesOnAsIfItHadNotBeen) {
  const Sums& s = sums();
  constexpr int steps = 60;  // longer than the first pauses, on any machine
  json_of(run(s.folder, s.grpo("whole", steps)));
  int kills = 0;
  for (int ms = 0;; ms = (ms * 7 + 53) % 400) {
    Arguments args = s.grpo("killed", steps);
    if (fs::exists(s.path("killed") + "/config.toml")) args.push_back("--resume");
    const pid_t pid = start(s.folder, args, "killed");
    std::this_thread::sleep_for(std::chrono::milliseconds(60 + ms + 40 * kills));
    if (kills < 12) kill(pid, SIGKILL);
    const int status = wait_for(pid);
    if (status == 0) break;
    ASSERT_EQ(status, 128 + SIGKILL) << read_file(s.path("killed.err"));
    ++kills;
  }
  EXPECT_GT(kills, 0);
  EXPECT_EQ(s.log("killed"), s.log("whole"));
  EXPECT_EQ(read_file(s.path("killed") + "/rollouts.jsonl"),
            read_file(s.path("whole") + "/rollouts.jsonl"));
  EXPECT_EQ(read_file(s.path("killed") + "/latest/model.safetensors"),
            read_file(s.path("whole") + "/latest/model.safetensors"));
}

// The program kills the trainer while it waits for a reward, once each few answers.
TEST(GrpoCommand, KilledByItsRewardProgramItGoesOn) {
  const Sums& s = sums();
  const std::string plain = reward_script(s.folder, "judge", R"(while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in *'"completion":"1'*) r=1 ;; *) r=0 ;; esac
  echo "{\"id\":$id,\"reward\":$r}"
done
)");
  const std::string killer = reward_script(s.folder, "killer", R"(n=0
while read -r line; do
  n=$((n + 1))
  [ $n -eq 40 ] && [ ! -e "$0.done" ] && touch "$0.done" &&
    kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) # the parent is the supervisor
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in *'"completion":"1'*) r=1 ;; *) r=0 ;; esac
  echo "{\"id\":$id,\"reward\":$r}"
done
)");
  const auto with = [&](const std::string& name, const std::string& program) {
    Arguments a = s.grpo(name, 6);
    for (std::string& x : a)
      if (x == "exact") x = "program:" + program;
    return a + Arguments{"--reward-workers", "1"};
  };
  json_of(run(s.folder, with("judged", plain)));
  const Ran killed = run(s.folder, with("shot", killer));
  EXPECT_EQ(killed.status, 128 + SIGKILL);
  json_of(run(s.folder, with("shot", killer) + Arguments{"--resume"}));
  EXPECT_EQ(s.log("shot"), s.log("judged"));
}

// A program that answers for a while, and then neither it nor the next ever again until it is
// woken.
std::string tiring_judge(const Sums& s, const std::string& name) {
  return reward_script(s.folder, name, R"(while read -r line; do
  echo >> "$0.asked"
  if [ ! -e "$0.awake" ] && [ $(wc -l < "$0.asked") -gt 41 ]; then
    touch "$0.tired"
    exec sleep 600
  fi
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in *'"completion":"1'*) r=1 ;; *) r=0 ;; esac
  echo "{\"id\":$id,\"reward\":$r}"
done
)");
}

// Neither a signal nor the end by the limit costs what was learned before the rewards stopped.
TEST(GrpoCommand, WhatWasLearnedOutlivesAJudgeThatHangs) {
  const Sums& s = sums();
  const auto with = [&](const std::string& name, const std::string& program, const char* timeout) {
    Arguments a = s.grpo(name, 6);
    for (std::string& x : a)
      if (x == "exact") x = "program:" + program;
    return a + Arguments{"--reward-workers", "1", "--reward-timeout",   timeout,
                         "--reward-start",   "1", "--eval-data",        "",
                         "--eval-every",     "0", "--checkpoint-every", "0"};
  };
  const std::string judge = tiring_judge(s, "tiring");  // 16 a step: hangs in the third
  std::ofstream(judge + ".awake") << "";
  json_of(run(s.folder, with("rested", judge, "60")));
  fs::remove(judge + ".awake");
  fs::remove(judge + ".asked");
  const pid_t pid = start(s.folder, with("tired", judge, "600"), "tired");
  wait_for_file(judge + ".tired", pid);  // two steps are done
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT) << read_file(s.folder / "tired.err");
  EXPECT_EQ(fs::read_symlink(s.path("tired") + "/latest").filename(), "step-00000002");
  std::ofstream(judge + ".awake") << "";
  json_of(run(s.folder, with("tired", judge, "60") + Arguments{"--resume"}));
  EXPECT_EQ(s.log("tired"), s.log("rested"));
  fs::remove(judge + ".awake");
  fs::remove(judge + ".asked");
  const Ran ended = run(s.folder, with("ended", judge, "2") + Arguments{"--reward-failures", "0"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.err.find("completions got no reward"), std::string::npos) << ended.err;
  EXPECT_EQ(fs::read_symlink(s.path("ended") + "/latest").filename(), "step-00000002");
}

// An evaluation that a signal cut short is made when the run goes on, and may be the best.
TEST(GrpoCommand, TheBestMayBeFoundAfterAStop) {
  const Sums& s = sums();
  const std::string judge = tiring_judge(s, "dozing");
  Arguments a = s.grpo("dozed", 2);
  for (std::string& x : a)
    if (x == "exact") x = "program:" + judge;
  // One before the run, 8 at the start and 16 a step: it hangs in the evaluation after the second.
  a = a + Arguments{"--reward-workers",   "1", "--eval-prompts",   "8",  "--eval-every", "2",
                    "--checkpoint-every", "0", "--reward-timeout", "600"};
  const pid_t pid = start(s.folder, a, "dozed");
  wait_for_file(judge + ".tired", pid);
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT) << read_file(s.folder / "dozed.err");
  EXPECT_FALSE(fs::exists(s.path("dozed") + "/best"));
  std::ofstream(judge + ".awake") << "";
  json_of(run(s.folder, a + Arguments{"--resume"}));
  EXPECT_EQ(fs::read_symlink(s.path("dozed") + "/best").filename(), step_name(2));
}

TEST(GrpoCommand, IsNotResumedOnOtherPrompts) {
  const Sums& s = sums();
  const std::string own = s.path("own.jsonl"), prompts = read_file(s.path("sums/prompts.jsonl"));
  Arguments args = s.grpo("prompted", 4);
  for (std::string& x : args)
    if (x == s.path("sums/prompts.jsonl")) x = own;
  const auto with = [&](const std::string& rows, const Arguments& more) {
    std::ofstream(own) << rows;
    return run(s.folder, args + more);
  };
  json_of(with(prompts, {"--stop-after-step", "2"}));
  expect_error(with(prompts.substr(prompts.find('\n') + 1), {"--resume"}), 1, "the data that");
  std::string wrong = prompts;  // the same prompts with another answer
  wrong[wrong.find_last_of("0123456789")] ^= 1;
  expect_error(with(wrong, {"--resume"}), 1, "the data that");
  EXPECT_EQ(json_of(with(prompts, {"--resume"}))["steps"], 4);
}

// The tokenizer of another model may be the same, so its prompts do not tell it apart.
TEST(GrpoCommand, IsNotResumedOnAnotherModel) {
  const Sums& s = sums();
  const fs::path other = s.path("other-model"), moved = s.path("moved-model");
  for (const fs::path& copy : {other, moved})
    fs::copy(fs::canonical(fs::path(s.path("base")) / "latest"), copy, fs::copy_options::recursive);
  const fs::path weights = other / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = char(bytes.back() ^ 1);
  std::ofstream(weights, std::ios::binary) << bytes;
  fs::remove(other / "manifest.json");
  json_of(run(s.folder, s.grpo("from-base", 4) + Arguments{"--stop-after-step", "2"}));
  const auto resumed = [&](const fs::path& model) {
    Arguments args = s.grpo("from-base", 4) + Arguments{"--resume"};
    for (std::string& x : args)
      if (x == s.path("base")) x = model.string();
    return run(s.folder, args);
  };
  expect_error(resumed(other), 1, "expected the model that the run began from");
  EXPECT_EQ(json_of(resumed(moved))["steps"], 4);
}

}  // namespace
}  // namespace hearth
