// LogprobPrograms: log-probabilities of chosen tokens under the model, and gradients of whatever
// the host makes of them. One program does both; it pauses in between, with what the backward pass
// needs kept. What DPO and GRPO stand on.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec.h"
#include "model/decoder.h"
#include "optim/update.h"

namespace hearth {

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
  bool adapters = true;  // off: the base of the model alone
  int64_t logits_bytes = HeadLogprobSpec{}.chunk_bytes;
  int64_t keep_bytes = 0;  // as in HeadLogprobSpec, where the memory has the room
};

class LogprobPrograms {
 public:
  LogprobPrograms(const LogprobProgramsSpec&, Memory&);

  // Nothing is kept and no gradient touched.
  Logprobs score(const TokenBatch&);
  // Keeps what backward() needs: nothing else may run on this memory before that. The backward pass
  // overwrites the gradients after a `first` batch of a step, and adds to them after others.
  Logprobs forward(const TokenBatch&, bool first);
  // d loss / d logprob of each row; under fp16's loss scale the caller has multiplied it.
  void backward(std::span<const float> dlogprob);
  // Gradients of inv_targets (of the scalars) * the sum of -logprob, in one pass and with the
  // model's dropout; gives each -logprob. Temperature 1.
  std::vector<float> train(const TokenBatch&, const Scalars&, bool first);

 private:
  enum class Kind : uint8_t { score, first, next, nll_first, nll_next };
  struct Key {
    int64_t B, T, rows;
    bool documents;
    Kind kind;
    auto operator<=>(const Key&) const = default;
  };
  struct Program {
    std::string prefix;
    std::unique_ptr<Exec> exec;
    int64_t rows = 0;  // of the buffers: those asked about, rounded up
  };
  Tape record(const std::string& name, const Key&) const;
  Tape record(const std::string& name, const Key&, int64_t keep_bytes) const;
  Program& prepare(const TokenBatch&, Kind);
  std::vector<float> read(const Program&, const char* what, size_t rows);
  Logprobs read(const Program&, size_t rows);

  LogprobProgramsSpec spec_;
  Memory& memory_;
  std::map<Key, Program> programs_;
  Program* pending_ = nullptr;  // forward() ran, backward() has not
  size_t pending_rows_ = 0;
};

// The update program with a loss that the host names.
class UpdateProgram {
 public:
  UpdateProgram(const std::string& name, Memory&, const UpdateSpec&);
  // `loss` is only asked whether it is finite, and kept in the state.
  UpdateState run(const Scalars&, double loss);
  UpdateState state() const;
  void set_state(const UpdateState&);

 private:
  Memory& memory_;
  std::string loss_;
  std::unique_ptr<Exec> exec_;
};

}  // namespace hearth
