// What is told of a step of GRPO: in the log, on the terminal, and of its completions.
#pragma once

#include "align/grpo_step.h"

namespace hearth {

// What the log says beside the loss; `rewards` are their names.
nlohmann::ordered_json found_in_step(const StepFindings&, const GrpoConfig&, const GrpoState&,
                                     const std::vector<std::string>& rewards);
// Where the time of the step went, and what went wrong with rewards.
nlohmann::ordered_json split_of_step(const StepFindings&, const Rewards&);
// One line for the terminal.
std::string step_line(const StepFindings&, const GrpoConfig&, const GrpoState&);
// The prompt and the completions of the step's first group, with their rewards.
std::string first_group(const StepFindings&, const std::string& prompt, int64_t group);

}  // namespace hearth
