// Scheduler: chooses which tokens of which sequences a step feeds. The oldest request has priority,
// so none waits forever. If blocks run out, the youngest is preempted and recomputed later.
#pragma once

#include <deque>
#include <memory>

#include "infer/block_pool.h"
#include "infer/sequence.h"

namespace hearth::inline infer {

struct ActiveRequest;  // a running request: see engine_loop.h

// One sequence that occupies, or waits for, a slot of the engine.
struct Lane {
  ActiveRequest* task;
  int sample;
  Sequence sequence;
  std::vector<int32_t> tokens;  // prompt and completion so far
  Pages pages = {};
  std::vector<float> logits = {};  // beam search: kept until all beams have theirs
  std::optional<LogSum> sum = {};  // log-sum of the logits
  int64_t guesses = 0;             // number of tokens to draft next
  bool ended = false;
  int under_way = 0;  // launches in flight that contain this sequence
  // Prompt tokens that each of several samples feeds itself, after the shared ones: 0 or 1.
  int64_t held_back = 0;

  // For the current step:
  int64_t rows = 0;                 // known tokens to feed, from pages.cached on
  std::vector<int32_t> draft = {};  // draft tokens fed after them

  int64_t size() const { return int64_t(tokens.size()); }
  // Tokens to feed before the next one can be sampled.
  int64_t due() const { return logits.empty() ? size() - held_back - pages.cached : 0; }
  // The first token whose logits are needed: the last one, or the next unscored prompt token.
  int64_t first_wanted() const;
};

struct SchedulerSpec {
  int64_t lanes = 1;   // maximum sequences per step
  int64_t rows = 1;    // maximum tokens per step
  int64_t logits = 1;  // maximum rows with logits; at least `lanes`
  int64_t drafts = 0;  // maximum draft tokens per sequence; 0: no speculation
  int64_t window = 0;  // widest attention window of any layer; 0: unlimited
  bool reuse = true;   // reuse cached blocks with equal tokens
};

struct SchedulerStats {
  int64_t preemptions = 0, reused_tokens = 0, drafted = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerSpec&, BlockPool&);

  void add(std::unique_ptr<Lane>);  // as the youngest
  // Adds a sequence with the same age as `lane`.
  Lane& add_after(const Lane& lane, std::unique_ptr<Lane>);
  // The sequences that this step feeds, oldest first, with their rows and drafts.
  std::span<Lane* const> plan();
  // Whether plan() would give one row each to the `left` of these `lanes` sequences that continue
  // after the token in flight, and to no other sequence.
  bool would_repeat(int64_t lanes, int64_t left) const;
  // Allocates cache space for the token after the one in flight, without preempting others.
  bool make_room(Lane& lane) { return pool_.extend(lane.pages, lane.size() + 1); }
  // After a step: records that the rows of the sequence are in the cache.
  void fed(Lane&);
  void sweep();  // removes sequences that have ended and are not in flight
  bool empty() const { return active_.empty() && waiting_.empty(); }
  int64_t active() const { return int64_t(active_.size()); }
  int64_t waiting() const { return int64_t(waiting_.size()); }
  std::vector<Lane*> lanes_of(const ActiveRequest*);  // oldest first
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
  Lanes active_;  // oldest first: started, possibly preempted since
  std::deque<std::unique_ptr<Lane>> waiting_;
  std::vector<Lane*> plan_;
  int64_t rows_left_ = 0, logits_left_ = 0, lanes_left_ = 0;  // remaining in this step
  size_t oldest_ = 0;
  bool blocked_ = false;  // a sequence did not get its blocks, so no younger one may start
  SchedulerStats stats_;
};

}  // namespace hearth::inline infer
