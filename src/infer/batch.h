// Batch: sequences of several jobs decoded together, each in a slot of the runner's cache. One that
// ends makes room for the next that waits.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "infer/sequence.h"

namespace hearth {

using OnToken = std::function<bool(const TokenEvent&)>;

class Batch {
 public:
  // Completions go to results[job.index][sample], which must be there.
  Batch(Runner&, int64_t slots, const OnToken&, EngineStats&,
        std::vector<std::vector<Completion>>& results);
  void run(std::span<const Job>);

 private:
  struct Waiting {
    const Job* job;
    int sample;
  };
  struct Slot {
    const Job* holds = nullptr;  // its prompt is in the cache, even after the sequence has ended
    const Job* job = nullptr;
    int sample = 0;
    std::optional<Sequence> sequence;  // absent: the slot is free
  };
  void admit();
  void bring_prompt(const Job&, size_t slot);
  void step();
  void compact();
  void advance(Slot&, std::span<const float> logits);
  void settle(Slot&);
  void cancel(const Job&);
  size_t used() const;  // slots up to the last that is not free
  size_t count() const;

  Runner& runner_;
  const OnToken& on_token_;
  EngineStats& stats_;
  std::vector<std::vector<Completion>>& results_;
  std::vector<Slot> slots_;
  std::deque<Waiting> waiting_;
  const Job* prompt_of_ = nullptr;  // whose prompt prompt_ is
  Prefilled prompt_;
};

}  // namespace hearth
