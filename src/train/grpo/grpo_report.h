// What is told of a step of GRPO: in the log, on the terminal, and of its completions.
#pragma once

#include "train/grpo/grpo_step.h"

namespace hearth::inline train {

// What the log says beside the loss; `rewards` are their names.
nlohmann::ordered_json found_in_step(const StepFindings&, const GrpoConfig&, const GrpoState&,
                                     const std::vector<std::string>& rewards);
// Where the time of the step went, and what went wrong with rewards.
nlohmann::ordered_json split_of_step(const StepFindings&, const Rewards&);
// For the progress line.
std::string step_line(const StepFindings&, const GrpoConfig&);
// Arithmetic of a step: training, and the forward passes of decoding and scoring.
double flops_of_step(const StepFindings&, const ModelConfig&);
// What is said at the end of a run: completions without a reward, weights that did not change.
std::vector<std::string> closing_warnings(const GrpoState&, std::span<const RewardFailures>);
// An error where a program failed at more than half of the completions of a finished run, but for a
// few; `checkpoint` was saved.
void expect_rewards_of_most(std::span<const RewardFailures>,
                            const std::filesystem::path& checkpoint);
// The prompt and the completions of the step's first group, with their rewards.
std::string first_group(const StepFindings&, const std::string& prompt, int64_t group);

}  // namespace hearth::inline train
