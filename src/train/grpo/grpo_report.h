// What GRPO reports of a step: in the log, on the terminal, and as samples.
#pragma once

#include "train/grpo/grpo_step.h"

namespace hearth::inline train {

// The values that the log has besides the loss; `rewards` are the names of the rewards.
nlohmann::ordered_json found_in_step(const StepFindings&, const GrpoConfig&, const GrpoState&,
                                     const std::vector<std::string>& rewards);
// How the time of the step was spent, and failures of the rewards.
nlohmann::ordered_json split_of_step(const StepFindings&, const Rewards&);
// For the progress line.
std::string step_line(const StepFindings&, const GrpoConfig&);
// FLOPs of a step: training, and the forward passes of decoding and scoring.
double flops_of_step(const StepFindings&, const ModelConfig&);
// Warnings at the end of a run: completions without a reward, weights that did not change.
std::vector<std::string> closing_warnings(const GrpoState&, std::span<const RewardFailures>);
// Throws if a reward failed for more than half of the completions of a finished run, and for at
// least 8. The error names `checkpoint`, where the last weights were saved.
void expect_rewards_of_most(std::span<const RewardFailures>,
                            const std::filesystem::path& checkpoint);
// The prompt and the completions of the step's first group, with their rewards.
std::string first_group(const StepFindings&, const std::string& prompt, int64_t group);

// Whether rollouts.jsonl has rollouts of this step (from 1): each of a run below 400 steps, 201 to
// 301 of a longer one, always with the first and the last.
bool keeps_rollouts(int64_t step, int64_t steps);
// Lines for rollouts.jsonl: the first groups of a step, with bounded texts, and the tokens and
// log-probabilities of a few completions.
std::vector<std::string> rollout_lines(const StepFindings&, std::span<const EncodedPrompt>,
                                       const Tokenizer&, int64_t step, int64_t group);

}  // namespace hearth::inline train
