// Stepper: the engine's one loop. Each step plans, runs the model over the planned rows and takes
// every sequence that has its logits one token further. Where the device draws the tokens, the next
// step is launched behind this one before the host has seen them, so the device need not wait for
// the host; what it did for a sequence that turns out to have ended is thrown away. It knows no
// other thread.
#pragma once

#include <map>

#include "infer/beam.h"
#include "infer/runner.h"
#include "infer/scheduler.h"

namespace hearth {

// A request while it runs.
struct ActiveRequest {
  ActiveRequest(uint64_t id, Job j, Listener l)
      : id(id), job(std::move(j)), listener(std::move(l)), left(job.request.n) {
    results.resize(size_t(job.request.n));
  }
  uint64_t id;
  Job job;
  Listener listener;
  std::vector<Completion> results;
  int left;             // completions without an end
  bool forked = false;  // its samples have lanes of their own
  std::unique_ptr<BeamSearch> search = {};
};

class Stepper {
 public:
  Stepper(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&, const SchedulerSpec&);

  void start(std::unique_ptr<ActiveRequest>);
  void cancel(uint64_t id);
  void cancel_all();
  bool step();  // false: there was nothing to do
  void fail_all(std::exception_ptr);
  void forget() { pool_.forget(); }
  EngineStats stats() const;

 private:
  // Rows of a lane in a launch; `wanted`: the first of those whose logits are read.
  struct Share {
    Lane* lane;  // null: nobody's row
    int64_t rows, wanted;
  };
  struct Flight {
    Feed feed;
    std::vector<Share> shares;
    bool empty() const { return shares.empty(); }
    void clear() { feed.clear(), shares.clear(); }
  };
  void launch(std::span<Lane* const>);
  bool launch_behind();
  void take_in();
  void abandon_unless_wanted(Flight&);
  void advance(const Share&);
  void score_prompt(const Share&);
  bool tempers(const ActiveRequest&) const;
  bool draws_on_device(const Lane&) const;
  std::optional<SampleControls> device_draw(const Lane&, int64_t p) const;
  // `row`: of the runner's wanted rows
  void ready(Lane&, int64_t row);
  void draw(Lane&, int64_t row);
  std::vector<Lane*> fork(Lane&);
  void search(ActiveRequest&);
  void tell_search(ActiveRequest&, const std::vector<Completion>&);
  void settle(Lane&);
  void cancel(ActiveRequest&);
  void end(ActiveRequest&, std::vector<Completion>, std::exception_ptr = {});

  int64_t drafts_;
  Runner runner_;
  BlockPool pool_;
  Scheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<ActiveRequest>> tasks_;
  std::vector<std::unique_ptr<ActiveRequest>>
      ended_;          // lanes of this step may still refer to them; a lane
                       // that has ended is not asked for its task later
  Flight now_, next_;  // what is taken in, and what was launched behind it
  EngineStats stats_;
};

}  // namespace hearth
