// The programs of a pretraining run for its batch shapes: micro (forward and backward; the first of
// a step overwrites the gradients, the next add to them), update and evaluate.
#pragma once

#include "optim/update_program.h"
#include "train/logprob_programs.h"

namespace hearth::inline train {

struct ProgramSpec {
  ModelConfig model;
  // What evaluation runs, if its windows differ: the model as checkpoints store it.
  std::optional<ModelConfig> eval_model = {};
  DType dtype = DType::f32;
  std::optional<Fp8Recording> fp8 = {};  // training products in fp8; dtype is then bf16
  int64_t B = 1, T = 1;
  Recompute recompute = Recompute::none;
  bool offload = false;         // optimizer state and master weights in host memory
  bool documents = false;       // training batches carry a document mask
  bool eval_documents = false;  // evaluation batches carry one
  bool accumulates = false;     // several micro-batches per step
  UpdateSpec update = {};
  LossConfig losses = {};
  int64_t logits_bytes = HeadSpec{}.chunk_bytes;  // of a chunk, as the backend prefers
};

MemoryNeed memory_need(const ProgramSpec&);
// The largest micro-batch that divides `sequences` and fits in `bytes`; 0: not even one sequence
// fits.
int64_t largest_batch(ProgramSpec, int64_t sequences, int64_t bytes);
// Throws if the run does not fit in the budget. The error says what each part needs and which
// settings would make the run fit.
void expect_fit(const ProgramSpec&, const MemoryBudget&);

class Programs {
 public:
  // Records the programs of the spec's batches.
  Programs(const ProgramSpec&, Memory&);
  // The same for a spec with another batch shape, other attention windows, other weights of losses
  // of further tokens or another tied_head, and else the same. The programs of earlier shapes stay
  // in the cache.
  void reshape(const ProgramSpec&);

  void micro(const Batch& b, const Scalars& s, bool first) {
    programs_.launch_train(view(b, spec_.documents), s, first, profile_);
  }
  UpdateProgram& update() { return update_; }
  // The first loss term of the step so far.
  double loss() const { return update_.loss(); }
  // Queues the other terms of the step so far; take() of the queue waits for them.
  void send_terms(LossQueue& to) const { programs_.send_terms(to); }

  // Mean loss of a batch; leaves the gradients unchanged.
  double evaluate(const Batch&);
  // The other terms of that batch that validation reports.
  const std::vector<LossValue>& evaluated_terms() const { return programs_.evaluated_terms(); }
  const ProgramSpec& spec() const { return spec_; }
  // For tests and profiling: the programs that micro() and update() run, and their inputs alone.
  Exec& first_program() { return programs_.program(shape(), LogprobPrograms::Kind::nll_first); }
  Exec& next_program() { return programs_.program(shape(), LogprobPrograms::Kind::nll_next); }
  void feed(const Batch& b, const Scalars& s) { programs_.feed(view(b, spec_.documents), s, true); }
  void profile(Profile* p) { profile_ = p; }

 private:
  BatchView view(const Batch& b, bool documents) const { return {b, spec_.B, spec_.T, documents}; }
  LogprobPrograms::Key shape() const { return {spec_.B, spec_.T, 0, spec_.documents}; }

  ProgramSpec spec_;
  LogprobPrograms programs_;
  UpdateProgram update_;
  Profile* profile_ = nullptr;
};

}  // namespace hearth::inline train
