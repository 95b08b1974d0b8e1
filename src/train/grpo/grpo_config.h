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

namespace hearth {

struct GrpoConfig : RunConfig {
  GrpoConfig() {
    steps = 100, lr = 1e-6, schedule = Schedule::linear, lr_floor = 0;
    beta2 = 0.999f, weight_decay = 0, eval_every = 0, checkpoint_every = 50;
  }
  std::string model, data, eval_data;
  std::string prompt_form = "{}", curriculum;
  bool chat = false;
  ChatForm chat_template = ChatForm::own;
  int64_t clock = 0;
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
  LoraConfig lora;

  template <class V>
  void visit(V&& v) {
    v("model", model, "run, checkpoint or Hugging Face folder to begin from");
    v("data", data, "JSON lines of prompts, with answers where a reward wants them");
    v("eval_data", eval_data, "the same, held out: greedy completions of them are scored");
    v("prompt_form", prompt_form, "text around each prompt, which goes where {} stands");
    v("curriculum", curriculum,
      "name of a number in every row, such as rating: the first pass over the prompts goes from "
      "the "
      "lowest number to the highest, later passes are in random order");
    v("chat", chat, "each prompt is a user's message, in the template of --chat-template");
    v("chat_template", chat_template, chat_form_help);
    v("clock", clock,
      "seconds since 1970 that chat templates take the date from; 0: those when the run begins");
    visit_run(v, {.steps = "steps of rollouts, rewards and updates; 0: only an evaluation",
                  .eval_every = "steps between evaluations; 0: only at the end",
                  .seed = "seed of the order of prompts and of sampling"});
    v("reward", reward,
      "exact, numeric, near[:0.001], regex:P, length:N, chess, program:COMMAND; each may end in "
      "@weight; repeat the flag to add up several");
    v("stop", stop, "strings that end a completion, beside the end of text");
    v("reward_workers", reward_workers, "threads that score, and processes of each program");
    v("reward_timeout", reward_timeout, "seconds a program has for an answer");
    v("reward_start", reward_start,
      "and for its first answer after it was started, if that is more");
    v("reward_failures", reward_failures,
      "completions a reward may leave unscored before the run ends; -1: any number");
    v("stockfish", stockfish, "path, auto or none: labels chess prompts that have no truth");
    v("stockfish_nodes", stockfish_nodes, "Stockfish nodes per position");
    v("prompts", prompts, "prompts a step");
    v("group", group, "completions of each prompt");
    v("max_completion", max_completion, "tokens of a completion at most");
    v("temperature", temperature, "sampling temperature; log-probabilities use it too");
    v("scale", scale, "group, batch or none: whose deviation divides advantages");
    v("baseline", baseline,
      "mean, median, ema or leave_one_out: what rewards are measured against");
    v("ema_decay", ema_decay, "decay rate of the moving-average baseline");
    v("reduction", reduction, "grpo, bnpo, dr_grpo or dapo: how token terms become a loss");
    v("ratio", ratio, "token, or sequence (GSPO)");
    v("epsilon", epsilon, "ratios are clipped below 1 - epsilon");
    v("epsilon_high", epsilon_high,
      "ratios are clipped above 1 + epsilon_high; 0: the same as epsilon");
    v("beta", beta, "weight of the KL penalty toward the reference model; 0: no reference model");
    v("kl_target", kl_target, "adapt beta so that the KL approaches this value; 0: fixed beta");
    v("kl", kl, "k1, k2 or k3");
    v("importance_cap", importance_cap,
      "correct for the sampler by importance up to this; 0: the sampler's numbers are the old "
      "ones");
    v("batch_invariant", batch_invariant,
      "of bf16 on a card, sample and train by kernels that give a token the same bits in any "
      "batch: the log-probabilities of both are equal");
    v("mu", mu, "passes over the rollouts of a step");
    v("mini_batches", mini_batches, "updates in a pass");
    v("train_equal", train_equal,
      "also run completions whose advantage is 0 through the model: no gradient, whole statistics");
    v("micro_tokens", micro_tokens,
      "tokens through the model at a time in training; 0: the most that fit");
    v("rollout_batch", rollout_batch, "sequences decoded at a time; 0: all, up to 512");
    v("eval_prompts", eval_prompts, "of the held-out file, from its start; 0: all");
    v("eval_write", eval_write, "their completions go to eval-STEP.jsonl, as chess score reads it");
    v("target_exact", target_exact, "stop when so many of them are exact; 0: never");
    v("sample_every", sample_every, "steps between groups written to samples.jsonl; 0: none");
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
  // Whether a card is asked to be batch-invariant: other types have no such kernels.
  bool invariant() const { return batch_invariant && dtype == TrainDType::bf16; }
};

}  // namespace hearth
