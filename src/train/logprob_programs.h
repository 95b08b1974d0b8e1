// LogprobPrograms: log-probabilities of chosen tokens under the model, and gradients of whatever
// the host makes of them. One program does both; it pauses in between, with what the backward pass
// needs kept. DPO and GRPO are built on it, and SFT on launch_train(), whose loss needs no pause.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/program_cache.h"
#include "core/read_queue.h"
#include "model/decoder.h"
#include "train/losses.h"
#include "train/memory_plan.h"

namespace hearth::inline train {

// B sequences of T tokens each, and which tokens of them are asked about: after row
// rows[r] = b * T + t comes targets[r]. Rows differ. A shorter sequence is padded at its end.
struct TokenBatch {
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens = {};     // (B, T)
  std::vector<int32_t> positions = {};  // (B, T); empty: 0 .. T - 1 in each
  std::vector<int32_t> documents = {};  // (B, T) for a document mask; empty: none
  std::vector<int32_t> rows = {}, targets = {};
};

// Of each row asked about.
struct Logprobs {
  std::vector<float> logprob, entropy;  // entropy: where the spec asks for it
};

struct LogprobProgramsSpec {
  ModelConfig model;
  std::string name = "logprob";  // prefix of the programs' values
  DType dtype = DType::f32;
  Recompute recompute = Recompute::none;
  float temperature = 1;  // divides the logits
  bool entropy = false;
  bool adapters = true;    // off: the base of the model alone
  LossConfig losses = {};  // of launch_train() and evaluate()
  int64_t logits_bytes = HeadLogprobSpec{}.chunk_bytes;
  int64_t keep_bytes = 0;  // as in HeadLogprobSpec, where the memory has the room
  // Rows asked about that every program is made for, so that one serves batches which ask about
  // fewer; 0: as many as the batch has, in steps.
  int64_t rows = 0;
};

class LogprobPrograms {
 public:
  LogprobPrograms(const LogprobProgramsSpec&, Memory&);

  // Bytes that training on such batches takes, without logits kept from forward to backward.
  struct BatchSize {
    int64_t B = 1, T = 1, rows = 1;
    bool documents = false;
    bool nll = false;  // by launch_train(), else by begin() and backward()
  };
  static MemoryNeed need(const LogprobProgramsSpec&, const BatchSize&, const UpdateSpec&);

  // How the head's gradient is added up: a resumed run keeps what it began with.
  void set_logits_bytes(int64_t bytes) {
    if (bytes == spec_.logits_bytes) return;
    spec_.logits_bytes = bytes;
    programs_.clear(), pending_ = nullptr;
  }

  // What LogprobProgramsSpec::rows says, for programs made from now on.
  void set_rows(int64_t rows) { spec_.rows = rows; }

  // Nothing is kept and no gradient touched.
  Logprobs score(const TokenBatch&);
  // Launches a forward pass that keeps what backward() needs: nothing else may run on this memory
  // before that. The backward pass overwrites the gradients after a `first` batch of a step, and
  // adds to them after others.
  void begin(const TokenBatch&, bool first);
  // What it found, of each row; waits for it. They stay until the next begin().
  std::span<const float> logprob() { return arrived(logprob_); }
  // Empty unless the spec asks for it.
  std::span<const float> entropy() {
    return spec_.entropy ? arrived(entropy_) : std::span<const float>();
  }
  // All of this at once.
  Logprobs forward(const TokenBatch&, bool first);
  // d loss / d logprob of each row, without the loss scale, which is taken from the scalars.
  void backward(std::span<const float> dlogprob, const Scalars& s = {}) {
    backward_of(dlogprob, s);
  }
  void backward(std::span<const double> dlogprob, const Scalars& s = {}) {
    backward_of(dlogprob, s);
  }
  // Gradients of inv_targets (of the scalars) * the sum of -logprob, and of the other terms of the
  // loss, in one pass and with the model's dropout. Temperature 1. Waits for nothing: the terms of
  // the step so far are left in "<name>.losses" for an UpdateProgram of this name, and each
  // -logprob is sent to the host.
  void launch_train(const TokenBatch&, const Scalars&, bool first);
  // The -logprobs of the oldest launch that was not asked about; waits for them. They stay until
  // the next call.
  std::span<const float> take_nll() { return nll_.take_as<float>(); }
  // Each -logprob to the bits of score(), and values of the terms, without gradients and dropout.
  // Temperature 1.
  std::vector<float> evaluate(const TokenBatch&);
  // The terms of the loss but the first. Of the batch that was evaluated last:
  const std::vector<LossValue>& evaluated_terms() const { return evaluated_; }
  // Of all batches since the `first` one that was trained on: launch_train() sends them, so there
  // is one take_terms() for each launch.
  std::vector<LossValue> take_terms() { return terms_.take(); }

 private:
  enum class Kind : uint8_t { score, first, next, nll_first, nll_next, nll_eval };
  static constexpr size_t kinds = 6;
  struct Key {
    int64_t B, T, rows;
    bool documents;
    auto operator<=>(const Key&) const = default;
  };
  // A program with its values; what its kind does not have is absent.
  struct Program {
    Exec* exec = nullptr;
    int64_t rows = 0;  // of the buffers: those asked about, rounded up
    StateRef<int32_t> tokens = {}, positions = {}, documents = {}, asked = {}, targets = {};
    StateRef<float> logprob = {}, entropy = {}, dlogprob = {}, nll = {}, losses = {};
    StateRef<Scalars> scalars = {};
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
  const Program& program(const Key&, Kind);
  Program bind(const std::string& name, Exec&, const Key&, Kind) const;
  const Program& prepare(const TokenBatch&, Kind);
  void fetch(Arrival&, const StateRef<float>&);
  std::span<const float> arrived(Arrival&) const;
  template <class T>
  void backward_of(std::span<const T> dlogprob, const Scalars&);
  std::span<const int32_t> counted_positions(int64_t B, int64_t T);

  LogprobProgramsSpec spec_;
  Memory& memory_;
  ProgramCache<Key, BoundPrograms> programs_;
  const Program* pending_ = nullptr;  // begin() ran, backward() has not
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
