#include "infer/engine.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "infer/batch.h"
#include "infer/beam.h"

namespace hearth {
namespace {

EngineSpec completed(EngineSpec spec, const ModelConfig& config) {
  if (spec.context == 0) spec.context = config.context;
  if (spec.tokenizer && spec.bos < 0) spec.bos = spec.tokenizer->bos();
  if (spec.tokenizer && spec.eos < 0) spec.eos = spec.tokenizer->eos();
  return spec;
}

}  // namespace

struct Engine::State {
  State(const ModelConfig& config, ParamStore& params, Backend& backend, const EngineSpec& s)
      : spec(completed(s, config)),
        vocab(spec.tokenizer ? std::min<int64_t>(config.vocab, spec.tokenizer->vocab_size())
                             : config.vocab),
        runner(config, params, backend,
               {.slots = spec.max_batch, .context = spec.context, .chunk = spec.prefill_chunk}) {
    stats.cache_bytes = runner.cache_bytes();
  }
  Job job(const Request&, size_t index, Clock::time_point start) const;
  void check(const Request&) const;

  EngineSpec spec;
  int64_t vocab;
  Runner runner;
  EngineStats stats;
};

void Engine::State::check(const Request& r) const {
  r.sampling.check(vocab);
  if (r.prompt.empty() && spec.bos < 0)
    fail_usage("prompt", "expected at least one token, got none, and the model has no bos token");
  for (const int32_t id : r.prompt)
    if (id < 0 || id >= vocab)
      fail_usage("prompt", "expected token ids below {}, got {}", vocab, id);
  if (int64_t(r.prompt.size()) > spec.context)
    fail_usage("prompt", "expected at most {} tokens, got {}", spec.context, r.prompt.size());
  if (r.n < 1) fail_usage("n", "expected at least 1, got {}", r.n);
  if (r.beams < 1 || r.beams > spec.max_batch)
    fail_usage("beams", "expected 1 to {}, the largest batch, got {}", spec.max_batch, r.beams);
  if (r.beams > 1 && r.n > r.beams)
    fail_usage("n", "expected at most {}, the number of beams, got {}", r.beams, r.n);
  if (!std::isfinite(r.length_penalty))
    fail_usage("length_penalty", "expected a finite number, got {}", r.length_penalty);
  if (!r.sampling.stop.empty() && !spec.tokenizer)
    fail_usage("stop", "expected no stop strings without a tokenizer, got {}",
               r.sampling.stop.size());
}

Job Engine::State::job(const Request& r, size_t index, Clock::time_point start) const {
  check(r);
  Job j{.request = &r,
        .index = index,
        .prompt = r.prompt,
        .stop_ids = r.sampling.stop_ids,
        .vocab = vocab,
        .tokenizer = spec.tokenizer,
        .start = start};
  if (j.prompt.empty()) j.prompt.push_back(spec.bos);
  if (spec.eos >= 0 && spec.eos < vocab && !r.sampling.ignore_eos) j.stop_ids.push_back(spec.eos);
  j.limit = spec.context - j.prompt_size();
  if (r.sampling.max_tokens >= 0) j.limit = std::min(j.limit, r.sampling.max_tokens);
  return j;
}

Engine::Engine(const ModelConfig& config, ParamStore& params, Backend& backend, EngineSpec spec)
    : state_(std::make_unique<State>(config, params, backend, spec)) {}
Engine::~Engine() = default;

EngineStats Engine::stats() const { return state_->stats; }

std::vector<std::vector<Completion>> Engine::run(std::span<const Request> requests,
                                                 const OnToken& on_token) {
  const auto start = Clock::now();
  std::vector<Job> sampled, searched;
  std::vector<std::vector<Completion>> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    (requests[i].beams > 1 ? searched : sampled).push_back(state_->job(requests[i], i, start));
    results[i].resize(size_t(requests[i].n));
  }
  Batch(state_->runner, state_->spec.max_batch, on_token, state_->stats, results).run(sampled);
  for (const Job& job : searched) {
    std::vector<Completion>& best = results[job.index];
    best = beam_search(state_->runner, job, state_->stats);
    for (size_t i = 0; on_token && i < best.size(); ++i) {
      const Completion& c = best[i];
      for (size_t k = 0; k < c.tokens.size(); ++k) {
        const bool last = k + 1 == c.tokens.size();
        on_token({job.index, int(i), c.tokens[k], c.logprobs.empty() ? nullptr : &c.logprobs[k],
                  last ? std::string_view(c.text) : std::string_view(),
                  last ? std::string_view(c.finish_reason) : std::string_view()});
      }
    }
  }
  return results;
}

}  // namespace hearth
