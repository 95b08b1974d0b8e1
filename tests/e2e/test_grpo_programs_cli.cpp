// Reward programs of `hearth grpo` from the outside: broken ones are found before the run, none
// outlives the program, and a file may not name one unasked.
#include <thread>

#include "e2e/command.h"
#include "served_folder.h"

namespace hearth {
namespace {

constexpr const char* answers = R"(while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  echo "{\"id\":$id,\"reward\":1}"
done
)";

class GrpoPrograms : public testing::Test {
 protected:
  void SetUp() override {
    write_served_folder(folder / "model");
    write_file_atomic(folder / "prompts.jsonl", "{\"prompt\": \"q\", \"answer\": \"a\"}\n");
  }
  std::string script(const std::string& name, const std::string& body) const {
    const fs::path file = folder / name;
    std::ofstream(file) << "#!/bin/sh\n" << body;
    fs::permissions(file, fs::perms::owner_all);
    return file.string();
  }
  std::string path(const std::string& name) const { return folder / name; }
  Arguments grpo(const std::string& name, const std::string& program) const {
    return {"grpo",
            "--model",
            path("model"),
            "--data",
            path("prompts.jsonl"),
            "--run",
            path(name),
            "--reward",
            "program:" + program,
            "--prompts",
            "1",
            "--group",
            "2",
            "--steps",
            "2",
            "--max-completion",
            "4",
            "--threads",
            "1",
            "--reward-workers",
            "1"};
  }
  // Whether the process whose id is in the file has ended; waits a while for it.
  bool ends(const std::string& file) const {
    const pid_t pid = pid_t(std::stol(read_file(folder / file)));
    for (int i = 0; i < 10000 && kill(pid, 0) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return kill(pid, 0) != 0;
  }

  const Folder folder;
};

TEST_F(GrpoPrograms, ABrokenOneIsFoundBeforeTheRun) {
  expect_error(run(folder, grpo("run", "/no/such/judge")), 1,
               "[reward program /no/such/judge] the program gave no reward to a test question "
               "before the run: it ");
  const std::string dies = script("dies", "printf 'no table\\n\\033[31mred' >&2\nexit 3\n");
  const Ran died = run(folder, grpo("run", dies));
  expect_error(died, 1, "ended without an answer");
  EXPECT_NE(died.err.find(R"(its stderr ends with "no table\n\u001b[31mred")"), std::string::npos)
      << died.err;
  const std::string says = script("says", "while read -r line; do echo yes; done\n");
  expect_error(run(folder, grpo("run", says)), 1, "it answered \"yes\" to question");
  EXPECT_FALSE(fs::exists(folder / "run"));
  const Ran good = run(folder, grpo("run", script("good", answers)));
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_NE(good.out.find("reward 1.0000"), std::string::npos) << good.out;
}

TEST_F(GrpoPrograms, ARunWithoutAnyRewardFails) {
  // It answers the first question alone.
  const std::string once = script("once", R"(read -r line
[ -e "$0.asked" ] || { touch "$0.asked"; echo '{"id":1,"reward":1}'; read -r line; }
echo 'out of order' >&2
exit 1
)");
  const Ran r = run(folder, grpo("run", once));
  EXPECT_EQ(r.status, 1) << r.err;
  EXPECT_NE(r.err.find("its stderr ends with \"out of order\""), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("not one of 4 completions had a reward"), std::string::npos) << r.err;
  // One that declines each time has not failed, but nothing can be learned from it.
  const std::string declines = script("declines", R"(while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  echo "{\"id\":$id,\"reward\":null}"
done
)");
  const Ran none = run(folder, grpo("none", declines));
  EXPECT_EQ(none.status, 1) << none.err;
  EXPECT_NE(none.err.find("not one of 4 completions had a reward: it was null each time"),
            std::string::npos)
      << none.err;
}

// It answers the question before the run, and then dies or answers an old question.
TEST_F(GrpoPrograms, ARunWhoseRewardsMostlyFailIsNoSuccess) {
  const std::string late = script("late", R"(while read -r line; do
  n=$(($(cat "$0.asked" 2>/dev/null || echo 0) + 1))
  echo $n > "$0.asked"
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  [ $n -eq 5 ] && exit 1
  [ $n -lt 5 ] || id=$((id - 1))
  echo "{\"id\":$id,\"reward\":1}"
done
)");
  Arguments call = grpo("run", late);
  *(std::find(call.begin(), call.end(), "--steps") + 1) = "8";
  const Ran r = run(folder, call);
  EXPECT_EQ(r.status, 1) << r.err;
  // Three of 16 completions got one; the other 13 were tried twice, and one try died.
  const std::string kinds = "(answers with another id: 25, died: 1)";
  EXPECT_NE(r.err.find("warning: 13 of 16 completions got no reward " + kinds), std::string::npos)
      << r.err;
  EXPECT_NE(r.err.find("failed for 13 of 16 completions " + kinds), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("saved in " + path("run/checkpoints/step-00000008")), std::string::npos)
      << r.err;
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step-00000008/model.safetensors"));
  // The first of each kind is shown.
  EXPECT_NE(r.err.find("ended without an answer"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" to question "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("no update was made, because no group had two rewards that differ"),
            std::string::npos)
      << r.err;
}

// The third question is asked again, so every completion has its reward.
TEST_F(GrpoPrograms, ASummaryCountsTheAttemptsThatFailed) {
  const std::string shaky = script("shaky", R"(while read -r line; do
  n=$(($(cat "$0.asked" 2>/dev/null || echo 0) + 1))
  echo $n > "$0.asked"
  [ $n -eq 3 ] && exit 1
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  echo "{\"id\":$id,\"reward\":1}"
done
)");
  const Ran r = run(folder, grpo("run", shaky));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(", reward 1.0000, 1 failed reward attempt, "), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("without a reward"), std::string::npos) << r.out;
}

TEST_F(GrpoPrograms, ARunThatLearnedNothingSaysSo) {
  const Ran r = run(folder, grpo("run", script("good", answers)));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(
      r.err.find("warning: no update was made, because all rewards of every group were equal: "
                 "the weights are those the run began with"),
      std::string::npos)
      << r.err;
  EXPECT_EQ(r.err.find("got no reward"), std::string::npos) << r.err;
}

// A config.toml may come from a stranger.
TEST_F(GrpoPrograms, AFileThatNamesAProgramIsNotObeyedUnasked) {
  const std::string judge = script("judge", "echo >> \"$0.ran\"\n" + std::string(answers));
  const Ran first = run(folder, grpo("run", judge) + Arguments{"--stop-after-step", "1"});
  EXPECT_EQ(first.status, 0) << first.err;
  fs::remove(judge + ".ran");
  const Arguments resume{"grpo", "--run", path("run"), "--resume"};
  const Ran refused = run(folder, resume);
  expect_error(refused, 2, "this file asks to run the program \"" + judge + "\"");
  EXPECT_NE(refused.err.find("--trust-programs"), std::string::npos) << refused.err;
  // Nor for the part of it that an error can show.
  write_file_atomic(folder / "long.toml",
                    "reward = \"program:" + judge + std::string(300, ' ') + "payload\"\n");
  expect_error(run(folder, {"grpo", "--model", path("model"), "--data", path("prompts.jsonl"),
                            "--run", path("other"), "--config", path("long.toml")}),
               2, "too long to show here");
  // Nor by another door: an engine, a value that looks like a flag, the permission itself.
  const auto with = [&](const std::string& line) {
    write_file_atomic(folder / "config.toml", line + "\n");
    return run(folder, {"grpo", "--model", path("model"), "--data", path("prompts.jsonl"), "--run",
                        path("other"), "--config", path("config.toml")});
  };
  expect_error(with("reward = [\"exact\", \"program:" + judge + " -x\"]"), 2, judge + " -x");
  expect_error(with("reward = \"chess\"\nstockfish = \"" + judge + "\""), 2, judge);
  expect_error(with("trust_programs = true\nreward = \"program:" + judge + "\""), 2,
               "--trust-programs is allowed only on the command line");
  EXPECT_NE(with("stop = [\"--reward=program:" + judge + "\"]").status, 0);
  EXPECT_NE(with("prompt_form = \"{} --reward program:" + judge + "\"").status, 0);
  EXPECT_FALSE(fs::exists(judge + ".ran"));
  const Ran trusted = run(folder, resume + Arguments{"--trust-programs"});
  EXPECT_EQ(trusted.status, 0) << trusted.err;
  EXPECT_TRUE(fs::exists(judge + ".ran"));
}

TEST_F(GrpoPrograms, AStopBeforeTheRunPromisesNothing) {
  const std::string slow = script("slow", "touch \"$0.asked\"\nsleep 600\n");
  const pid_t pid = start(folder, grpo("run", slow), "stopped");
  wait_for_file(slow + ".asked", pid);
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT);
  const std::string err = read_file(folder / "stopped.err");
  EXPECT_NE(err.find("before the run began; nothing was saved"), std::string::npos) << err;
}

// The one who is told how to go on has chosen the program.
TEST_F(GrpoPrograms, TheCommandThatResumesTrustsThem) {
  const std::string judge = script("judge", answers);
  Arguments call = grpo("run", judge);
  *(std::find(call.begin(), call.end(), "--steps") + 1) = "100000";
  const pid_t pid = start(folder, call, "stopped");
  wait_for_file(folder / "run/log.jsonl", pid);
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT);
  const std::string err = read_file(folder / "stopped.err");
  EXPECT_NE(err.find(" --trust-programs --resume\n"), std::string::npos) << err;
}

// What the program starts ends with it, also in a session of its own; and with hearth, also where
// hearth has no time to say so.
TEST_F(GrpoPrograms, NoneOutlivesTheRun) {
  const std::string leaves = script("leaves", R"((setsid sh -c 'echo $$ > "$0.new"
mv "$0.new" "$0.pid"; exec sleep 600' "$0" </dev/null >/dev/null 2>&1 &)
echo $$ > "$0.own"
while [ ! -e "$0.pid" ]; do sleep 0.01; done
)" + std::string(answers));
  const Ran r = run(folder, grpo("run", leaves));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(ends("leaves.pid"));
  EXPECT_TRUE(ends("leaves.own"));

  const std::string deaf = script("deaf", R"((setsid sh -c 'echo $$ > "$0.new"
mv "$0.new" "$0.pid"; exec sleep 600' "$0" </dev/null >/dev/null 2>&1 &)
echo $$ > "$0.own"
exec sleep 600
)");
  const pid_t pid = start(folder, grpo("killed", deaf), "killed");
  wait_for_file(deaf + ".pid", pid);
  wait_for_file(deaf + ".own", pid);
  kill(pid, SIGKILL);
  EXPECT_EQ(wait_for(pid), 128 + SIGKILL);
  EXPECT_TRUE(ends("deaf.pid"));
  EXPECT_TRUE(ends("deaf.own"));
}

}  // namespace
}  // namespace hearth
