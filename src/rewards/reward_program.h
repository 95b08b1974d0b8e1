// A reward computed by any program that speaks JSON lines. It receives one line per question,
//   {"id": 7, "prompt": "..", "completion": "..", "row": {..}}
// and answers with one line each,
//   {"id": 7, "reward": 0.5}        or a reward of null if it has none to give.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "rewards/rewards.h"

namespace hearth::inline sys {
class LineProcess;
}

namespace hearth::inline rewards {

// The content of a program's line as an answer to question `id`; other lines are not understood.
struct ProgramReply {
  bool understood = false;
  bool other_id = false;              // a reward for a different question: not understood
  std::optional<double> reward = {};  // empty: the program has none to give
};
ProgramReply read_reply(std::string_view line, int64_t id);

struct RewardProgramSpec {
  std::string command;         // program and arguments, split at spaces; searched in PATH; no shell
  int processes = 1;           // one per scoring thread
  double timeout_s = 10;       // per answer
  double start_s = 30;         // for a process's first answer, if larger: it has to start
  int attempts = 2;            // per completion, the second on a new process
  int64_t max_failures = 100;  // completions without a reward before an error; -1: no limit
  // Called for the first failure of each kind, with the end of the program's stderr; from any
  // thread.
  std::function<void(const std::string&)> warn = {};
};

struct RewardProgramCounts {
  int64_t answered = 0;
  int64_t failed = 0;     // completions without a reward
  int64_t abstained = 0;  // answered with null; not counted as failed
  int64_t missing = 0, died = 0, hung = 0, rubbish = 0;  // number of events
  int64_t other_id = 0;  // part of rubbish: rewards for a different question
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
  int64_t failed_attempts() const override;
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
  std::vector<std::string> words_;   // the command, split at spaces
  RewardProgramCounts before_;       // from earlier processes of the run
  std::atomic<int64_t> failed_ = 0;  // including those
  std::atomic<bool> abandoned_ = false;
  std::array<std::atomic<bool>, 6> warned_ = {};  // per kind of trouble
  std::vector<std::unique_ptr<Slot>> slots_;
  mutable std::mutex saying_;
  std::string said_;  // last stderr line of a failed process
};

}  // namespace hearth::inline rewards
