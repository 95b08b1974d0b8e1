// Job: a checked request. Generation: one completion of it while it is generated.
#pragma once

#include <optional>

#include "infer/engine.h"
#include "infer/stop_text.h"
#include "sys/clock.h"

namespace hearth::inline infer {

struct Job {
  Request request = {};  // its prompt has at least one token
  std::vector<int32_t> stop_ids = {};
  int64_t limit = 0;  // maximum tokens of a completion
  int64_t vocab = 0;  // tokens that may be sampled
  // Of these, a bit per token with a text; empty: all have one, or a rollout samples as it trains.
  std::span<const uint32_t> usable = {};
  const Tokenizer* tokenizer = nullptr;
  Clock::time_point start = {};

  const SamplingSpec& sampling() const { return request.sampling; }
  int64_t prompt_size() const { return int64_t(request.prompt.size()); }
  // The tokens that may come next without a constraint; a token that stops the text needs no text.
  AllowedTokens usable_tokens() const { return {usable, stop_ids, true}; }
};

// The token's log-probability under these logits, if the job requests it.
std::optional<TokenLogprob> wanted_logprob(const Job&, std::span<const float> logits,
                                           std::optional<LogSum>, int32_t token);

class Generation {
 public:
  Generation(const Job&, int sample);  // the job must outlive it

  // Samples the next token with the job's sampling controls.
  int32_t draw(std::span<const float> logits);
  // How a device samples the token `ahead` places after the next one; none: the host must.
  std::optional<SampleControls> controls(int64_t ahead) const;
  // Tokens that must not come next.
  std::span<const int32_t> barred() const;
  // Tokens that may come next; waits for the mask of the constraint. Valid until the next token.
  AllowedTokens allowed();
  bool masked() const { return cursor_ || !job_->usable.empty(); }  // they are not all tokens
  // The same if they do not depend on the text; else none are named.
  AllowedTokens always_allowed() const { return cursor_ ? AllowedTokens{} : job_->usable_tokens(); }
  void note_start();  // the first step with this completion begins
  // Appends a token; returns the text that is final now.
  std::string append(int32_t token, std::optional<TokenLogprob>);
  bool finished() const { return !completion.finish_reason.empty(); }
  void finish(const char* reason);
  int64_t size() const { return job_->prompt_size() + int64_t(completion.tokens.size()); }
  int64_t room() const { return job_->limit - int64_t(completion.tokens.size()); }
  // Whether prompt log-probabilities beyond the first `scored` are requested.
  bool scores_prompt(int64_t scored) const {
    return job_->request.prompt_logprobs && scored < job_->prompt_size() - 1;
  }

  Sampler sampler;
  Completion completion;

 private:
  const Job* job_;
  uint32_t sample_;
  TokenText text_;
  std::optional<ConstraintCursor> cursor_;
  std::vector<uint32_t> unstopped_;  // the last mask without the tokens that stop the text
  Clock::time_point first_;
};

}  // namespace hearth::inline infer
