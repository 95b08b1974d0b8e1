#include "train/grpo/grpo_config.h"

#include "sys/error.h"

namespace hearth::inline train {

void GrpoConfig::check() const {
  const auto positive = [](const char* name, auto x) {
    if (!(x > 0)) fail_usage(name, "expected more than 0, got {}", x);
  };
  if (model.empty()) fail_usage("grpo", "expected --model, got none");
  if (data.empty()) fail_usage("grpo", "expected prompts by --data, got none");
  expect_at_least(0, "--steps", steps);
  if (steps == 0 && eval_data.empty())
    fail_usage("--steps",
               "expected 1 or more, or --eval-data to evaluate on without training, got 0");
  positive("--prompts", prompts), positive("--mu", mu);
  positive("--max-completion", max_completion), positive("--mini-batches", mini_batches);
  expect_at_least(0, "--micro-tokens", micro_tokens), positive("--temperature", temperature);
  if (group < 2)
    fail_usage("--group", "expected at least 2 completions of a prompt, got {}", group);
  if (prompts > 1 << 20 || group > 1 << 16 || max_completion > 1 << 20)
    fail_usage("grpo", "expected fewer prompts, completions or tokens, got {}, {} and {}", prompts,
               group, max_completion);
  check_run(steps);
  expect_at_least(0, "--beta", beta), expect_at_least(0, "--epsilon", epsilon);
  expect_at_least(0, "--epsilon-high", epsilon_high), expect_at_least(0, "--kl-target", kl_target);
  expect_at_least(0, "--importance-cap", importance_cap), positive("--reward-start", reward_start);
  expect_at_least(0, "--rollout-batch", rollout_batch);
  if (kl_target > 0 && beta == 0)
    fail_usage("--kl-target", "expected a --beta to begin with, got 0");
  if (!(epsilon < 1)) fail_usage("--epsilon", "expected less than 1, got {}", epsilon);
  if (!(ema_decay >= 0 && ema_decay < 1))
    fail_usage("--ema-decay", "expected 0 up to 1, got {}", ema_decay);
  if (mini_batches > prompts * group)
    fail_usage("--mini-batches", "expected at most {}, a completion each, got {}", prompts * group,
               mini_batches);
  lora.expect_no_dropout("GRPO");
  if (target_exact > 0 && eval_data.empty())
    fail_usage("--target-exact", "expected --eval-data with it, got none");
}

}  // namespace hearth::inline train
