// One GRPO step: rollouts, rewards, advantages, updates, and their statistics. The engine and the
// training programs use the same ParamStore.
#pragma once

#include "train/grpo/grpo_config.h"
#include "train/grpo/grpo_state.h"
#include "train/grpo/policy.h"
#include "train/reference_model.h"
#include "train/task.h"

namespace hearth::inline train {

// Seconds by part of a step.
struct StepSplit {
  double decode = 0, reward = 0, score = 0, train = 0, total = 0;
};

// The results of a step, for the log.
struct StepFindings {
  RolloutBatch batch;
  Advantages advantages;
  LogprobGap gap;
  PolicyStep policy;  // means over the updates of the step
  int64_t updates = 0, fed = 0;
  double lr = 0, beta = 0;
  StepSplit seconds;
  nlohmann::ordered_json terms = nlohmann::ordered_json::object();  // experts, modules: last update
};

struct GrpoStepSpec {
  const GrpoConfig& config;
  const ModelConfig& model;  // resolved
  const Tokenizer* tokenizer = nullptr;
  int64_t longest_prompt = 0;
  std::vector<int32_t> stop_ids = {};  // tokens that end a completion, besides the end of text
  bool ignore_eos = false;             // for benchmarks: every completion runs to the token limit
  const std::atomic<int>* interrupt = nullptr;  // nonzero: rollouts in flight end with Interrupted
  // Loads the weights of the reference model. Called only if beta > 0 and there are no adapters.
  std::function<void(ParamStore&)> load_reference = {};
};

class GrpoStepper {
 public:
  GrpoStepper(const GrpoStepSpec&, ParamStore&, Backend&, Rewards&);

  // The rollouts of step `step` with their rewards, stamped with the version of the weights in the
  // state.
  RolloutBatch roll_out(std::span<const EncodedPrompt>, int64_t step, const GrpoState&);
  // Updates the weights and the counters in the state. Throws if the rollouts come from another
  // version of the weights: such rollouts are never trained on.
  StepFindings train_on(RolloutBatch, const StepContext&, GrpoState&);
  StepFindings step(std::span<const EncodedPrompt>, const StepContext&, GrpoState&);  // both

  Engine& engine() { return *engine_; }
  UpdateProgram& update();  // made on first use: the memory plan counts its buffers as free
  // Bytes by part: training in micro-batches of micro_tokens(), the reference model, the KV cache.
  MemoryNeed memory_need() const { return need(micro_tokens_); }
  int64_t micro_tokens() const { return micro_tokens_; }
  void set_micro_tokens(int64_t n) { micro_tokens_ = n; }
  void set_logits_bytes(int64_t n) { programs_->set_logits_bytes(n); }
  RolloutSpec rollout_spec(int64_t step) const;

 private:
  void make_engine();
  UpdateSpec update_spec() const {
    UpdateSpec s = config_.update_spec();
    s.modules_apart = programs_spec_.modules;
    return s;
  }
  EngineSpec engine_spec() const;
  MemoryNeed need(int64_t micro_tokens) const;
  int64_t fitting_micro_tokens() const;
  MemoryBudget budget() const;
  std::vector<PolicySample> samples_of(StepFindings&, const GrpoState&);
  void update_weights(StepFindings&, const std::vector<PolicySample>&, const StepContext&,
                      GrpoState&);
  std::vector<PolicySample> part_of(const std::vector<PolicySample>&, int64_t step, int64_t pass,
                                    int64_t part, int64_t parts) const;

  GrpoStepSpec spec_;
  LogprobProgramsSpec programs_spec_;
  const GrpoConfig& config_;
  const ModelConfig& model_;
  ParamStore& store_;
  Backend& backend_;
  Rewards& rewards_;
  Memory memory_;
  std::unique_ptr<LogprobPrograms> programs_;
  std::optional<ReferenceModel> reference_;  // with a KL penalty
  std::unique_ptr<UpdateProgram> update_;
  std::unique_ptr<Engine> engine_;
  int64_t cache_bytes_ = 0;   // of the engine's KV cache
  int64_t micro_tokens_ = 0;  // tokens per micro-batch in training
};

}  // namespace hearth::inline train
