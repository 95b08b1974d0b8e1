// Verifiable rewards: scores for completions, by rules or by a program. Separate threads score
// groups while the model continues with others. A reward that cannot be computed is missing and
// counted, never zero.
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

namespace hearth::inline rewards {

struct RewardText {
  std::string text;
  int64_t tokens = 0;
};
using GroupScores = std::vector<std::optional<double>>;  // one per completion

// The failures of a reward so far, including earlier processes of the run.
struct RewardFailures {
  std::string name = {};
  int64_t asked = 0, failed = 0;                            // completions; asked 0: not counted
  std::vector<std::pair<std::string, int64_t>> kinds = {};  // description and count
};

// One kind of reward. score() is called by several threads, each with its own worker number.
class RewardSource {
 public:
  virtual ~RewardSource() = default;
  // Throws if the row lacks what the reward needs; called for every row before a run.
  virtual void check(const PromptRow&) const {}
  // Tests before a run whether the reward's dependencies work; throws with the reason if not.
  virtual void probe(const PromptRow&) {}
  virtual GroupScores score(const PromptRow&, std::span<const RewardText>, int worker) = 0;
  // Whether a score of 1 means that a completion has the row's answer.
  virtual bool knows_answers() const { return false; }
  // Whether the completions of a group should be scored in parallel by different workers.
  virtual bool slow() const { return false; }
  // Results are no longer needed: score() may return early without them.
  virtual void abandon() {}
  // Failures so far, for the log; null: the reward cannot fail.
  virtual nlohmann::ordered_json troubles() const { return {}; }
  virtual int64_t failed() const { return 0; }  // completions without a reward for that reason
  // Attempts to score a completion that failed, including those that a retry made good.
  virtual int64_t failed_attempts() const { return failed(); }
  virtual RewardFailures failures() const { return {}; }
  // The counts that a checkpoint stores (null: none), and how to continue from them before any
  // score().
  virtual nlohmann::json counted() const { return {}; }
  virtual void count_on(const StateFields&) {}
};

struct RewardSpec {
  // Each is NAME[:argument][@weight]; the total is the weighted sum:
  //   exact            equals the answer, ignoring surrounding white space
  //   numeric          exactly the answer's number, scored like GSM8K (rewards/answers.h)
  //   near[:0.001]     the answer's number within the tolerance, scored like MAWPS
  //   regex:PATTERN    found in the completion (rewards/regex.h)
  //   length:N         1 up to N tokens, falling to 0 at 2 N
  //   chess            rewards of the tasks P: and A: (docs/chess.md)
  //   program:COMMAND  queried with JSON lines (rewards/reward_program.h)
  std::vector<std::string> rewards;
  int workers = 2;             // threads, and processes per program
  double timeout_s = 10;       // per answer of a program
  double start_s = 30;         // for a process's first answer, if larger
  int64_t max_failures = 100;  // completions without a reward before the run stops; -1: no limit
  std::string stockfish = "auto";
  int64_t stockfish_nodes = 5000;
  std::function<void(const std::string&)> warn = {};  // receives each program's first failures
};

struct GroupRewards {
  GroupScores total;  // empty if one of the parts is missing
  std::vector<std::vector<double>>
      parts;  // per reward: the available scores, in no particular order
};

class Rewards {
 public:
  explicit Rewards(const RewardSpec&);
  ~Rewards();  // abandons pending results
  void check(std::span<const PromptRow>) const;
  // Asks every program once before a run; throws if one cannot answer. Returns false, with
  // everything abandoned, if `stop` was set first.
  bool probe(const PromptRow&, const std::atomic<int>* stop);

  // Scores a group on one thread, or its completions on several if a reward is slow. The row must
  // outlive the result.
  std::future<GroupRewards> submit(const PromptRow&, std::vector<RewardText>);

  // The first reward for which 1 means that a completion has the answer.
  std::optional<size_t> answer_term() const;

  // Ends the run: nothing submitted is scored any more.
  void abandon();

  std::vector<std::string> names() const;
  nlohmann::ordered_json troubles() const;       // by name, if there are any
  int64_t failed() const;                        // over all rewards
  int64_t failed_attempts() const;               // likewise, including those that were retried
  std::vector<RewardFailures> failures() const;  // of rewards with failures
  nlohmann::json counted() const;                // one per reward
  // Call before the first submit(). Null: start from zero. `where` is the file, for errors.
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
  std::vector<std::jthread> threads_;  // last, so that they end before other members are destroyed
};

// The chess tasks. Without Stockfish, terms that need its labels are left out; a note on stderr
// says so.
std::unique_ptr<RewardSource> make_chess_reward(const RewardSpec&);

}  // namespace hearth::inline rewards
