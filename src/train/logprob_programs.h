// LogprobPrograms: the programs of every task. They compute log-probabilities of chosen tokens, and
// gradients of whatever the host makes of them: one program does both and pauses in between, with
// the activations kept. DPO and GRPO are built on this, pretraining and SFT on launch_train(),
// whose loss needs no pause.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/program_cache.h"
#include "core/read_queue.h"
#include "data/token_batch.h"
#include "model/decoder.h"
#include "optim/memory_plan.h"
#include "train/losses.h"

namespace hearth::inline train {

// Of each row asked about.
struct Logprobs {
  std::vector<float> logprob, entropy;  // entropy: where the spec asks for it
};

struct LogprobProgramsSpec {
  ModelConfig model;
  // What evaluate() runs, if its windows differ: the model as checkpoints store it.
  std::optional<ModelConfig> eval_model = {};
  const ModelConfig& evaluated() const { return eval_model ? *eval_model : model; }
  std::string name = "logprob";  // prefix of the programs' values
  DType dtype = DType::f32;
  // Products of launch_train(), and of backward() those for gradients, in fp8; dtype is then bf16.
  std::optional<Fp8Recording> fp8 = {};
  Recompute recompute = Recompute::none;
  float temperature = 1;  // divides the logits
  bool entropy = false;
  bool adapters = true;    // off: the base of the model alone
  bool modules = true;     // trains modules of multi-token prediction too; backward(): them alone
  LossConfig losses = {};  // of launch_train() and evaluate(); backward() has that of modules
  int64_t logits_bytes = HeadLogprobSpec{}.chunk_bytes;
  int64_t keep_bytes = 0;  // as in HeadLogprobSpec, where the memory has the room
  // Rows asked about that every program is made for, so that one serves batches which ask about
  // fewer; 0: as many as the batch has, in steps.
  int64_t rows = 0;
};

class LogprobPrograms {
 public:
  LogprobPrograms(const LogprobProgramsSpec&, Memory&);

  // What a program is for: score(); begin() and backward(), of the first batch of a step and of
  // further ones, which add to its gradients; launch_train(), likewise; evaluate().
  enum class Kind : uint8_t { score, first, next, nll_first, nll_next, nll_eval };
  // The shape that a program is recorded for.
  struct Key {
    int64_t B = 1, T = 1;
    int64_t rows = 0;  // asked about; 0: all positions
    bool documents = false;
    auto operator<=>(const Key&) const = default;
  };
  // Bytes that training on such batches takes, without logits kept from forward to backward.
  static MemoryNeed need(const LogprobProgramsSpec&, const Key&, Kind, const UpdateSpec&);
  // Records a program ahead of its first batch. A reference is valid until the next call.
  Exec& program(const Key& key, Kind kind) { return *bound(key, kind).exec; }

  // How the head's gradient is added up: a resumed run keeps what it began with.
  void set_logits_bytes(int64_t bytes) {
    if (bytes == spec_.logits_bytes) return;
    spec_.logits_bytes = bytes;
    programs_.clear(), pending_ = trained_ = nullptr;
  }

  // What LogprobProgramsSpec::rows says, for programs made from now on.
  void set_rows(int64_t rows) { spec_.rows = rows; }

  // The attention windows of batches from now on, as in ModelConfig, except those of an eval_model.
  // Programs for other windows stay in the cache.
  void set_windows(int64_t window, int64_t long_window) {
    spec_.model.window = window, spec_.model.long_window = long_window;
  }
  // Likewise the weights of the losses of further tokens, as in LossConfig.
  void set_weights(float mtp, float further) {
    spec_.losses.mtp_loss = mtp, spec_.losses.further_loss = further;
  }

  // Nothing is kept and no gradient touched.
  Logprobs score(const BatchView&);
  // Launches a forward pass that keeps what backward() needs: nothing else may run on this memory
  // before that. The backward pass overwrites the gradients after a `first` batch of a step, and
  // adds to them after others. Modules learn with inv_targets of the scalars, as in launch_train().
  void begin(const BatchView&, bool first, const Scalars& = {});
  // What it found, of each row; waits for it. They stay until the next begin().
  std::span<const float> logprob() { return arrived(logprob_); }
  // Empty unless the spec asks for it.
  std::span<const float> entropy() {
    return spec_.entropy ? arrived(entropy_) : std::span<const float>();
  }
  // All of this at once.
  Logprobs forward(const BatchView&, bool first, const Scalars& = {});
  // d loss / d logprob of each row, without the loss scale, which is taken from the scalars.
  void backward(std::span<const float> dlogprob, const Scalars& s = {}) {
    backward_of(dlogprob, s);
  }
  void backward(std::span<const double> dlogprob, const Scalars& s = {}) {
    backward_of(dlogprob, s);
  }
  // With experts or modules, queues the loads and the modules' losses of the batches since the
  // `first` one; report_terms() waits for the oldest ones and adds them as "expert_violation",
  // "expert_load" and "mtp_1", ...
  bool has_terms() const { return spec_.model.moe || (spec_.modules && spec_.model.mtp); }
  void send_terms() {
    if (has_terms()) send_terms(terms_);
  }
  void report_terms(nlohmann::ordered_json& to);
  // Gradients of inv_targets (of the scalars) * the sum of -logprob, and of the other terms of the
  // loss, in one pass and with the model's dropout. Temperature 1. Waits for nothing: the terms of
  // the step so far are left in "<name>.losses" for an UpdateProgram of this name. For chosen rows,
  // each -logprob and the terms are sent to the host.
  void launch_train(const BatchView&, const Scalars&, bool first, Profile* = nullptr);
  // What launch_train() does before it runs its program. Waits until the previous batch has been
  // copied from the host buffers, so the host is at most one batch ahead.
  void feed(const BatchView&, const Scalars&, bool first);
  // The -logprobs of the oldest launch that was not asked about; waits for them. They stay until
  // the next call.
  std::span<const float> take_nll() { return nll_.take_as<float>(); }
  // Each -logprob to the bits of score(), and values of the terms, without gradients and dropout.
  // Temperature 1.
  std::vector<float> evaluate(const BatchView&);
  // The terms of the loss but the first. Of the batch that was evaluated last:
  const std::vector<LossValue>& evaluated_terms() const { return evaluated_; }
  // Of all batches since the `first` one that was trained on: launch_train() sends them, so there
  // is one take_terms() for each launch.
  std::vector<LossValue> take_terms() { return terms_.take(); }
  // The loads of experts of the same batches; empty without experts.
  const std::vector<double>& expert_load() const { return terms_.expert_load(); }
  // The same for a queue of the caller, after the last launch of a step.
  void send_terms(LossQueue& to) const {
    to.send(trained_->losses, trained_->exec->tape().losses, shares_, trained_->load);
  }

 private:
  static constexpr size_t kinds = 6;
  // A program with its values; what its kind does not have is absent.
  struct Program {
    Exec* exec = nullptr;
    int64_t rows = 0;  // of the buffers: those asked about, rounded up
    StateRef<int32_t> tokens = {}, positions = {}, documents = {}, asked = {}, targets = {};
    StateRef<int32_t> counts = {}, module_targets = {};
    StateRef<float> logprob = {}, entropy = {}, dlogprob = {}, nll = {}, losses = {};
    StateRef<int32_t> load = {};  // of experts
    StateRef<Scalars> scalars = {};
  };
  // What a program is cached by: its shape, and the windows and weights that may change.
  struct CacheKey {
    Key shape;
    int64_t window = 0, long_window = 0;
    float mtp_loss = 0, further_loss = 0;
    auto operator<=>(const CacheKey&) const = default;
  };
  struct BoundPrograms : ShapePrograms {
    std::array<Program, LogprobPrograms::kinds> bound;  // by kind, as in ShapePrograms
  };
  // Results of begin() on their way to the host, behind no later launch.
  struct Arrival {
    std::unique_ptr<Transfer> transfer = {};
    int64_t bytes = 0;  // at most
  };
  Tape record(const std::string& name, const Key&, Kind) const;
  static Tape record(const LogprobProgramsSpec&, const std::string& name, const Key&, Kind,
                     int64_t keep_bytes);
  const Program& bound(const Key&, Kind);
  Program bind(const std::string& name, Exec&, const Key&, Kind) const;
  const Program& prepare(const BatchView&, Kind);
  void set_scalars(const BatchView&, const Scalars&, bool first);
  std::span<const int32_t> positions_of(const BatchView&);
  void fetch(Arrival&, const StateRef<float>&);
  std::span<const float> arrived(Arrival&) const;
  template <class T>
  void backward_of(std::span<const T> dlogprob, const Scalars&);
  std::span<const int32_t> counted_positions(int64_t B, int64_t T);

  LogprobProgramsSpec spec_;
  Memory& memory_;
  ProgramCache<CacheKey, BoundPrograms> programs_;
  const Program* pending_ = nullptr;  // begin() ran, backward() has not
  const Program* trained_ = nullptr;  // of the last launch_train() or begin()
  std::vector<double> shares_;        // of its loss terms in the step so far: LossQueue::send()
  size_t begun_rows_ = 0;
  Arrival logprob_, entropy_;
  ReadQueue nll_;
  LossQueue terms_;
  std::vector<LossValue> evaluated_;  // of evaluate()
  // What is written for a batch beside its own vectors; kept, since fresh pages are slow.
  std::vector<float> dlogprob_;
  std::vector<int32_t> padded_, counted_;
  int64_t counted_T_ = 0;
};

}  // namespace hearth::inline train
