// EngineLoop: the engine's main loop, without threads. Each step plans, runs the model and advances
// every sequence by one token. If the device samples, the next step is launched before the host has
// seen the tokens; work for a sequence that has ended by then is discarded.
#pragma once

#include <map>

#include "infer/beam.h"
#include "infer/module_draft.h"
#include "infer/scheduler.h"

namespace hearth::inline infer {

// A running request.
struct ActiveRequest {
  ActiveRequest(uint64_t id, Job j, Listener l)
      : id(id), job(std::move(j)), listener(std::move(l)), left(job.request.n) {
    results.resize(size_t(job.request.n));
  }
  uint64_t id;
  Job job;
  Listener listener;
  std::vector<Completion> results;
  int left;             // unfinished completions
  bool forked = false;  // its samples are separate sequences
  std::unique_ptr<BeamSearch> search = {};
};

class EngineLoop {
 public:
  EngineLoop(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&, const SchedulerSpec&);

  // What the request causes is reported to its listener; throws only what the listener throws.
  void start(std::unique_ptr<ActiveRequest>);
  void cancel(uint64_t id);
  void cancel_all();
  bool step();  // false: there was nothing to do
  void fail_all(std::exception_ptr);
  void forget() { pool_.forget(); }
  EngineStats stats() const;

 private:
  // The rows of one sequence in a launch; `wanted`: index of the first row whose logits are needed.
  struct Slot {
    Sequence* seq;  // null: a slot that stays unused
    int64_t rows, wanted;
  };
  // A launch in flight: the tokens fed, and the rows of each sequence.
  struct Flight {
    Feed feed;
    std::vector<Slot> slots;
    bool empty() const { return slots.empty(); }
    void clear() { feed.clear(), slots.clear(); }
  };
  void begin(ActiveRequest&);
  void launch(std::span<Sequence* const>);
  void want(const Sequence&, int64_t p);
  // Launches the next step before the current one is collected; false: not possible now.
  bool launch_next();
  // Draws the tokens of a launch that pauses, when the constraints of its sequences are known.
  void draw_constrained(Flight&);
  // Collects the launch in now_.
  void collect();
  void abandon_unless_wanted(Flight&);
  void fill_modules();
  void advance(const Slot&);
  void verify_draft(Sequence&, int64_t wanted);
  void score_prompt(const Slot&);
  bool tempers(const ActiveRequest&) const;
  bool draws_on_device(const Sequence&) const;
  int64_t first_guesses(const ActiveRequest&) const;
  std::optional<SampleControls> device_draw(const Sequence&, int64_t p) const;
  // `row` is an index into the runner's wanted rows.
  void ready(Sequence&, int64_t row);
  void draw(Sequence&, int64_t row);
  std::vector<Sequence*> fork(Sequence&);
  void search(ActiveRequest&);
  void tell_search(ActiveRequest&, const std::vector<Completion>&);
  void settle(Sequence&);
  void cancel(ActiveRequest&);
  void end(ActiveRequest&, std::vector<Completion>, std::exception_ptr = {});

  int64_t drafts_, logits_;  // the most drafts of a sequence, and rows of logits of a step
  Runner runner_;
  BlockPool pool_;
  Scheduler scheduler_;
  std::optional<ModuleDrafter> modules_;  // absent: drafts are looked up, or there are none
  std::map<uint64_t, std::unique_ptr<ActiveRequest>> requests_;
  // Kept until the step ends, because sequences of this step may still refer to them. The request
  // of an ended sequence is not accessed later.
  std::vector<std::unique_ptr<ActiveRequest>> ended_;
  Flight now_, next_;  // launches in flight: the one being processed, and the one after it
  EngineStats stats_;
};

}  // namespace hearth::inline infer
