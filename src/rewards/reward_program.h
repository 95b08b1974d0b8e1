// A reward by any program that speaks JSON lines. It is asked, one line at a time,
//   {"id": 7, "prompt": "..", "completion": "..", "row": {..}}
// and answers, one line each,
//   {"id": 7, "reward": 0.5}        or a reward of null: it has none to give.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "rewards/rewards.h"

namespace hearth {

class LineProcess;

// What a line of the program says about question `id`; a line of any other form is not understood.
struct ProgramReply {
  bool understood = false;
  bool other_id = false;              // a reward, but for another question: not understood
  std::optional<double> reward = {};  // nothing: it has none to give
};
ProgramReply read_reply(std::string_view line, int64_t id);

struct RewardProgramSpec {
  std::string command;         // program and arguments, cut at spaces; looked for in PATH; no shell
  int processes = 1;           // one for each thread that asks
  double timeout_s = 10;       // for an answer
  double start_s = 30;         // for the first of a process, where that is more: it has to start
  int attempts = 2;            // at one completion, the second on a new process
  int64_t max_failures = 100;  // completions left without a reward before an error; -1: no limit
  // Told of the first failure of each kind, with the end of the program's stderr; by any thread.
  std::function<void(const std::string&)> warn = {};
};

struct RewardProgramCounts {
  int64_t answered = 0;
  int64_t failed = 0;     // completions that got no reward
  int64_t abstained = 0;  // of which the program said so itself; not counted as failed
  int64_t missing = 0, died = 0, hung = 0, rubbish = 0;  // times
  int64_t other_id = 0;  // of the rubbish: rewards for another question
  int64_t replaced = 0;  // processes started after the first
};

class RewardProgram : public RewardSource {
 public:
  explicit RewardProgram(RewardProgramSpec);
  ~RewardProgram() override;
  void probe(const PromptRow&) override;
  GroupScores score(const PromptRow&, std::span<const RewardText>, int worker) override;
  bool slow() const override { return true; }
  nlohmann::ordered_json troubles() const override;
  int64_t failed() const override { return failed_; }
  RewardFailures failures() const override;
  nlohmann::json counted() const override;
  void count_on(const StateFields&) override;
  void abandon() override { abandoned_ = true; }
  RewardProgramCounts counts() const;

 private:
  struct Slot;
  struct Asked;
  void start(Slot&);
  Asked ask(Slot&, const PromptRow&, const std::string& completion);
  std::optional<double> score_one(Slot&, const PromptRow&, const std::string& completion);
  void remember(const Asked&);
  std::string said_last() const;

  RewardProgramSpec spec_;
  std::vector<std::string> words_;   // of the command
  RewardProgramCounts before_;       // by earlier processes of the run
  std::atomic<int64_t> failed_ = 0;  // theirs included
  std::atomic<bool> abandoned_ = false;
  std::array<std::atomic<bool>, 6> warned_ = {};  // of each kind of trouble
  std::vector<std::unique_ptr<Slot>> slots_;
  mutable std::mutex saying_;
  std::string said_;  // on stderr, last, by one that failed
};

}  // namespace hearth
