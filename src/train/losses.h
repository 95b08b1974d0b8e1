// The losses of training by cross-entropy (pretraining, SFT): the settings of their terms, the one
// function that records them, and the one that reads their values. A new term is a field of
// LossConfig and a line of record_losses; nothing else names single terms.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/read_queue.h"
#include "model/decoder.h"

namespace hearth::inline train {

// Every field is the weight of a term; 0: the run has no such term.
struct LossConfig {
  float z_loss = 0;

  template <class V>
  void visit(V&& v) {
    v("z_loss", z_loss,
      "weight of the z-loss, the mean square of the log-sum-exp of a token's logits, which keeps "
      "logits small (PaLM: 1e-4); 0: off");
  }
  void check() const;  // names the flag of a weight that is negative or not finite
};

// Records the mean cross-entropy of `targets`, "next_token", and the terms of the config. `x` is
// what decoder() returned; the softcap is the model's.
inline void record_losses(Tape& t, const ModelConfig& model, Var x, Var targets,
                          const LossConfig& config, HeadSpec head) {
  head.softcap = model.logit_softcap, head.z_loss = config.z_loss;
  head_loss(t, x, head_weight(t, model), targets, head);
}

struct LossValue {
  std::string name;
  double value = 0;  // mean over targets, without the weight
};

enum class LossTerms : bool { all, validated };

// Terms of a tape by name, all but the first, whose value is "the loss". `values` is what the
// program left in the tape's loss_buffer.
std::vector<LossValue> named_losses(std::span<const LossTerm>, std::span<const float> values,
                                    LossTerms = LossTerms::all);
// The same, read here; waits for the program, unless the first term is the only one.
std::vector<LossValue> read_losses(const StateStore&, const Tape&, LossTerms = LossTerms::all);

// Terms that the host reads while later steps run.
class LossQueue {
 public:
  explicit LossQueue(Backend& b) : sent_(b) {}
  // The values that are on the device after what has been launched so far.
  void send(const StateStore&, const Tape&);
  // Those of the oldest send() that was not taken; waits for them.
  std::vector<LossValue> take();

 private:
  std::deque<std::vector<LossTerm>> terms_;  // of the tapes, which may be gone by then
  ReadQueue sent_;
};

// Means over batches of different sizes.
class LossMeans {
 public:
  void add(const std::vector<LossValue>& of_batch, int64_t targets);
  std::vector<LossValue> means() const;

 private:
  std::vector<LossValue> sums_;
  int64_t targets_ = 0;
};

}  // namespace hearth::inline train
