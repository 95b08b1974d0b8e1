// Rollouts: completions sampled from the weights in training, by the engine over the very same
// ParamStore, each stamped with the version of the weights that made it. Groups that are done are
// scored while others still decode.
#pragma once

#include <atomic>

#include "infer/engine.h"
#include "rewards/rewards.h"

namespace hearth::inline train {

// A prompt as the model is given it, and the row its rewards read.
struct EncodedPrompt {
  const PromptRow* row;
  std::vector<int32_t> tokens;
};

struct Rollout {
  size_t prompt = 0;            // of the batch
  std::vector<int32_t> tokens;  // prompt and completion
  int64_t prompt_tokens = 0;
  std::vector<float> logprobs;  // of the completion's tokens, from the sampler
  std::string text;
  bool truncated = false;  // it ran into the limit of tokens
  int64_t completion_tokens() const { return int64_t(tokens.size()) - prompt_tokens; }
};

struct RolloutSpec {
  int64_t group = 8, max_tokens = 512;
  float temperature = 1;
  std::vector<std::string> stop = {};
  std::vector<int32_t> stop_ids = {};  // beside the end of text
  bool ignore_eos = false;
  uint64_t seed = 1;                            // of this batch
  const std::atomic<int>* interrupt = nullptr;  // not 0: what is below throws Interrupted
};

// Somebody asked for an end before all was decoded and scored; the weights are untouched.
struct Interrupted {};

struct RolloutBatch {
  uint64_t version = 0;                             // of the weights
  std::vector<Rollout> rollouts;                    // group by group
  GroupScores rewards;                              // one a rollout
  std::vector<std::optional<double>> reward_parts;  // mean of each reward, where one was had
  int64_t tokens = 0;                               // of completions
  double decode_s = 0, reward_s = 0;  // until all were decoded; from then until all were scored
};

RolloutBatch make_rollouts(Engine&, std::span<const EncodedPrompt>, Rewards&, const RolloutSpec&,
                           uint64_t version);

GroupRewards await_rewards(std::future<GroupRewards>&, const RolloutSpec&);

// Greedy completions of prompts, in their order.
std::vector<Rollout> greedy_completions(Engine&, std::span<const EncodedPrompt>,
                                        const RolloutSpec&);

}  // namespace hearth::inline train
