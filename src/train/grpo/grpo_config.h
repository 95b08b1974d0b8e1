// GrpoConfig: everything about a GRPO run. Written to the run folder as config.toml; a resumed run
// reads it back.
#pragma once

#include <string>
#include <vector>

#include "data/examples/templates.h"
#include "model/decoder.h"
#include "model/lora.h"
#include "rewards/rewards.h"
#include "train/config.h"
#include "train/grpo/advantages.h"
#include "train/grpo/grpo_loss.h"

namespace hearth::inline train {

struct GrpoConfig : RunConfig, TemplateConfig {
  GrpoConfig() {
    steps = 100, lr = 1e-6, schedule = Schedule::linear, lr_floor = 0;
    beta2 = 0.999f, weight_decay = 0, eval_every = 0, checkpoint_every = 50;
  }
  std::string model, data, eval_data;
  std::string prompt_form = "{}", curriculum;
  bool chat = false;
  std::vector<std::string> reward, stop;
  int reward_workers = 2;
  double reward_timeout = 10, reward_start = 30;
  int64_t reward_failures = 100;
  std::string stockfish = "auto";
  int64_t stockfish_nodes = 5000;
  int64_t prompts = 8, group = 8, max_completion = 512;
  float temperature = 1;
  AdvantageScale scale = AdvantageScale::group;
  Baseline baseline = Baseline::mean;
  double ema_decay = 0.9;
  Reduction reduction = Reduction::dapo;
  RatioLevel ratio = RatioLevel::token;
  double epsilon = 0.2, epsilon_high = 0;
  double beta = 0, kl_target = 0;
  KlForm kl = KlForm::k3;
  double importance_cap = 0;
  bool batch_invariant = true;
  int64_t mu = 1, mini_batches = 1;
  bool train_equal = false;
  int64_t micro_tokens = 4096, rollout_batch = 0;
  int64_t eval_prompts = 0;
  bool eval_write = false;
  double target_exact = 0;
  int64_t sample_every = 0;
  ModuleLossConfig modules;
  LoraConfig lora;

  template <class V>
  void visit(V&& v) {
    v("model", model, "run, checkpoint or Hugging Face folder to start from");
    v("data", data, "prompts as JSON lines, with answers if a reward needs them");
    v("eval_data", eval_data, "held-out prompts in the same format; scored on greedy completions");
    v("prompt_form", prompt_form, "template of each prompt; {} marks where the prompt goes");
    v("curriculum", curriculum,
      "numeric field of every row, such as rating: the first pass over the prompts goes from the "
      "lowest value to the highest, later passes are shuffled");
    v("chat", chat, "treat each prompt as a user message and apply --chat-template");
    TemplateConfig::visit(v);
    visit_run(v, {.steps = "steps of rollout, reward and update; 0: only evaluate",
                  .eval_every = "steps between evaluations; 0: only at the end",
                  .seed = "random seed for the order of prompts and for sampling"});
    v("reward", reward,
      "exact, numeric, near[:0.001], regex:P, length:N, chess or program:COMMAND, optionally "
      "followed by @weight; repeat the flag to sum several rewards");
    v("stop", stop, "strings that end a completion, in addition to the end-of-text token");
    v("reward_workers", reward_workers, "scoring threads, and processes per reward program");
    v("reward_timeout", reward_timeout, "seconds a reward program may take for an answer");
    v("reward_start", reward_start,
      "the same for the first answer after the program starts, if it is more than reward_timeout");
    v("reward_failures", reward_failures,
      "completions that a reward may fail to score before the run stops; -1: no limit");
    v("stockfish", stockfish,
      "Stockfish, which labels chess prompts without a reference answer: a path, auto or none");
    v("stockfish_nodes", stockfish_nodes, "Stockfish nodes per position");
    v("prompts", prompts, "prompts per step");
    v("group", group, "completions per prompt");
    v("max_completion", max_completion, "maximum tokens per completion");
    v("temperature", temperature,
      "sampling temperature; also applied to the log-probabilities in training");
    v("scale", scale, "standard deviation that divides the advantages: group, batch or none");
    v("baseline", baseline,
      "value subtracted from the rewards: mean, median, ema or leave_one_out");
    v("ema_decay", ema_decay, "decay rate of the moving-average baseline");
    v("reduction", reduction,
      "how per-token terms are averaged into the loss: grpo, bnpo, dr_grpo or dapo");
    v("ratio", ratio, "importance ratio per token, or per sequence (GSPO)");
    v("epsilon", epsilon, "clip ratios below 1 - epsilon");
    v("epsilon_high", epsilon_high, "clip ratios above 1 + epsilon_high; 0: same as epsilon");
    v("beta", beta, "weight of the KL penalty toward the reference model; 0: no reference model");
    v("kl_target", kl_target, "adapt beta so that the KL approaches this value; 0: fixed beta");
    v("kl", kl, "estimator of the KL divergence: k1, k2 or k3");
    v("importance_cap", importance_cap,
      "largest importance weight that corrects for the difference between sampler and trainer; 0: "
      "no correction: the old policy's log-probabilities are the sampler's");
    v("batch_invariant", batch_invariant,
      "bf16 or fp8 on a GPU: sample and train with batch-invariant kernels, so that both compute "
      "equal "
      "log-probabilities");
    v("mu", mu, "passes over the rollouts of a step");
    v("mini_batches", mini_batches, "optimizer updates per pass");
    v("train_equal", train_equal,
      "also run completions with zero advantage through the model, for complete statistics; they "
      "add no gradient");
    v("micro_tokens", micro_tokens,
      "tokens per forward pass in training; 0: as many as fit in memory");
    v("rollout_batch", rollout_batch, "sequences decoded in parallel; 0: all, up to 512");
    v("eval_prompts", eval_prompts,
      "number of held-out prompts to evaluate, from the start of the file; 0: all");
    v("eval_write", eval_write,
      "write the held-out completions to eval-STEP.jsonl, the input format of chess score");
    v("target_exact", target_exact,
      "stop when this fraction of the held-out prompts is answered exactly; 0: never");
    v("sample_every", sample_every,
      "steps between sampled groups written to samples.jsonl; 0: none");
    modules.visit(v);
    fp8.visit_wgrad(v);
    lora.visit(v);
  }

  RewardSpec rewards() const {
    return {.rewards = reward,
            .workers = reward_workers,
            .timeout_s = reward_timeout,
            .start_s = reward_start,
            .max_failures = reward_failures,
            .stockfish = stockfish,
            .stockfish_nodes = stockfish_nodes};
  }
  PolicyLossSpec loss(double beta_now) const {
    return {.epsilon = epsilon,
            .epsilon_high = epsilon_high > 0 ? epsilon_high : epsilon,
            .reduction = reduction,
            .ratio = ratio,
            .beta = beta_now,
            .kl = kl,
            .max_completion = max_completion};
  }
  void check() const;  // an error names the field
  // Whether to ask a GPU for batch-invariant kernels, which exist for bf16 only: with fp8 the
  // forward pass is bf16.
  bool invariant() const {
    return batch_invariant && (dtype == TrainDType::bf16 || dtype == TrainDType::fp8);
  }
};

}  // namespace hearth::inline train
