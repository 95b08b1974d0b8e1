// Rollouts: completions sampled from the weights in training. The engine uses the trainer's
// ParamStore, and each batch is stamped with the version of the weights. Groups that are finished
// are scored while others still decode.
#pragma once

#include <atomic>

#include "data/examples/prompt_set.h"
#include "infer/engine.h"
#include "rewards/rewards.h"

namespace hearth::inline train {

struct Rollout {
  size_t prompt = 0;            // index of the prompt in the batch
  std::vector<int32_t> tokens;  // prompt and completion
  int64_t prompt_tokens = 0;
  std::vector<float> logprobs;  // of the completion's tokens, from the sampler
  std::string text;
  bool truncated = false;  // stopped at the token limit
  int64_t completion_tokens() const { return int64_t(tokens.size()) - prompt_tokens; }
};

struct RolloutSpec {
  int64_t group = 8, max_tokens = 512;
  float temperature = 1;
  std::vector<std::string> stop = {};
  std::vector<int32_t> stop_ids = {};  // in addition to the end of text
  bool ignore_eos = false;
  uint64_t seed = 1;                            // of this batch
  const std::atomic<int>* interrupt = nullptr;  // nonzero: the functions below throw Interrupted
};

// Thrown when a stop was requested before everything was decoded and scored. The weights are
// unchanged.
struct Interrupted {};

struct RolloutBatch {
  uint64_t version = 0;                             // of the weights
  std::vector<Rollout> rollouts;                    // grouped by prompt
  GroupScores rewards;                              // one per rollout
  std::vector<std::optional<double>> reward_parts;  // mean of each term; nothing: none available
  int64_t tokens = 0;                               // of all completions
  double decode_s = 0, reward_s = 0;                // to decode all; from then until all are scored
};

RolloutBatch make_rollouts(Engine&, std::span<const EncodedPrompt>, Rewards&, const RolloutSpec&,
                           uint64_t version);

GroupRewards await_rewards(std::future<GroupRewards>&, const RolloutSpec&);

// Greedy completions of the prompts, in the same order.
std::vector<Rollout> greedy_completions(Engine&, std::span<const EncodedPrompt>,
                                        const RolloutSpec&);

}  // namespace hearth::inline train
