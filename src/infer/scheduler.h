// Scheduler: which tokens of which sequences a step feeds. The oldest request goes first wherever
// two want the same thing, so none waits forever; when blocks run out the youngest gives its own
// back and is computed again later.
#pragma once

#include <deque>
#include <memory>

#include "infer/block_pool.h"
#include "infer/sequence.h"

namespace hearth {

struct ActiveRequest;  // a request while it runs: see stepper.h

// One sequence on its way through the cache.
struct Lane {
  ActiveRequest* task;
  int sample;
  Sequence sequence;
  std::vector<int32_t> tokens;  // of the prompt, and of the completion so far
  Pages pages = {};
  std::vector<float> logits = {};  // a beam's, until the others have theirs
  std::optional<LogSum> sum = {};  // of them
  int64_t guesses = 0;             // how many tokens to draft next
  bool ended = false;
  int under_way = 0;  // launches that feed it and have not been collected
  // Tokens that its samples will feed, each for itself, once the rest is in the cache: 0 or 1.
  int64_t held_back = 0;

  // This step:
  int64_t rows = 0;                 // known tokens fed, from pages.cached on
  std::vector<int32_t> draft = {};  // guesses fed after the last of them

  int64_t size() const { return int64_t(tokens.size()); }
  // Tokens to feed before the next can be drawn.
  int64_t due() const { return logits.empty() ? size() - held_back - pages.cached : 0; }
  // The first token whose logits are wanted: the last one, or where scoring the prompt goes on.
  int64_t first_wanted() const;
};

struct SchedulerSpec {
  int64_t lanes = 1;   // most sequences of a step
  int64_t rows = 1;    // most tokens of a step
  int64_t logits = 1;  // most of them whose logits are wanted; at least `lanes`
  int64_t drafts = 0;  // most guesses for one sequence; 0: no speculation
  int64_t window = 0;  // tokens back that any layer looks; 0: all
  bool reuse = true;   // of blocks with the same tokens
};

struct SchedulerStats {
  int64_t preemptions = 0, reused_tokens = 0, drafted = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerSpec&, BlockPool&);

  void add(std::unique_ptr<Lane>);  // as the youngest
  // Beside `lane`, as old as it is.
  Lane& add_after(const Lane& lane, std::unique_ptr<Lane>);
  // The lanes that this step feeds, by age, with their rows and drafts.
  std::span<Lane* const> plan();
  // Whether plan() would give a row each to the `left` of these `lanes` that go on after the token
  // under way, and to no other.
  bool would_repeat(int64_t lanes, int64_t left) const;
  // A place for the token after the one under way, where that costs nobody else's.
  bool make_room(Lane& lane) { return pool_.extend(lane.pages, lane.size() + 1); }
  // After a step: the lane's rows are in the cache.
  void fed(Lane&);
  void sweep();  // removes lanes that have ended, and are not under way
  bool empty() const { return active_.empty() && waiting_.empty(); }
  int64_t active() const { return int64_t(active_.size()); }
  int64_t waiting() const { return int64_t(waiting_.size()); }
  std::vector<Lane*> lanes_of(const ActiveRequest*);  // by age
  const SchedulerStats& stats() const { return stats_; }

 private:
  using Lanes = std::vector<std::unique_ptr<Lane>>;
  bool feed(size_t at, int64_t rows);
  bool admit(size_t at);
  bool preempt_for(size_t at);
  void fit_bucket();
  void speculate();
  void give_back(Lane&);

  SchedulerSpec spec_;
  BlockPool& pool_;
  Lanes active_;  // by age: have been started, and may have been preempted since
  std::deque<std::unique_ptr<Lane>> waiting_;
  std::vector<Lane*> plan_;
  int64_t rows_left_ = 0, logits_left_ = 0, lanes_left_ = 0;  // of this step
  size_t oldest_ = 0;
  bool blocked_ = false;  // a lane did not get its blocks: none younger may begin
  SchedulerStats stats_;
};

}  // namespace hearth
