// Sampler: from a row of logits to the next token of one sequence. Every draw is a function of
// (seed, sample, position) alone, so a sequence does not depend on what shares its batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace hearth {

// Controls of one request. They apply in this order: logit bias; repetition, presence and frequency
// penalty; temperature; min_p; top_k; top_p. Each filter sees what the one before it has left.
struct SamplingSpec {
  std::map<int32_t, float> logit_bias = {};  // added to the logits
  // Tokens of the prompt or the completion: a positive logit is divided by it, another multiplied.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // taken off tokens that the completion has
  float frequency_penalty = 0;  // taken off once for each time the completion has them
  float temperature = 1;        // 0: greedy, the lowest id of equal logits
  float min_p = 0;              // drop tokens less likely than this share of the likeliest
  int64_t top_k = 0;            // keep this many of the likeliest, lowest ids first; 0: all
  float top_p = 1;              // keep the likeliest that together reach this; always one
  uint64_t seed = 1;

  int64_t min_tokens = 0;   // no stop id is drawn, and no stop string sought, before so many
  int64_t max_tokens = -1;  // -1: to the end of the context
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids = {};  // beside eos
  std::vector<std::string> stop = {};  // strings that end the text, and are not part of it
  int64_t logprobs =
      -1;  // likeliest tokens to give with each token's own; -1: no log-probabilities
  // The completion's log-probabilities are of the logits over the temperature, as they are drawn
  // from, by the kernel that training takes them with; no likeliest ones beside them.
  bool logprobs_at_temperature = false;

  void check(int64_t vocab) const;  // an error names the field
  // Whether a row of logits is all that a draw needs to know.
  bool by_row() const {
    return logit_bias.empty() && repetition_penalty == 1 && presence_penalty == 0 &&
           frequency_penalty == 0;
  }
};

// Log-probabilities are those of the model: log-softmax of its logits (after its own softcap),
// before any control above. A token in `top` has the same bits there as when it is the token
// itself.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top =
      {};  // likeliest first, lowest ids first among equals
};
// What the loss of training takes a row's log-probabilities from: -(log + (max - x)).
struct LogSum {
  float max, log;  // the largest logit, and the logarithm of the sum of exp(x - max)
};
// Without a LogSum it is computed here, in double.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int64_t top,
                           std::optional<LogSum> = {});

// A uniform number in [0, 1) for a token of a sequence, and its digits: 64 bits after the point.
uint64_t sampling_bits(uint64_t seed, uint32_t sample, uint64_t position);
double sampling_uniform(uint64_t seed, uint32_t sample, uint64_t position);

class Sampler {
 public:
  // `spec` must outlive the sampler. `sample` tells the samples of one request apart.
  Sampler(const SamplingSpec& spec, std::span<const int32_t> prompt, uint32_t sample);

  // A token that may be drawn.
  struct Choice {
    int32_t token;
    double logit;   // after bias, penalties and temperature; greedy: before temperature
    double weight;  // in proportion to its probability
  };
  // What is left of the distribution after every control, by ascending id. Valid until the next
  // call. Tokens of `barred` cannot be drawn.
  std::span<const Choice> choices(std::span<const float> logits,
                                  std::span<const int32_t> barred = {});
  // The token for `position` of the sequence.
  int32_t draw(std::span<const float> logits, uint64_t position,
               std::span<const int32_t> barred = {});
  // Logits after bias and penalties alone.
  std::span<const double> adjusted(std::span<const float> logits,
                                   std::span<const int32_t> barred = {});
  // Counts a token of the completion.
  void accept(int32_t token);

 private:
  const SamplingSpec* spec_;
  uint32_t sample_;
  std::unordered_map<int32_t, int64_t> seen_;  // times in the completion; 0: only the prompt has it
  std::vector<double> logits_;
  std::vector<Choice> choices_;
};

}  // namespace hearth
