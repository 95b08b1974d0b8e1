// Sequence: one sample of a request, with its tokens and cache blocks, from its start to its end.
#pragma once

#include "infer/block_pool.h"
#include "infer/generation.h"

namespace hearth::inline infer {

struct ActiveRequest;  // a running request: see engine_loop.h

// One sequence that occupies, or waits for, a slot of the engine.
struct Sequence {
  ActiveRequest* request;
  int sample;
  Generation generation;
  std::vector<int32_t> tokens;  // prompt and completion so far
  Pages pages = {};
  std::vector<float> logits = {};      // beam search: kept until all beams have theirs
  std::optional<LogSum> sum = {};      // log-sum of the logits
  int64_t guesses = 0;                 // number of tokens to draft next
  int64_t read = 0;                    // tokens that the modules which draft have read
  std::vector<int32_t> proposal = {};  // of the modules, for the tokens after the last one
  bool ended = false;
  int in_flight = 0;  // launches in flight that contain this sequence
  // Samples whose first tokens the device draws from the logits of the last prompt token, each from
  // a copy of that row; 1 if there is one sample, or the host draws.
  int64_t first_draws = 1;

  // For the current step:
  int64_t rows = 0;                 // known tokens to feed, from pages.cached on
  std::vector<int32_t> draft = {};  // draft tokens fed after them

  int64_t size() const { return int64_t(tokens.size()); }
  // Tokens to feed before the next one can be sampled.
  int64_t due() const { return logits.empty() ? size() - pages.cached : 0; }
  // The first token whose logits are needed: the last one, or the next unscored prompt token.
  int64_t first_wanted() const {
    // The first token is not predicted, and the last one's logits are wanted anyway.
    const int64_t scored = int64_t(generation.completion.prompt_logprobs.size());
    return generation.scores_prompt(scored) ? scored : size() - 1;
  }
  // Rows of logits of a step that feeds `n` known tokens.
  int64_t logits_of(int64_t n) const {
    const int64_t wanted = pages.cached + n - std::max(pages.cached, first_wanted());
    if (wanted <= 0) return 0;
    return pages.cached + n == size() ? wanted - 1 + first_draws : wanted;
  }
};

}  // namespace hearth::inline infer
