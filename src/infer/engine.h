// Engine: requests in, completions out, several sequences at a time. A sequence's tokens do not
// depend on the others of its batch. Here each one has a fixed slot of a contiguous KV cache.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/params.h"
#include "infer/sampler.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace hearth {

struct Request {
  std::vector<int32_t> prompt = {};  // empty: bos
  SamplingSpec sampling = {};
  int n = 1;  // completions; with beams, the best so many
  // More than 1: beam search. Of the sampling controls it takes the logit bias and the penalties.
  int beams = 1;
  float length_penalty = 1;  // beams are ranked by log-probability / tokens^length_penalty
  bool prompt_logprobs = false;
};

struct Completion {
  std::vector<int32_t>
      tokens;        // all that were made: a stop id, or those of a stop string, included
  std::string text;  // without them; empty when the engine has no tokenizer
  std::vector<TokenLogprob> logprobs;         // of tokens, when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // of prompt[1..]: nothing predicts the first
  std::string finish_reason;                  // stop | length | cancelled
  double score = 0;                           // beam search: what it was ranked by
  double ttft_ms = 0;                         // from the call of run() to the first token
  double tokens_per_s = 0;  // after the first token; of a single token: 1 / time to it
};

// Told for each token as it is made; beam search tells of its tokens when it has ended.
struct TokenEvent {
  size_t request;
  int sample;
  int32_t token;
  const TokenLogprob* logprob;     // null unless asked for
  std::string_view text;           // what is certain now: may be empty, may span tokens
  std::string_view finish_reason;  // empty until the sequence's last event
};

struct EngineSpec {
  int64_t max_batch = 8;  // sequences at a time
  int64_t context = 0;    // prompt and completion together; 0: the model's
  int64_t prefill_chunk = 256;
  const Tokenizer* tokenizer = nullptr;  // for text and stop strings; must outlive the engine
  int32_t bos = -1, eos = -1;            // -1: the tokenizer's
};

struct EngineStats {
  int64_t prompt_tokens = 0;  // run through the model: shared prompts count once
  int64_t generated_tokens = 0;
  int64_t decode_steps = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t cache_bytes = 0;
};

class Engine {
 public:
  Engine(const ModelConfig&, ParamStore&, Backend&, EngineSpec = {});
  ~Engine();

  // Completions of each request, n apiece. All requests are checked before anything runs. When
  // on_token returns false, every sequence of that event's request ends there as "cancelled".
  std::vector<std::vector<Completion>> run(
      std::span<const Request>, const std::function<bool(const TokenEvent&)>& on_token = {});
  EngineStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hearth
