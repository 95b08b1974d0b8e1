// Sampler: chooses the next token of one sequence from a row of logits. Every draw depends only on
// (seed, sample, position), so a sequence does not depend on the rest of its batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace hearth::inline infer {

// Sampling controls of one request. They apply in this order: a constraint's mask; logit bias;
// repetition, presence and frequency penalty; temperature; min_p; top_k; top_p. Each filter sees
// the result of the previous one.
struct SamplingSpec {
  std::map<int32_t, float> logit_bias = {};  // added to the logits
  // For tokens of the prompt or completion: divides positive logits, multiplies the others.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // subtracted for tokens that occur in the completion
  float frequency_penalty = 0;  // subtracted per occurrence in the completion
  float temperature = 1;        // 0: greedy, lowest id among equal logits
  float min_p = 0;              // drop tokens less likely than this fraction of the most likely
  int64_t top_k = 0;            // keep the k most likely, lowest ids first; 0: all
  float top_p = 1;              // keep the most likely tokens up to this total probability
  uint64_t seed = 1;

  int64_t min_tokens = 0;   // before that, no stop id is sampled and no stop string ends the text
  int64_t max_tokens = -1;  // -1: until the context is full
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids = {};  // in addition to eos
  std::vector<std::string> stop = {};  // strings that end the text and are not part of it
  int64_t logprobs = -1;               // number of alternatives per token; -1: no log-probabilities
  // Log-probabilities of the completion use the logits divided by the temperature, as in sampling,
  // and the training kernel; there are no alternatives then.
  bool logprobs_at_temperature = false;

  void check(int64_t vocab) const;  // errors name the field
  // Whether a draw depends on the tokens before it.
  bool penalises() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  // Whether a draw needs only a row of logits.
  bool by_row() const { return logit_bias.empty() && !penalises(); }
};

// Log-probabilities are those of the model: log-softmax of its logits (after its softcap), before
// any sampling control. A token in `top` has the same bits there as when it is the token itself.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top =
      {};  // most likely first, lowest ids first among equals
};
// The values from which the training loss computes log-probabilities of a row: -(log + (max - x)).
struct LogSum {
  float max, log;  // largest logit; log of the sum of exp(x - max)
};
// Without a LogSum it is computed here in double precision.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int64_t top,
                           std::optional<LogSum> = {});

// The random bits of a token: a uniform number in [0, 1) as 64 binary digits after the point.
uint64_t sampling_bits(uint64_t seed, uint32_t sample, uint64_t position);
double sampling_uniform(uint64_t seed, uint32_t sample, uint64_t position);

// The tokens that a constraint allows: a bit per token, and further ones. No bits: every token.
struct AllowedTokens {
  std::span<const uint32_t> bits = {};
  std::span<const int32_t> also = {};
  bool constant = false;  // the bits stay as they are as long as the engine

  bool all() const { return bits.empty(); }
  bool has(size_t token) const { return bits[token / 32] >> token % 32 & 1; }
};

class Sampler {
 public:
  // `spec` must outlive the sampler. `sample` distinguishes the samples of one request.
  Sampler(const SamplingSpec& spec, std::span<const int32_t> prompt, uint32_t sample);

  // A token that may be sampled.
  struct Choice {
    int32_t token;
    double logit;   // after bias, penalties and temperature (greedy: before temperature)
    double weight;  // proportional to its probability
  };
  // The distribution after all controls, by ascending id. Valid until the next call. Tokens in
  // `barred`, and those that are not `allowed`, cannot be sampled.
  std::span<const Choice> choices(std::span<const float> logits,
                                  std::span<const int32_t> barred = {},
                                  const AllowedTokens& allowed = {});
  // The token at `position` of the sequence.
  int32_t draw(std::span<const float> logits, uint64_t position,
               std::span<const int32_t> barred = {}, const AllowedTokens& allowed = {});
  // Logits after bias and penalties only.
  std::span<const double> adjusted(std::span<const float> logits,
                                   std::span<const int32_t> barred = {},
                                   const AllowedTokens& allowed = {});
  // Counts a token of the completion.
  void accept(int32_t token);

 private:
  const SamplingSpec* spec_;
  uint32_t sample_;
  std::unordered_map<int32_t, int64_t>
      seen_;  // for penalties: occurrences in the completion; 0: only in the prompt
  std::vector<double> logits_;
  std::vector<int32_t> ids_;  // if a constraint allows few tokens: these, ascending
  std::vector<Choice> choices_;
};

}  // namespace hearth::inline infer
