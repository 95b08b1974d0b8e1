// Scheduler: chooses which tokens of which sequences a step feeds. The oldest request has priority,
// so none waits forever. If blocks run out, the youngest is preempted and recomputed later.
#pragma once

#include <deque>
#include <memory>

#include "infer/prefill_budget.h"
#include "infer/sequence.h"

namespace hearth::inline infer {

struct SchedulerSpec {
  int64_t sequences = 1;  // maximum sequences per step
  int64_t rows = 1;       // maximum tokens per step
  int64_t logits = 1;     // maximum rows with logits; at least `sequences`
  int64_t drafts = 0;     // maximum draft tokens per sequence; 0: no speculation
  int64_t window = 0;     // widest attention window of any layer; 0: unlimited
  bool reuse = true;      // reuse cached blocks with equal tokens
  bool proposed = false;  // drafts are the proposals of sequences; else they are looked up
  double interval = 0;    // seconds of a step with prompts beside others: see PrefillBudget
};

struct SchedulerStats {
  int64_t preemptions = 0, reused_tokens = 0, drafted = 0;
  int64_t prompt_rows = 0;  // tokens of prompts that the last step could take
};

class Scheduler {
 public:
  Scheduler(const SchedulerSpec&, BlockPool&);

  void add(std::unique_ptr<Sequence>);  // as the youngest
  // Adds a sequence with the same age as `seq`.
  Sequence& add_after(const Sequence& seq, std::unique_ptr<Sequence>);
  // The sequences that this step feeds, oldest first, with their rows and drafts.
  std::span<Sequence* const> plan();
  // Whether plan() would give one row to each of the `left` sequences that continue after the token
  // in flight, out of `running`, and to no other sequence.
  bool would_repeat(int64_t running, int64_t left);
  // Allocates cache space for the token after the one in flight, without preempting others.
  bool make_room(Sequence& seq) { return pool_.extend(seq.pages, seq.size() + 1); }
  // A step of this many rows took this long.
  void took(int64_t rows, double seconds) { budget_.note(rows, seconds); }
  // After a step: records that the rows of the sequence are in the cache.
  void fed(Sequence&);
  void sweep();  // removes sequences that have ended and are not in flight
  bool empty() const { return active_.empty() && waiting_.empty(); }
  int64_t active() const { return int64_t(active_.size()); }
  int64_t waiting() const { return int64_t(waiting_.size()); }
  std::vector<Sequence*> sequences_of(const ActiveRequest*);  // oldest first
  std::vector<Sequence*> started() const;                     // likewise
  const SchedulerStats& stats() const { return stats_; }

 private:
  bool feed(size_t at, int64_t rows);
  bool admit(size_t at);
  bool adopt(Sequence&, size_t at);
  bool preempt_for(size_t at);
  void fit_bucket();
  void speculate();
  void preempt(Sequence&);

  SchedulerSpec spec_;
  BlockPool& pool_;
  // Oldest first: started, possibly preempted since.
  std::vector<std::unique_ptr<Sequence>> active_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<Sequence*> plan_;
  PrefillBudget budget_;
  int64_t rows_left_ = 0, logits_left_ = 0, slots_left_ = 0;  // remaining in this step
  int64_t prompts_left_ = 0;                                  // of rows_left_, those for prompts
  size_t oldest_ = 0;
  bool blocked_ = false;  // a sequence did not get what it needs, so no younger one may start
  SchedulerStats stats_;
};

}  // namespace hearth::inline infer
