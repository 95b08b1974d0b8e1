#include "train/config.h"

#include <algorithm>
#include <cmath>

#include "sys/error.h"
#include "train/run_state.h"

namespace hearth::inline train {

void RunConfig::check_run(int64_t total) const {
  if (total > max_step) fail_usage("--steps", "expected at most {}, got {}", max_step, total);
  check_rate(total);
  for (const auto& [flag, beta] : {std::pair{"--beta1", beta1}, {"--beta2", beta2}})
    if (!(beta >= 0 && beta < 1)) fail_usage(flag, "expected 0 up to below 1, got {}", beta);
  // With 0, a weight without a gradient would be updated by 0 / 0.
  if (!(adam_eps > 0) || !std::isfinite(adam_eps))
    fail_usage("--adam-eps", "expected more than 0, got {}", adam_eps);
  expect_at_least(0, "--weight-decay", weight_decay);
  const UpdateSpec update = update_spec();  // parses the settings of groups
  const bool orthogonal = optimizer == OptimizerKind::muon || optimizer == OptimizerKind::normuon;
  for (const auto& [flag, betas] :
       {std::pair{"--group-beta1", update.beta1s}, {"--group-beta2", update.beta2s}})
    if (orthogonal && betas[size_t(Group::matrix)])
      fail_usage(flag, "{} updates the group matrix with --momentum and has no betas for it",
                 names_of(optimizer)[size_t(optimizer)]);
  muon.check();
  if (dtype != TrainDType::fp8 && fp8 != Fp8Config{})
    fail_usage(fp8.head == Fp8Head::on ? "--fp8-wgrad" : "--fp8-head", "needs --dtype fp8");
  expect_at_least(0, "--clip", clip);
  expect_at_least(0, "--spike-z", spike_z);
  expect_at_least(0, "--eval-every", eval_every);
  expect_at_least(0, "--checkpoint-every", checkpoint_every);
  expect_at_least(0, "--keep", keep);
}

int64_t RunConfig::next_save(int64_t step, int64_t total, bool evaluates) const {
  int64_t next = total;
  for (const int64_t every : {checkpoint_every, save_best && evaluates ? eval_every : 0})
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  return next;
}

void TrainConfig::check() const {
  expect_at_least(1, "--steps", steps);
  check_run(steps);
  losses.check();
  expect_at_least(0, "--target-loss", target_loss);
  expect_at_least(-1, "--document-start", document_start);
  expect_at_least(0, "--eval-tokens", eval_tokens);
  expect_at_least(0, "--sample-every", sample_every);
  expect_at_least(1, "--sample-tokens", sample_tokens);
}

}  // namespace hearth::inline train
