// Engine: turns requests into completions, any number at a time. Sequences share one paged KV cache
// and every model step; a sequence's tokens do not depend on the others.
#pragma once

#include <array>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/fp8.h"
#include "core/params.h"
#include "grammar/constraint.h"
#include "infer/sampler.h"
#include "model/config.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline infer {

struct Request {
  std::vector<int32_t> prompt = {};  // empty: bos
  SamplingSpec sampling = {};
  int n = 1;  // completions; with beams, the best n
  // More than 1: beam search, which uses only the logit bias and the penalties of the sampling
  // controls.
  int beams = 1;
  float length_penalty = 1;  // rank beams by log-probability / tokens^length_penalty
  bool prompt_logprobs = false;
  std::shared_ptr<Constraint> constraint = {};  // what the text must match; null: anything
};

struct Completion {
  std::vector<int32_t> tokens;         // all generated tokens, including a stop id or stop string
  std::string text;                    // without the stop; empty if the engine has no tokenizer
  std::vector<TokenLogprob> logprobs;  // of the tokens, on request
  std::vector<TokenLogprob> prompt_logprobs;  // of prompt[1..]; the first token is not predicted
  std::string finish_reason;                  // stop | length | cancelled
  bool matches = true;                        // the constraint, if there is one
  double score = 0;                           // beam search: the ranking score
  double queue_ms = -1;     // from submit() or run() to the first step; -1: there was none
  double ttft_ms = 0;       // from submit() or run() to the first token
  double tokens_per_s = 0;  // after the first token; for one token 1 / its time
};

// Sent for each token when it is generated; beam search sends its tokens at the end.
struct TokenEvent {
  uint64_t request;  // its id, or its index in run()
  int sample;
  int32_t token;
  const TokenLogprob* logprob;     // null unless requested
  std::string_view text;           // text that is final now: may be empty, may span tokens
  std::string_view finish_reason;  // empty before the sequence's last event
};
using OnToken = std::function<bool(const TokenEvent&)>;  // false: cancel the request

// Receives the events of a request, on the thread that steps the engine.
struct Listener {
  OnToken token = {};
  // The last call: n completions (a beam search may have fewer), or the error.
  std::function<void(std::vector<Completion>, std::exception_ptr)> done = {};
};

// Where draft tokens come from: earlier text of the sequence, or the model's modules of multi-token
// prediction.
enum class Draft : uint8_t { lookup, mtp };
inline std::span<const std::string_view> names_of(Draft) {
  static constexpr auto names = std::to_array<std::string_view>({"lookup", "mtp"});
  return names;
}

struct EngineSpec {
  int64_t max_batch = 8;  // maximum sequences per step
  // Maximum tokens of prompt and completion; 0: the model's context, or as much as memory allows.
  int64_t context = 0;
  int64_t step_tokens = 512;  // maximum tokens per step, prompts and completions together
  // Seconds that a step with prompts should take at most while other sequences decode: it takes
  // fewer tokens of them if measured steps were slower. 0: as many as fit, so that the number of
  // steps does not depend on time. Tokens depend on it only as far as on the batch.
  double interval = 0;
  // Maximum draft tokens per sequence and step; 0: none, or as many as the model has modules.
  int64_t speculate = 0;
  Draft draft = Draft::lookup;
  bool reuse_prefixes = true;
  // Memory of a model step and the KV cache; 0: MemoryBudget::for_engine().
  int64_t memory_bytes = 0;
  // KV cache size; 0: what the memory leaves beside a model step, at most twice what a batch needs.
  int64_t cache_bytes = 0;
  // The end of the error of a cache that holds no sequence of the whole context.
  std::string_view remedy = "provide more memory or use a shorter --context";
  CacheFormat cache = CacheFormat::plain;  // fp8: half the memory of bf16, less accurate
  // Latent attention: decode with the bits of training (slower). Other models always do.
  bool exact = false;
  const Tokenizer* tokenizer = nullptr;  // for text and stop strings; must outlive the engine
  int32_t bos = -1, eos = -1;            // -1: the tokenizer's
};

struct DraftCount {
  int64_t tried = 0, accepted = 0;
};

struct EngineStats {
  int64_t prompt_tokens = 0;  // computed by the model; excludes tokens found in the cache
  int64_t generated_tokens = 0;
  int64_t steps = 0, preemptions = 0;
  int64_t followed = 0;                 // steps launched before the host saw the previous tokens
  int64_t reused_tokens = 0;            // prompt tokens found in the cache
  int64_t prompt_rows = 0;              // tokens of prompts that the last step could take
  int64_t drafted = 0, accepted = 0;    // draft tokens
  std::vector<DraftCount> drafts = {};  // the first, second, .. token of drafts
  int64_t running = 0, waiting = 0;     // sequences, currently
  int64_t blocks = 0, used_blocks = 0;  // of the cache, currently
  int64_t cache_bytes = 0;
  std::string_view cache = "";  // element type: f32, bf16, f16 or fp8
  double seconds = 0;           // total time of steps
};

// Wakes the thread that steps engines when one of them has got something to do.
class WorkBell {
 public:
  void ring();
  uint64_t rung() const;  // how often
  // Waits until it has been rung more than `seen` times, or for the stop token.
  void wait(uint64_t seen, std::stop_token);

 private:
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  uint64_t rung_ = 0;
};

class Engine {
 public:
  Engine(const ModelConfig&, ParamStore&, Backend&, EngineSpec = {});
  ~Engine();

  // The most memory that an engine with this spec and weights of this type could use.
  static int64_t wanted_bytes(const ModelConfig&, DType, const EngineSpec&);

  // Thread-safe. Throws for a request that cannot run; otherwise it waits for step().
  uint64_t submit(Request, Listener);
  void cancel(uint64_t id);  // ends as "cancelled" in the next step, unless already finished
  void cancel_all();
  EngineStats stats() const;
  int64_t context() const;  // actual maximum tokens of prompt and completion
  // The error of the last step on one line; empty if it succeeded. A call without work is not a
  // step.
  std::string failure() const;

  // Called by one thread at a time. Runs one forward pass over the pending work; false: there was
  // none. An error of a request goes to its listener; an error of the model ends all requests and
  // is thrown.
  bool step();
  // Call before the first step on a thread that did not create the backend.
  void enter_thread();
  // Rung for every request and cancellation from now on.
  void set_bell(std::shared_ptr<WorkBell>);
  // Drops cached prefixes: the weights have changed.
  void forget();

  // Completions of each request, n per request, by steps on this thread. All requests are checked
  // before anything runs. If on_token returns false, all sequences of that request end as
  // "cancelled".
  std::vector<std::vector<Completion>> run(std::span<const Request>, const OnToken& on_token = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Steps engines of one backend on its own thread while there is work, in turn, so that each of them
// advances and only one uses the backend. Prints errors of steps on stderr, each message once.
class EngineThread {
 public:
  explicit EngineThread(Engine& engine) : EngineThread(std::vector{&engine}) {}
  explicit EngineThread(std::vector<Engine*>);
  ~EngineThread();  // cancels running requests

 private:
  void run(std::stop_token);
  bool step(Engine&);
  void tell(const std::string& trouble);

  const std::vector<Engine*> engines_;
  const std::shared_ptr<WorkBell> bell_;
  std::set<std::string> told_;
  std::jthread thread_;  // last, because it uses other members
};

}  // namespace hearth::inline infer
