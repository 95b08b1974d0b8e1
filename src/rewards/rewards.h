// Verifiable rewards: what a completion of a prompt is worth, by rules or by a program. Groups are
// scored by threads of their own while the model goes on with others. A reward that cannot be had
// is none at all, counted, and never a zero.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "data/examples/prompts.h"
#include "formats/state_fields.h"

namespace hearth {

struct RewardText {
  std::string text;
  int64_t tokens = 0;
};
using GroupScores = std::vector<std::optional<double>>;  // one a completion

// How a reward has gone wrong so far, earlier processes of the run included.
struct RewardFailures {
  std::string name = {};
  int64_t asked = 0, failed = 0;                            // completions; 0 asked: not counted
  std::vector<std::pair<std::string, int64_t>> kinds = {};  // in words, and how many times
};

// One kind of reward. score() is called by several threads, each with a number of its own.
class RewardSource {
 public:
  virtual ~RewardSource() = default;
  // An error where the row lacks what the reward needs; asked of every row before a run.
  virtual void check(const PromptRow&) const {}
  // Tries, before a run, whether what the reward depends on works; an error says why not.
  virtual void probe(const PromptRow&) {}
  virtual GroupScores score(const PromptRow&, std::span<const RewardText>, int worker) = 0;
  // Whether a score of 1 says that a completion has the row's answer.
  virtual bool knows_answers() const { return false; }
  // Whether completions of a group are better scored side by side, each by another worker.
  virtual bool slow() const { return false; }
  // Nobody waits for answers any more: score() may return without them, soon.
  virtual void abandon() {}
  // What went wrong so far, for the log; null: nothing can.
  virtual nlohmann::ordered_json troubles() const { return {}; }
  virtual int64_t failed() const { return 0; }  // completions that went without a reward for it
  virtual RewardFailures failures() const { return {}; }
  // What a checkpoint keeps of them; null: nothing. And going on from there, before any score().
  virtual nlohmann::json counted() const { return {}; }
  virtual void count_on(const StateFields&) {}
};

struct RewardSpec {
  // Each NAME[:argument][@weight], summed by weight:
  //   exact            the answer itself, but for white space around it
  //   numeric          the answer's number, exactly, as GSM8K is scored (rewards/answers.h)
  //   near[:0.001]     the answer's number within that much, as MAWPS is
  //   regex:PATTERN    found in the completion (rewards/regex.h)
  //   length:N         1 up to N tokens, falling to 0 at 2 N
  //   chess            of the tasks P: and A: (docs/chess.md)
  //   program:COMMAND  asked in JSON lines (rewards/reward_program.h)
  std::vector<std::string> rewards;
  int workers = 2;             // threads, and processes of each program
  double timeout_s = 10;       // for one answer of a program
  double start_s = 30;         // and for the first of a process, if that is more
  int64_t max_failures = 100;  // completions without a reward before the run ends; -1: no limit
  std::string stockfish = "auto";
  int64_t stockfish_nodes = 5000;
  std::function<void(const std::string&)> warn = {};  // of each program's first failures
};

struct GroupRewards {
  GroupScores total;                       // nothing where one of the parts is missing
  std::vector<std::vector<double>> parts;  // by reward: those that were had, in no group's order
};

class Rewards {
 public:
  explicit Rewards(const RewardSpec&);
  ~Rewards();  // abandons what nobody has waited for
  void check(std::span<const PromptRow>) const;
  // Asks every program once before a run; an error where one cannot answer. False where `stop` was
  // set first: then everything is abandoned.
  bool probe(const PromptRow&, const std::atomic<int>* stop);

  // Scores a group on one of the threads, or each of its completions on one where a reward is slow.
  // The row must outlive the answer.
  std::future<GroupRewards> submit(const PromptRow&, std::vector<RewardText>);

  // The first reward whose 1 says that a completion has the answer.
  std::optional<size_t> answer_term() const;

  // The run ends: of what was submitted nothing more is scored.
  void abandon();

  std::vector<std::string> names() const;
  nlohmann::ordered_json troubles() const;       // by name, where there are any
  int64_t failed() const;                        // of all rewards
  std::vector<RewardFailures> failures() const;  // of the rewards that have some
  nlohmann::json counted() const;                // one a reward
  // Before the first submit(). Null: from the start. `where` is the file, for errors.
  void count_on(const nlohmann::json&, const std::string& where);

 private:
  struct Term {
    std::string name;
    double weight;
    std::unique_ptr<RewardSource> source;
  };
  struct Parts;
  using Task = std::packaged_task<void(int)>;
  GroupRewards score(const PromptRow&, std::span<const RewardText>, int worker);
  void work(int worker, std::stop_token);

  std::vector<Term> terms_;
  std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::deque<Task> queue_;
  std::vector<std::jthread> threads_;  // last: they end before the rest goes
};

// The chess tasks; without Stockfish, terms that only it could label are left out, and that is said
// on stderr.
std::unique_ptr<RewardSource> make_chess_reward(const RewardSpec&);

}  // namespace hearth
