// The loss terms of cross-entropy training (pretraining and SFT): settings, recording, reading. A
// new term of the logits is a field of LossConfig and a line in record_losses; logprob_programs.cpp
// records the terms of further tokens and of routers.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/read_queue.h"
#include "core/state_store.h"
#include "model/decoder.h"

namespace hearth::inline train {

// Weights of terms, of which 0 turns a term off, and how fast selection biases move.
struct LossConfig {
  float z_loss = 0, further_loss = 0;
  float mtp_loss = 0.3f;  // models with modules of multi-token prediction only
  float balance_loss = 1e-3f, router_z_loss = 0, balance_rate = 1e-3f;  // models with experts only

  template <class V>
  void visit(V&& v) {
    v("z_loss", z_loss,
      "weight of the z-loss, the mean square of the log-sum-exp of a token's logits, which keeps "
      "logits small (PaLM: 1e-4); 0: off");
    v("further_loss", further_loss, "weight of the second token ahead, squared for the third");
    v("mtp_loss", mtp_loss,
      "models with modules of multi-token prediction: weight of the modules' mean cross-entropy; 0 "
      "in sft: the modules stay as they are");
    v("balance_loss", balance_loss,
      "experts: weight of the load balancing loss E sum(f p), where f are the shares of tokens and "
      "p the mean scores of the experts; 0: off");
    v("router_z_loss", router_z_loss,
      "experts: weight of the mean square of the log-sum-exp of the router's logits; 0: off");
    v("balance_rate", balance_rate,
      "experts with selection biases: how far a step moves each bias toward equal loads; 0: not at "
      "all");
  }
  void check() const;  // throws if a weight is negative or not finite
  // Throws if a term is set, to another weight than the usual one, for a model that it cannot
  // train.
  void expect_effect(const ModelConfig&, const LossConfig& usual) const;
};

// Of DPO and GRPO: their own losses leave modules of multi-token prediction as they are.
struct ModuleLossConfig {
  float mtp_loss = 0;

  template <class V>
  void visit(V&& v) {
    v("mtp_loss", mtp_loss,
      "weight of the cross-entropy of the model's modules of multi-token prediction on the tokens "
      "that are learned; changes only the modules; 0: the modules stay as they are");
  }
  explicit operator bool() const { return mtp_loss > 0; }
  void check(const ModelConfig& model) const {
    const LossConfig own{.mtp_loss = mtp_loss};
    own.check(), own.expect_effect(model, {.mtp_loss = 0});
  }
};

// Records the mean cross-entropy of `targets` (the term "next_token") and the terms of the config.
// `x` is the result of decoder(); the scale and the softcap of the logits are the model's.
inline void record_losses(Tape& t, const ModelConfig& model, Var x, Var targets,
                          const LossConfig& config, HeadSpec head) {
  head.scale = model.logit_scale, head.softcap = model.logit_softcap;
  head.z_loss = config.z_loss;
  head_loss(t, x, head_weight(t, model), targets, head);
}

struct LossValue {
  std::string name;
  double value = 0;  // mean over the term's own targets, without the weight
};

enum class LossTerms : bool { all, validated };

// The named values of all terms of a tape except the first, which is "the loss". `values` is the
// content of the tape's loss_buffer after the program ran: what LossTerm::value says.
std::vector<LossValue> named_losses(std::span<const LossTerm>, std::span<const float> values,
                                    LossTerms = LossTerms::all);
// The same, with the values read from the device. Waits for the program, unless there is only one
// term.
std::vector<LossValue> read_losses(const StateRef<float>& values, std::span<const LossTerm>,
                                   LossTerms = LossTerms::all);

// Loss terms that the host reads while later steps run.
class LossQueue {
 public:
  explicit LossQueue(Backend& b) : sent_(b), loads_(b) {}
  // Queues a copy of the values as they will be after all work launched so far, and of the loads of
  // experts (layers, E), if there are any. `shares`: targets of each term over those of the first.
  void send(const StateRef<float>& values, std::span<const LossTerm>,
            const std::vector<double>& shares, const StateRef<int32_t>& load = {});
  // Returns the values of the oldest send() that was not taken yet; waits for them. With experts,
  // the last one is "expert_violation". A term without a target is left out.
  std::vector<LossValue> take();
  // relative_loads() of what take() returned last; empty without experts.
  const std::vector<double>& expert_load() const { return expert_load_; }

 private:
  struct Sent {
    std::vector<LossTerm> terms;  // copies, since the tapes may be destroyed first
    std::vector<double> shares;
    int64_t experts = 0;
  };
  std::deque<Sent> queue_;
  ReadQueue sent_, loads_;
  std::vector<double> expert_load_;
};

// Means over batches of different sizes, weighted by their number of targets.
class LossMeans {
 public:
  void add(const std::vector<LossValue>& of_batch, int64_t targets);
  std::vector<LossValue> means() const;

 private:
  std::vector<LossValue> sums_;
  int64_t targets_ = 0;
};

}  // namespace hearth::inline train
