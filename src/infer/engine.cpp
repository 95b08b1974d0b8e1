#include "infer/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/memory_budget.h"
#include "infer/engine_loop.h"
#include "model/layer_spec.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline infer {

namespace {

// Checks the spec and fills in values from the model; tokenizer and memory come later.
EngineSpec completed(EngineSpec spec, const ModelConfig& config) {
  if (spec.max_batch < 1 || spec.step_tokens < 1 || spec.context < 0 ||
      spec.context > config.context || spec.speculate < 0)
    fail("engine",
         "expected a batch, tokens per step and a context of at least 1 (context up to {}), got "
         "{}, {} and {}",
         config.context, spec.max_batch, spec.step_tokens, spec.context);
  if (!(spec.interval >= 0))
    fail("engine", "expected an interval of 0 or more seconds, got {}", spec.interval);
  if (config.mla && spec.cache != CacheFormat::plain)
    fail("engine", "a cache of latents (kv_latent) cannot be in fp8: use a plain one");
  if (spec.draft == Draft::mtp && config.mtp == 0)
    fail_usage("--draft",
               "expected a model with modules of multi-token prediction (mtp), got one "
               "without: use --draft lookup");
  if (spec.draft == Draft::mtp && spec.speculate == 0) spec.speculate = config.mtp;
  // Every sequence of a batch must be able to continue in every step.
  spec.step_tokens = std::max(spec.step_tokens, spec.max_batch);
  if (spec.tokenizer && spec.bos < 0) spec.bos = spec.tokenizer->bos();
  if (spec.tokenizer && spec.eos < 0) spec.eos = spec.tokenizer->eos();
  return spec;
}

// Ids up to the last one that has a text.
int64_t drawable(const ModelConfig& c, const EngineSpec& s) {
  return s.tokenizer ? std::min<int64_t>(c.vocab, s.tokenizer->vocab_size()) : c.vocab;
}

// A bit per id below `vocab` that has a text; empty: all of them have one.
std::vector<uint32_t> usable_tokens(const Tokenizer* t, int64_t vocab) {
  if (!t) return {};
  std::vector<uint32_t> bits(size_t(vocab + 31) / 32, 0);
  int64_t count = 0;
  for (int32_t id = 0; id < vocab; ++id)
    if (t->has(id)) bits[size_t(id) / 32] |= 1u << id % 32, ++count;
  return count < vocab ? bits : std::vector<uint32_t>();
}

// Modules that draft: those beyond the longest draft would only cost time.
int64_t drafting_modules(const ModelConfig& c, const EngineSpec& s) {
  return s.draft == Draft::mtp ? std::min(c.mtp, s.speculate) : 0;
}

// How many tokens before the next one attention reads; 0: all. Modules read some of them again.
int64_t attended(const ModelConfig& c, const EngineSpec& s) {
  const int64_t window = widest_window(c), modules = drafting_modules(c, s);
  return window && modules ? window + 1 + s.speculate + modules : window;
}

// Blocks needed by the longest sequence.
int64_t least_blocks(const ModelConfig& config, const EngineSpec& s) {
  const int64_t least = blocks_for(s.context), window = attended(config, s);
  return window ? std::min(least, blocks_for(window + s.step_tokens) + 1) : least;
}

// The cache gets the memory that a model step leaves of the budget, which may be too little.
RunnerSpec runner_spec(const ModelConfig& config, DType dtype, MemoryBudget budget,
                       const EngineSpec& s) {
  RunnerSpec r{.rows = s.step_tokens,
               .logits = std::max(s.max_batch, std::min<int64_t>(s.step_tokens, 256)),
               .sequences = s.max_batch,
               .context = s.context,
               .cache = s.cache,
               .exact = s.exact,
               .vocab = drawable(config, s),
               .drafts = s.speculate,
               .modules = drafting_modules(config, s)};
  const int64_t block = Runner::block_bytes(config, dtype, s.cache, r.modules);
  if (s.cache_bytes) {
    r.blocks = s.cache_bytes / block;
  } else {
    budget.reserve("model step", Runner::step_bytes(config, dtype, r));
    r.blocks = std::min(budget.left() / block, 2 * s.max_batch * blocks_for(s.context));
  }
  return r;
}

// Without a requested context: the model's, halved until one sequence fits in memory, because a
// config may promise millions of tokens. A very short context is an error.
EngineSpec with_context(EngineSpec s, const ModelConfig& config, DType dtype,
                        const MemoryBudget& budget) {
  constexpr int64_t shortest = 4096;
  if (s.context) return s;
  s.context = config.context;
  while (s.context > shortest &&
         runner_spec(config, dtype, budget, s).blocks < least_blocks(config, s))
    s.context = std::max(shortest, s.context / 2);
  return s;
}

// Rounds to what is printed: up for what is needed, down for what there is.
double gib_up(int64_t bytes) { return std::ceil(double(bytes) / (1 << 30) * 100) / 100; }
double gib_down(int64_t bytes) { return std::floor(double(bytes) / (1 << 30) * 100) / 100; }

RunnerSpec checked_spec(const ModelConfig& config, DType dtype, MemoryBudget budget,
                        const EngineSpec& s, int64_t free_bytes) {
  if (s.cache_bytes > free_bytes)
    fail("engine",
         "expected a KV cache within the {:.2f} GiB of free memory, got {:.2f} GiB: use a smaller "
         "--cache-gib",
         gib_down(free_bytes), gib_up(s.cache_bytes));
  const RunnerSpec r = runner_spec(config, dtype, budget, s);
  const int64_t block = Runner::block_bytes(config, dtype, s.cache, r.modules);
  const int64_t least = least_blocks(config, s);
  if (r.blocks >= least) return r;
  budget.reserve("model step", Runner::step_bytes(config, dtype, r));
  fail("engine",
       "expected a KV cache of at least {:.2f} GiB for a context of {} tokens, got {:.2f} GiB{}: "
       "{}",
       gib_up(least * block), s.context,
       gib_down(s.cache_bytes ? s.cache_bytes : std::max<int64_t>(budget.left(), 0)),
       s.cache_bytes ? "" : fmt::format(" ({})", budget.describe()), s.remedy);
}

std::string reason_of(const std::exception_ptr& error) {
  std::string reason = "an unknown exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) { reason = e.what(); } catch (...) {
  }
  std::ranges::replace(reason, '\n', ' ');
  return reason;
}

constexpr size_t most_told = 64;  // different messages; an unlimited log could fill the disk

}  // namespace

struct Engine::State {
  State(const ModelConfig& config, ParamStore& params, Backend& backend, const EngineSpec& s)
      : backend(backend),
        budget(s.memory_bytes ? MemoryBudget(s.memory_bytes, backend.has_host_offload())
                              : MemoryBudget::for_engine(backend)),
        spec(with_context(completed(s, config), config, params.dtype(), budget)),
        shape(checked_spec(config, params.dtype(), budget, spec, backend.free_bytes())),
        usable(usable_tokens(spec.tokenizer, shape.vocab)),
        loop(config, params, backend, shape,
             {.sequences = spec.max_batch,
              .rows = shape.rows,
              .logits = shape.logits,
              .drafts = spec.speculate,
              .window = attended(config, spec),
              .reuse = spec.reuse_prefixes,
              .proposed = shape.modules > 0,
              .interval = spec.interval}),
        shared(loop.stats()) {}

  void check(const Request&) const;
  Job job(const Request&, Clock::time_point start) const;
  uint64_t enqueue(Job, Listener);
  void take_inbox();
  bool step();
  void fail_all(const std::exception_ptr&);

  Backend& backend;
  const MemoryBudget budget;  // before the engine has allocated anything
  const EngineSpec spec;
  const RunnerSpec shape;
  const std::vector<uint32_t> usable;  // see Job
  EngineLoop loop;

  // Input from other threads for the next step, and state of the last step that they may read.
  mutable std::mutex mutex;
  std::shared_ptr<WorkBell> bell;  // may be null
  std::vector<std::unique_ptr<ActiveRequest>> inbox;
  std::vector<uint64_t> cancelled;
  bool cancels_all = false;
  uint64_t ids = 0;
  EngineStats shared;
  std::string failure;  // error of the last step
};

// --- requests ---

void Engine::State::check(const Request& r) const {
  r.sampling.check(shape.vocab);
  if (r.prompt.empty() && spec.bos < 0)
    fail_usage("prompt", "expected at least one token: the model has no bos token to start with");
  for (const int32_t id : r.prompt)
    if (id < 0 || id >= shape.vocab)
      fail_usage("prompt", "expected token ids below {}, got {}", shape.vocab, id);
  if (int64_t(r.prompt.size()) > spec.context)
    fail_usage("prompt", "expected at most {} tokens, got {}", spec.context, r.prompt.size());
  if (r.n < 1) fail_usage("n", "expected at least 1, got {}", r.n);
  if (r.beams < 1 || r.beams > spec.max_batch)
    fail_usage("beams", "expected 1 to {} (the maximum batch), got {}", spec.max_batch, r.beams);
  if (r.beams > 1 && r.n > r.beams)
    fail_usage("n", "expected at most {} (the number of beams), got {}", r.beams, r.n);
  if (!std::isfinite(r.length_penalty))
    fail_usage("length_penalty", "expected a finite number, got {}", r.length_penalty);
  if (r.constraint && !spec.tokenizer) fail_usage("constraint", "a constraint needs a tokenizer");
  if (r.constraint && r.beams > 1)
    fail_usage("beams", "expected 1 with a constraint, got {}", r.beams);
  if (!r.sampling.stop.empty() && !spec.tokenizer)
    fail_usage("stop", "stop strings need a tokenizer, got {} of them", r.sampling.stop.size());
}

Job Engine::State::job(const Request& r, Clock::time_point start) const {
  check(r);
  Job j{.request = r,
        .stop_ids = r.sampling.stop_ids,
        .vocab = shape.vocab,
        .usable = r.sampling.logprobs_at_temperature ? std::span<const uint32_t>() : usable,
        .tokenizer = spec.tokenizer,
        .start = start};
  if (r.prompt.empty()) j.request.prompt.push_back(spec.bos);
  if (spec.eos >= 0 && spec.eos < shape.vocab && !r.sampling.ignore_eos)
    j.stop_ids.push_back(spec.eos);
  j.limit = spec.context - j.prompt_size();
  if (r.sampling.max_tokens >= 0) j.limit = std::min(j.limit, r.sampling.max_tokens);
  return j;
}

uint64_t Engine::State::enqueue(Job job, Listener listener) {
  const std::lock_guard lock(mutex);
  const uint64_t id = ++ids;
  inbox.push_back(std::make_unique<ActiveRequest>(id, std::move(job), std::move(listener)));
  if (bell) bell->ring();
  return id;
}

void Engine::State::take_inbox() {
  std::vector<std::unique_ptr<ActiveRequest>> requests;
  std::vector<uint64_t> ends;
  bool all = false;
  {
    const std::lock_guard lock(mutex);
    requests.swap(inbox);
    ends.swap(cancelled);
    std::swap(all, cancels_all);
  }
  // A listener that throws must not keep those behind it from being told.
  std::exception_ptr thrown;
  for (auto& request : requests) {
    try {
      loop.start(std::move(request));
    } catch (...) { thrown = std::current_exception(); }
  }
  if (thrown) std::rethrow_exception(thrown);
  for (const uint64_t id : ends) loop.cancel(id);
  if (all) loop.cancel_all();
}

bool Engine::State::step() {
  try {
    take_inbox();
    const bool worked = loop.step();
    const std::lock_guard lock(mutex);
    shared = loop.stats();
    if (worked) failure.clear();
    return worked;
  } catch (...) {
    fail_all(std::current_exception());
    throw;
  }
}

void Engine::State::fail_all(const std::exception_ptr& error) {
  std::string reason = reason_of(error);
  {
    const std::lock_guard lock(mutex);
    failure = std::move(reason);  // set first, so that a notified listener finds it
  }
  loop.fail_all(error);
  const std::lock_guard lock(mutex);
  shared = loop.stats();
}

// --- the front ---

int64_t Engine::wanted_bytes(const ModelConfig& model, DType dtype, const EngineSpec& wanted) {
  const ModelConfig config = model.resolve();
  EngineSpec s = completed(wanted, config);
  if (!s.context) s.context = config.context;
  const RunnerSpec r = runner_spec(config, dtype, MemoryBudget(INT64_MAX), s);
  return Runner::step_bytes(config, dtype, r) +
         r.blocks * Runner::block_bytes(config, dtype, s.cache, r.modules);
}

Engine::Engine(const ModelConfig& config, ParamStore& params, Backend& backend, EngineSpec spec)
    : state_(std::make_unique<State>(config.resolve(), params, backend, spec)) {}
Engine::~Engine() = default;

uint64_t Engine::submit(Request r, Listener listener) {
  return state_->enqueue(state_->job(r, Clock::now()), std::move(listener));
}

void Engine::cancel(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled.push_back(id);
  if (state_->bell) state_->bell->ring();
}

void Engine::cancel_all() {
  const std::lock_guard lock(state_->mutex);
  state_->cancels_all = true;
  if (state_->bell) state_->bell->ring();
}

int64_t Engine::context() const { return state_->spec.context; }

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->shared;
}

std::string Engine::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

bool Engine::step() { return state_->step(); }

void Engine::enter_thread() { state_->backend.enter_thread(); }

void Engine::set_bell(std::shared_ptr<WorkBell> bell) {
  const std::lock_guard lock(state_->mutex);
  state_->bell = std::move(bell);
}

void Engine::forget() { state_->loop.forget(); }

std::vector<std::vector<Completion>> Engine::run(std::span<const Request> requests,
                                                 const OnToken& on_token) {
  const auto start = Clock::now();
  std::vector<Job> jobs;
  for (const Request& r : requests) jobs.push_back(state_->job(r, start));
  std::vector<std::vector<Completion>> results(requests.size());
  size_t left = requests.size();
  std::exception_ptr error;
  for (size_t i = 0; i < jobs.size(); ++i) {
    Listener l;
    if (on_token)
      l.token = [&on_token, i](TokenEvent e) {
        e.request = i;
        return on_token(e);
      };
    l.done = [&, i](std::vector<Completion> all, std::exception_ptr e) {
      results[i] = std::move(all);
      if (e && !error) error = e;
      --left;
    };
    state_->enqueue(std::move(jobs[i]), std::move(l));
  }
  while (left > 0) step();
  if (error) std::rethrow_exception(error);
  return results;
}

// --- threads ---

void WorkBell::ring() {
  const std::lock_guard lock(mutex_);
  ++rung_;
  changed_.notify_all();
}

uint64_t WorkBell::rung() const {
  const std::lock_guard lock(mutex_);
  return rung_;
}

void WorkBell::wait(uint64_t seen, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, stop, [&] { return rung_ > seen; });
}

EngineThread::EngineThread(std::vector<Engine*> engines)
    : engines_(std::move(engines)),
      bell_(std::make_shared<WorkBell>()),
      thread_([this](std::stop_token stop) { run(stop); }) {}

void EngineThread::run(std::stop_token stop) {
  for (Engine* engine : engines_) engine->set_bell(bell_);
  try {
    engines_.front()->enter_thread();
  } catch (...) { tell(reason_of(std::current_exception())); }
  while (!stop.stop_requested()) {
    // Read first: what arrives during the steps is then seen by the wait.
    const uint64_t seen = bell_->rung();
    bool worked = false;
    for (Engine* engine : engines_) worked |= step(*engine);
    if (!worked) bell_->wait(seen, stop);
  }
}

bool EngineThread::step(Engine& engine) {
  try {
    return engine.step();
  } catch (...) {
    // Every listener was notified; the next request may succeed.
    tell(reason_of(std::current_exception()));
    return true;
  }
}

void EngineThread::tell(const std::string& trouble) {
  if (told_.size() >= most_told || !told_.insert(trouble).second) return;
  say("hearth: the engine failed: {}\n", trouble);
}

EngineThread::~EngineThread() {
  thread_.request_stop();
  thread_.join();
  for (Engine* engine : engines_) {
    engine->set_bell(nullptr);
    engine->cancel_all();
    engine->step();
  }
}

}  // namespace hearth::inline infer
