// The programs of a pretraining run, recorded from a model and a batch shape: micro_first and
// micro_next (forward and backward; the first overwrites the gradients, the next add to them),
// update and eval.
#pragma once

#include <memory>
#include <optional>

#include "core/exec.h"
#include "core/fp8.h"
#include "data/loader.h"
#include "model/decoder.h"
#include "train/losses.h"
#include "train/memory_plan.h"
#include "train/update_program.h"

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

// Throws, with the reason, if the backend has no fp8 products.
void expect_fp8(const Backend&);

class Programs {
 public:
  Programs(const ProgramSpec&, Memory&);

  void micro(const Batch&, const Scalars&, bool first);
  UpdateProgram& update() { return update_; }
  // The first loss term of the step so far.
  double loss() const { return update_.loss(); }
  // Queues the other terms of the step so far; take() of the queue waits for them.
  void send_terms(LossQueue& to) const { to.send(losses_, first_->tape().losses); }

  // Mean loss of a batch; leaves the gradients unchanged.
  double evaluate(const Batch&);
  // The other terms of that batch that validation reports.
  std::vector<LossValue> evaluated_terms() const {
    return read_losses(eval_losses_, eval_->tape().losses, LossTerms::validated);
  }
  const ProgramSpec& spec() const { return spec_; }
  // The state of all scales between two steps, for checkpoints; empty without fp8.
  std::vector<Fp8Site> fp8_sites() const;
  void set_fp8_sites(std::span<const Fp8Site>);  // as many as fp8_sites() gives
  // For tests and profiling: the programs that micro() and update() run, and their inputs alone.
  Exec& first_program() { return *first_; }
  Exec* next_program() { return next_.get(); }  // null unless the spec accumulates
  Exec& update_program() { return update_.exec(); }
  void feed(const Batch&, const Scalars&);
  void profile(Profile* p) { profile_ = p; }

 private:
  // The inputs of a program. The state is never erased, so its handles stay valid.
  struct Inputs {
    StateRef<int32_t> tokens, targets, positions;  // (B, T)
    StateRef<int32_t> documents = {};              // absent without a document mask
    void upload(const Batch&) const;
  };
  static Inputs inputs_of(const StateStore&, const std::string& program, const char* suffix,
                          bool documents);

  ProgramSpec spec_;
  Backend& backend_;
  UpdateProgram update_;
  std::unique_ptr<Exec> first_, next_, eval_;
  Inputs train_inputs_, eval_inputs_;  // those of training are in memory of the host
  StateRef<Scalars> scalars_;
  StateRef<float> losses_, eval_losses_, eval_nll_;
  StateRef<Fp8Site> sites_;  // absent without fp8
  Profile* profile_ = nullptr;
};

}  // namespace hearth::inline train
