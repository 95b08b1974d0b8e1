// Exec: a recorded program with memory, bound to a backend. Nothing is allocated, looked up or
// decided inside run().
#pragma once

#include <map>

#include "core/plan.h"
#include "core/state_store.h"

namespace hearth::inline core {

// What the programs of one model share: its parameters, named state, and one arena, because only
// one program runs at a time. `params` may be null for programs without parameters.
class Memory {
 public:
  Memory(Backend& b, ParamStore* params) : backend(b), params(params), state(b) {}

  // Programs reserve their arena size when they are made; the arena is allocated on the next run.
  void reserve(int64_t bytes) { reserved_ = std::max(reserved_, bytes); }
  std::byte* arena();
  int64_t arena_bytes() const { return reserved_; }
  // Of the arena that there is, which a larger one replaces.
  int64_t allocated_arena_bytes() const { return arena_.bytes(); }

  Backend& backend;
  ParamStore* params;
  StateStore state;
  std::vector<DType> fp8_formats = {};  // of the sites of fp8 that programs have: Fp8Recording

 private:
  int64_t reserved_ = 0;
  Buffer arena_;
};

// Seconds per op name, filled by run() if given.
using Profile = std::map<std::string, double>;

class Exec {
 public:
  Exec(Tape, Memory&);
  void run(Profile* = nullptr);
  // Runs the nodes between two pauses of the tape; parts count from 0, and run() runs all of them.
  // Nothing else may run on this memory between the parts of one replay.
  void run_part(size_t part);
  size_t parts();
  // How often its first part has run. The first two runs choose kernels and capture launches.
  int64_t runs() const { return parts_.empty() ? 0 : parts_[0].runs; }

  // The memory of a value. That of a temporary holds whatever the last node to use its place wrote.
  Tensor operator[](Var v);
  // Access to single nodes, for lockstep runs and tests.
  struct Step {
    const Node& node;
    std::span<const Tensor> in, out;
  };
  size_t size();
  Step step(size_t i) const { return {*calls_[i].node, calls_[i].in, calls_[i].out}; }
  void run_step(size_t i);
  // Runs node by node and passes each node's outputs to the observer as soon as they are written.
  using Observer = std::function<void(const Node&, std::span<const Tensor> out)>;
  void run(const Observer&);

  const Plan& memory() const { return plan_; }
  const Tape& tape() const { return tape_; }

 private:
  struct Call {
    const Node* node;
    std::vector<Tensor> in, out;
    std::vector<StreamKind> waits_for =
        {};  // streams of earlier calls in its stretch that it depends on
  };
  struct Stretch {
    size_t begin = 0, end = 0;  // of calls_
    int64_t runs = 0;           // since it was bound
    std::unique_ptr<Replay> replay = {};
    std::vector<StreamKind> side_streams = {};  // streams it uses besides compute
  };
  void bind();
  void bind_anew();
  void order_streams(Stretch&);
  void launch(const Call&);
  Tensor quantised(const Node&, int input) const;
  void check_weights(const Node&) const;
  void launch(const Stretch&);

  Tape tape_;
  Memory& memory_;
  Plan plan_;
  std::byte* arena_ = nullptr;  // the arena that calls_ were bound to
  std::vector<Tensor> tensors_;
  std::vector<Call> calls_;
  std::vector<Stretch> parts_;
};

}  // namespace hearth::inline core
