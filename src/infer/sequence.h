// Job: a request once checked. Sequence: one completion of it while it is written.
#pragma once

#include <chrono>
#include <optional>

#include "infer/engine.h"
#include "infer/runner.h"
#include "infer/stop_text.h"

namespace hearth {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Job {
  const Request* request = nullptr;
  size_t index = 0;                  // of the request in its run
  std::vector<int32_t> prompt = {};  // at least one token
  std::vector<int32_t> stop_ids = {};
  int64_t limit = 0;  // most tokens of a completion
  int64_t vocab = 0;  // tokens that may be drawn: the model's that have a text
  const Tokenizer* tokenizer = nullptr;
  Clock::time_point start = {};

  const SamplingSpec& sampling() const { return request->sampling; }
  int64_t prompt_size() const { return int64_t(prompt.size()); }
};

// The token's log-probability under these logits, when the job wants it.
std::optional<TokenLogprob> wanted_logprob(const Job&, std::span<const float> logits,
                                           int32_t token);

// A job's prompt run into a slot: the logits that follow it, and its log-probabilities if wanted.
struct Prefilled {
  std::vector<float> logits;
  std::vector<TokenLogprob> logprobs;
};
Prefilled prefill(Runner&, const Job&, int64_t slot, EngineStats&);

class Sequence {
 public:
  Sequence(const Job&, int sample);

  // Tokens that may not come next.
  std::span<const int32_t> barred() const;
  // Appends a token; the piece of text it has made certain.
  std::string append(int32_t token, std::optional<TokenLogprob>);
  bool finished() const { return !completion.finish_reason.empty(); }
  void finish(const char* reason);
  // What a decode step feeds: the last token and its position.
  int32_t last() const { return completion.tokens.back(); }
  int64_t size() const { return job_->prompt_size() + int64_t(completion.tokens.size()); }

  Sampler sampler;
  Completion completion;

 private:
  const Job* job_;
  TokenText text_;
  Clock::time_point first_;
};

}  // namespace hearth
