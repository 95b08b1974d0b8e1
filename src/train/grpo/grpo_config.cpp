#include "train/grpo/grpo_config.h"

#include "sys/error.h"
#include "train/trained_model.h"

namespace hearth::inline train {

void GrpoConfig::check() const {
  const auto positive = [](const char* name, auto x) {
    if (!(x > 0)) fail_usage(name, "expected more than 0, got {}", x);
  };
  const auto not_negative = [](const char* name, auto x) {
    if (!(x >= 0)) fail_usage(name, "expected 0 or more, got {}", x);
  };
  if (model.empty()) fail_usage("grpo", "expected --model, got none");
  if (data.empty()) fail_usage("grpo", "expected prompts by --data, got none");
  not_negative("steps", steps);
  if (steps == 0 && eval_data.empty())
    fail_usage("steps",
               "expected 1 or more, or --eval-data to evaluate on without training, got 0");
  positive("prompts", prompts), positive("mu", mu);
  positive("max_completion", max_completion), positive("mini_batches", mini_batches);
  not_negative("micro_tokens", micro_tokens), positive("temperature", temperature);
  if (group < 2) fail_usage("group", "expected at least 2 completions of a prompt, got {}", group);
  if (prompts > 1 << 20 || group > 1 << 16 || max_completion > 1 << 20)
    fail_usage("grpo", "expected fewer prompts, completions or tokens, got {}, {} and {}", prompts,
               group, max_completion);
  check_run(steps);
  not_negative("beta", beta), not_negative("epsilon", epsilon);
  not_negative("epsilon_high", epsilon_high), not_negative("kl_target", kl_target);
  not_negative("importance_cap", importance_cap), not_negative("rollout_batch", rollout_batch);
  positive("reward_start", reward_start);
  if (kl_target > 0 && beta == 0) fail_usage("kl_target", "expected a --beta to begin with, got 0");
  if (!(epsilon < 1)) fail_usage("epsilon", "expected less than 1, got {}", epsilon);
  if (!(ema_decay >= 0 && ema_decay < 1))
    fail_usage("ema_decay", "expected 0 up to 1, got {}", ema_decay);
  if (mini_batches > prompts * group)
    fail_usage("mini_batches", "expected at most {}, a completion each, got {}", prompts * group,
               mini_batches);
  expect_no_dropout(lora, "GRPO");
  if (target_exact > 0 && eval_data.empty())
    fail_usage("target_exact", "expected --eval-data with it, got none");
}

}  // namespace hearth::inline train
