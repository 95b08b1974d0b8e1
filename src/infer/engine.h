// Engine: requests in, completions out, any number at a time. Sequences share one paged KV cache
// and every step of the model; a sequence's tokens do not depend on the others.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/fp8.h"
#include "core/params.h"
#include "infer/sampler.h"
#include "model/config.h"
#include "text/tokenizer/tokenizer.h"

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
  double ttft_ms = 0;                         // from submit() or run() to the first token
  double tokens_per_s = 0;  // after the first token; of a single token: 1 / time to it
};

// Told for each token as it is made; beam search tells of its tokens when it has ended.
struct TokenEvent {
  uint64_t request;  // its id, or its place in run()
  int sample;
  int32_t token;
  const TokenLogprob* logprob;     // null unless asked for
  std::string_view text;           // what is certain now: may be empty, may span tokens
  std::string_view finish_reason;  // empty until the sequence's last event
};
using OnToken = std::function<bool(const TokenEvent&)>;  // false: cancel the request

// Who waits for a request; called by the thread that steps the engine.
struct Listener {
  OnToken token = {};
  // The last call: n completions, fewer of a beam search, or what went wrong.
  std::function<void(std::vector<Completion>, std::exception_ptr)> done = {};
};

struct EngineSpec {
  int64_t max_batch = 8;  // sequences in a step
  // Prompt and completion together; 0: the model's, or as much of it as memory holds.
  int64_t context = 0;
  int64_t step_tokens = 512;  // most tokens in a step, of prompts and completions together
  int64_t speculate = 0;      // most guesses a sequence has verified in a step; 0: none
  bool reuse_prefixes = true;
  int64_t cache_bytes =
      0;  // of the KV cache; 0: memory_share, and at most twice what a batch fills
  CacheFormat cache = CacheFormat::plain;  // fp8: half of bf16's, at some accuracy
  double memory_share = 0;  // of the free memory; 0: 0.9 of a card's, half of the machine's
  const Tokenizer* tokenizer = nullptr;  // for text and stop strings; must outlive the engine
  int32_t bos = -1, eos = -1;            // -1: the tokenizer's
};

struct EngineStats {
  int64_t prompt_tokens = 0;  // run through the model: those found in the cache are not
  int64_t generated_tokens = 0;
  int64_t steps = 0, preemptions = 0;
  int64_t followed = 0;  // steps launched before the host had seen the tokens of the one before
  int64_t reused_tokens = 0;            // of prompts, found in the cache
  int64_t drafted = 0, accepted = 0;    // guesses
  int64_t running = 0, waiting = 0;     // sequences, now
  int64_t blocks = 0, used_blocks = 0;  // of the cache, now
  int64_t cache_bytes = 0;
  std::string_view cache = "";  // what its numbers are: f32, bf16, f16 or fp8
  double seconds = 0;           // of steps
};

class Engine {
 public:
  Engine(const ModelConfig&, ParamStore&, Backend&, EngineSpec = {});
  ~Engine();

  // By any thread. A request that cannot run is an error here; otherwise it waits for step().
  uint64_t submit(Request, Listener);
  void cancel(uint64_t id);  // it ends as "cancelled" in the next step; one that has ended stays so
  void cancel_all();
  EngineStats stats() const;
  int64_t context() const;  // in use: tokens of a prompt and its completion
  // What the last step threw, on one line; empty when it went well. A step without work is none.
  std::string failure() const;

  // By one thread at a time. One forward pass over what there is to do; false: there was nothing.
  // What goes wrong with a request is told to its listener; what goes wrong with the model ends all
  // of them and is thrown.
  bool step();
  // Before the first step of a thread that did not make the backend.
  void enter_thread();
  // Waits for a request or a cancellation, or the end of waiting.
  void wait(std::stop_token);
  // Forgets cached prefixes: the weights have changed.
  void forget();

  // Completions of each request, n apiece, by steps of this thread. All requests are checked before
  // anything runs. When on_token returns false, every sequence of that event's request ends there
  // as "cancelled".
  std::vector<std::vector<Completion>> run(std::span<const Request>, const OnToken& on_token = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// An engine stepped by a thread of its own while there is work. What steps throw it says on stderr,
// the same words once.
class EngineThread {
 public:
  explicit EngineThread(Engine&);
  ~EngineThread();  // cancels what runs

 private:
  void run(std::stop_token);
  void tell(const std::string& trouble);

  Engine& engine_;
  std::set<std::string> told_;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace hearth
