#include "infer/engine_loop.h"

#include <algorithm>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline infer {

EngineLoop::EngineLoop(const ModelConfig& config, ParamStore& params, Backend& backend,
                       const RunnerSpec& shape, const SchedulerSpec& spec)
    : drafts_(spec.drafts),
      logits_(spec.logits),
      runner_(config, params, backend, shape),
      pool_(shape.blocks, [this](int32_t from, int32_t to) { runner_.copy_block(from, to); }),
      scheduler_(spec, pool_) {
  if (shape.modules) modules_.emplace(shape, spec.drafts, runner_, pool_);
  stats_.drafts.resize(size_t(spec.drafts));
  stats_.blocks = shape.blocks;
  stats_.cache_bytes =
      shape.blocks * Runner::block_bytes(config, params.dtype(), shape.cache, shape.modules);
  stats_.cache =
      shape.cache == CacheFormat::plain ? to_string(params.dtype()) : to_string(shape.cache);
}

bool EngineLoop::step() {
  const auto begin = Clock::now();
  const int64_t cold = runner_.cold_launches();
  abandon_unless_wanted(next_);
  scheduler_.sweep();  // removes sequences cancelled since the last step
  std::swap(now_, next_);
  if (now_.empty()) {
    const std::span<Sequence* const> plan = scheduler_.plan();
    if (plan.empty() && !scheduler_.empty())
      fail("engine", "none of the {} active sequences can continue", scheduler_.active());
    launch(plan);
  }
  const bool works = !now_.empty();
  if (works) {
    const int64_t rows = int64_t(now_.feed.positions.size());
    if (!launch_next()) next_.clear();
    collect();
    abandon_unless_wanted(next_);
    draw_constrained(next_);
    scheduler_.sweep();
    ++stats_.steps;
    const double seconds = seconds_since(begin);
    stats_.seconds += seconds;
    if (runner_.cold_launches() == cold) scheduler_.took(rows, seconds);
  }
  ended_.clear();
  return works;
}

void EngineLoop::start(std::unique_ptr<ActiveRequest> owned) {
  ActiveRequest& r = *owned;
  requests_.emplace(r.id, std::move(owned));
  try {
    begin(r);
  } catch (...) {
    if (!requests_.contains(r.id)) throw;  // by a listener that was already notified of the end
    end(r, {}, std::current_exception());
  }
}

void EngineLoop::begin(ActiveRequest& r) {
  if (r.job.request.beams > 1) r.search = std::make_unique<BeamSearch>(r.job);
  auto seq = std::make_unique<Sequence>(Sequence{.request = &r,
                                                 .sample = 0,
                                                 .generation = Generation(r.job, 0),
                                                 .tokens = r.job.request.prompt,
                                                 .guesses = first_guesses(r)});
  if (seq->generation.finished() && !seq->generation.scores_prompt(0))
    return end(r, std::vector(r.results.size(), seq->generation.completion));
  // A device draws the first tokens of many samples faster than the host.
  if (!r.search && !r.job.request.prompt_logprobs && r.job.request.n <= logits_ &&
      draws_on_device(*seq))
    seq->first_draws = r.job.request.n;
  scheduler_.add(std::move(seq));
}

void EngineLoop::launch(std::span<Sequence* const> plan) {
  Feed& feed = now_.feed;
  for (Sequence* seq : plan) {
    now_.slots.push_back({seq, seq->rows, int64_t(feed.wanted.size())});
    seq->generation.note_start();
    const int64_t from = seq->pages.cached, known = from + seq->rows;
    const int64_t end = known + int64_t(seq->draft.size());
    for (int64_t p = from; p < end; ++p) {
      if (p >= seq->first_wanted()) want(*seq, p);
      feed.tokens.push_back(p < known ? seq->tokens[size_t(p)] : seq->draft[size_t(p - known)]);
      feed.positions.push_back(int32_t(p));
      feed.sequences.push_back(int32_t(feed.tables.size()));
    }
    feed.tables.push_back(seq->pages.blocks);
    const int64_t prompt = seq->request->job.prompt_size();
    stats_.prompt_tokens += std::max<int64_t>(0, std::min(known, prompt) - from);
  }
  if (now_.empty()) return;
  runner_.launch(feed);
  for (const Slot& s : now_.slots) ++s.seq->in_flight;
  draw_constrained(now_);
}

// Adds the logits after position p of the sequence to the feed; its row of tokens comes next.
void EngineLoop::want(const Sequence& seq, int64_t p) {
  Feed& feed = now_.feed;
  const Job& job = seq.request->job;
  const int64_t copies = p + 1 == seq.size() ? seq.first_draws : 1;
  for (int64_t i = 0; i < copies; ++i) {
    feed.wanted.push_back(int32_t(feed.tokens.size()));
    feed.draws.push_back(copies > 1 ? Generation(job, int(i)).controls(0) : device_draw(seq, p));
    feed.allowed.push_back(seq.generation.always_allowed());
    feed.scores.push_back(!feed.draws.back() &&
                          (job.sampling().logprobs >= 0 || p + 1 < seq.size()));
  }
}

// A device that draws cannot follow a draft under a constraint.
int64_t EngineLoop::first_guesses(const ActiveRequest& r) const {
  return r.search || (r.job.request.constraint && runner_.draws()) ? 0 : drafts_;
}

void EngineLoop::draw_constrained(Flight& f) {
  if (f.empty() || !f.feed.pauses()) return;
  for (size_t i = 0; i < f.slots.size(); ++i) {
    Sequence* seq = f.slots[i].seq;
    if (!seq || seq->ended || !seq->generation.masked()) continue;
    const size_t after =
        i + 1 < f.slots.size() ? size_t(f.slots[i + 1].wanted) : f.feed.wanted.size();
    for (size_t row = size_t(f.slots[i].wanted); row < after && !seq->ended; ++row) {
      if (!f.feed.draws[row] || !f.feed.draws[row]->constrained || !f.feed.allowed[row].all())
        continue;
      try {
        f.feed.allowed[row] = seq->generation.allowed();
      } catch (...) { end(*seq->request, {}, std::current_exception()); }
    }
  }
  runner_.draw(f.feed);
}

// Launches the next step before the current one is collected, if no token in flight can change its
// input: its row i is the token sampled from wanted row i. The slot of a sequence whose last token
// is in flight stays unused.
bool EngineLoop::launch_next() {
  if (now_.feed.wanted.size() != now_.slots.size()) return false;
  const auto goes_on = [](const Slot& s) { return s.seq && !s.seq->ended; };
  const auto more = [&](const Slot& s) { return goes_on(s) && s.seq->generation.room() >= 2; };
  const int64_t rows = int64_t(now_.slots.size()), left = std::ranges::count_if(now_.slots, more);
  // Fewer sequences may run in a smaller program or let others start.
  if (left == 0 || bucket(left, rows) < bucket(rows, rows) ||
      !scheduler_.would_repeat(std::ranges::count_if(now_.slots, goes_on), left))
    return false;
  Feed& feed = next_.feed;
  feed.follows = true;
  for (size_t i = 0; i < now_.slots.size(); ++i) {
    const Slot& slot = now_.slots[i];
    if (slot.wanted != int64_t(i) || !now_.feed.draws[i]) return false;
    Sequence* seq = more(slot) ? slot.seq : nullptr;
    const std::optional<SampleControls> draw =
        seq ? device_draw(*seq, seq->size()) : SampleControls{};
    if (!draw || (seq && !scheduler_.make_room(*seq))) return false;
    next_.slots.push_back({seq, 1, int64_t(i)});
    feed.wanted.push_back(int32_t(i));
    feed.draws.push_back(draw);
    feed.allowed.push_back(seq ? seq->generation.always_allowed() : AllowedTokens{});
    feed.scores.push_back(false);
    feed.positions.push_back(seq ? int32_t(seq->size()) : -1);
    feed.sequences.push_back(int32_t(i));
    feed.tables.push_back(seq ? std::span<const int32_t>(seq->pages.blocks)
                              : std::span<const int32_t>());
  }
  runner_.launch(feed);
  for (const Slot& s : next_.slots)
    if (s.seq) ++s.seq->in_flight;
  ++stats_.followed;
  return true;
}

// Collects the launch in now_ and advances each of its sequences by one token.
void EngineLoop::collect() {
  runner_.collect(now_.feed);
  if (modules_) fill_modules();
  for (const Slot& s : now_.slots)
    if (s.seq) --s.seq->in_flight;
  for (const Slot& s : now_.slots) {
    if (!s.seq || s.seq->ended) continue;  // cancelled, possibly by another sequence's listener
    ActiveRequest& r = *s.seq->request;
    try {
      advance(s);
    } catch (...) {
      if (!requests_.contains(r.id))
        throw;  // thrown by a listener that was already notified of the end
      end(r, {}, std::current_exception());
    }
  }
  now_.clear();
  if (modules_) modules_->propose(scheduler_.started());
}

void EngineLoop::fill_modules() {
  std::vector<ModuleDrafter::Fed> fed;
  for (const Slot& s : now_.slots)
    if (s.seq && !s.seq->ended) fed.push_back({s.seq, s.seq->pages.cached, s.rows});
  modules_->fill(fed);
}

// Drops a launch in flight if all its sequences have ended meanwhile.
void EngineLoop::abandon_unless_wanted(Flight& f) {
  if (f.empty() ||
      std::ranges::any_of(f.slots, [](const Slot& s) { return s.seq && !s.seq->ended; }))
    return;
  runner_.drop_launches();
  for (const Slot& s : f.slots)
    if (s.seq) --s.seq->in_flight;
  f.clear();
}

// Whether the log-probability of a token that the host samples must come from the training kernel.
// At temperature 1 on the CPU the sampler's log-probability already equals the trainer's.
bool EngineLoop::tempers(const ActiveRequest& r) const {
  const SamplingSpec& s = r.job.sampling();
  return s.logprobs >= 0 && s.logprobs_at_temperature && s.temperature > 0 &&
         (s.temperature != 1 || runner_.softcaps() || runner_.draws());
}

// Whether the device can sample the tokens of the sequence.
bool EngineLoop::draws_on_device(const Sequence& seq) const {
  const ActiveRequest& r = *seq.request;
  // Log-probabilities cover every token of the model, including those that cannot be sampled.
  const bool tells = r.job.sampling().logprobs < 0 || runner_.draws_any_token() || tempers(r);
  return runner_.draws() && !r.search && tells && seq.generation.controls(0);
}

// How the device samples the token after position p of the sequence; nothing if the host needs the
// logits: for prompt scores, for beams, and for samples that share a row.
std::optional<SampleControls> EngineLoop::device_draw(const Sequence& seq, int64_t p) const {
  const ActiveRequest& r = *seq.request;
  const int64_t ahead = p + 1 - seq.size();
  if (ahead < 0 || (!r.forked && r.job.request.n > 1) || !draws_on_device(seq)) return {};
  return seq.generation.controls(ahead);
}

// Called when the rows of the sequence are in the cache.
void EngineLoop::advance(const Slot& slot) {
  Sequence& seq = *slot.seq;
  const int64_t before = seq.pages.cached, first = seq.first_wanted();
  score_prompt(slot);
  seq.pages.cached += slot.rows;
  scheduler_.fed(seq);
  if (seq.pages.cached < seq.size()) return;
  int64_t wanted = slot.wanted + seq.size() - 1 - std::max(before, first);
  ready(seq, wanted);
  if (!seq.draft.empty()) verify_draft(seq, wanted);
}

// `wanted` is the row before the draft. An accepted draft token has already been fed.
void EngineLoop::verify_draft(Sequence& seq, int64_t wanted) {
  int64_t right = 0;
  for (; !seq.ended && right < int64_t(seq.draft.size()); ++right) {
    if (seq.tokens.back() != seq.draft[size_t(right)]) break;
    ++seq.pages.cached;
    draw(seq, ++wanted);
  }
  const int64_t tried = int64_t(seq.draft.size());
  seq.guesses = right == tried ? std::min(drafts_, 2 * tried) : right + 1;
  stats_.accepted += right;
  for (int64_t i = 0; i < tried; ++i) {
    DraftCount& at = stats_.drafts[size_t(i)];
    ++at.tried;
    if (i < right) ++at.accepted;
  }
  if (!seq.ended) scheduler_.fed(seq);
}

void EngineLoop::score_prompt(const Slot& slot) {
  Sequence& seq = *slot.seq;
  const Job& job = seq.request->job;
  int64_t wanted = slot.wanted;
  auto& logprobs = seq.generation.completion.prompt_logprobs;
  for (int64_t p = std::max(seq.pages.cached, int64_t(logprobs.size()));
       p < seq.pages.cached + slot.rows && seq.generation.scores_prompt(p); ++p, ++wanted)
    logprobs.push_back(token_logprob(runner_.logits(wanted), job.request.prompt[size_t(p) + 1],
                                     job.sampling().logprobs, runner_.log_sum(wanted)));
}

// Called when all tokens of the sequence have been fed; `row` has the logits of the next one.
void EngineLoop::ready(Sequence& seq, int64_t row) {
  ActiveRequest& r = *seq.request;
  if (r.search) {
    const std::span<const float> logits = runner_.logits(row);
    seq.logits.assign(logits.begin(), logits.end());
    seq.sum = runner_.log_sum(row);
    return search(r);
  }
  if (r.forked) return draw(seq, row);
  const int64_t step = seq.first_draws > 1 ? 1 : 0;  // to the row of the next sample
  for (Sequence* s : fork(seq)) {
    if (!s->ended) draw(*s, row);
    row += step;
  }
}

// The samples of a prompt start together from the same blocks.
std::vector<Sequence*> EngineLoop::fork(Sequence& seq) {
  ActiveRequest& r = *seq.request;
  r.forked = true;
  seq.first_draws = 1;
  std::vector<Sequence*> sequences{&seq};
  for (int sample = 1; sample < r.job.request.n; ++sample) {
    auto next = std::make_unique<Sequence>(Sequence{.request = &r,
                                                    .sample = sample,
                                                    .generation = Generation(r.job, sample),
                                                    .tokens = seq.tokens,
                                                    .pages = pool_.fork(seq.pages),
                                                    .guesses = first_guesses(r),
                                                    .read = seq.read});
    const Completion& first = seq.generation.completion;
    next->generation.completion.prompt_logprobs = first.prompt_logprobs;
    next->generation.completion.queue_ms = first.queue_ms;
    sequences.push_back(&scheduler_.add_after(*sequences.back(), std::move(next)));
  }
  return sequences;
}

void EngineLoop::draw(Sequence& seq, int64_t row) {
  Generation& s = seq.generation;
  if (s.finished()) return settle(seq);  // only the prompt was to be scored
  ActiveRequest& r = *seq.request;
  int32_t token;
  std::optional<TokenLogprob> logprob;
  if (now_.feed.draws[size_t(row)]) {
    const Drawn& d = runner_.drawn(row);
    if (!std::isfinite(d.likeliest_logprob))
      fail("sampler", "the logits are not finite: the weights may be damaged");
    token = d.token;
    if (const int64_t top = r.job.sampling().logprobs; top >= 0) {
      logprob = TokenLogprob{token, d.logprob, {}};
      if (top > 0) logprob->top.emplace_back(d.likeliest, d.likeliest_logprob);
    }
  } else {
    const std::span<const float> logits = runner_.logits(row);
    token = s.draw(logits);
    if (tempers(r))
      logprob = TokenLogprob{token, runner_.logprob(row, token, r.job.sampling().temperature), {}};
    else
      logprob = wanted_logprob(r.job, logits, runner_.log_sum(row), token);
  }
  const std::string piece = s.append(token, std::move(logprob));
  seq.tokens.push_back(token);
  ++stats_.generated_tokens;
  const Completion& c = s.completion;
  const bool go_on =
      !r.listener.token ||
      r.listener.token({r.id, seq.sample, token, c.logprobs.empty() ? nullptr : &c.logprobs.back(),
                        piece, c.finish_reason});
  const bool last = s.finished() && r.left == 1;
  if (s.finished()) settle(seq);
  if (!go_on && !last) cancel(r);
}

void EngineLoop::settle(Sequence& seq) {
  ActiveRequest& r = *seq.request;
  seq.ended = true;
  r.results[size_t(seq.sample)] = std::move(seq.generation.completion);
  if (--r.left == 0) end(r, std::move(r.results));
}

// When every beam has its logits: creates the next beams, each from its parent's blocks.
void EngineLoop::search(ActiveRequest& r) {
  const std::vector<Sequence*> sequences = scheduler_.sequences_of(&r);
  std::vector<BeamSearch::Beam> beams;
  for (const Sequence* seq : sequences) {
    if (seq->logits.empty()) return;
    beams.push_back({&seq->generation, seq->logits, seq->sum});
  }
  std::vector<BeamSearch::Child> children = r.search->step(beams);
  if (children.empty()) {
    std::vector<Completion> best = r.search->best();
    for (Completion& c : best) {
      c.prompt_logprobs = sequences[0]->generation.completion.prompt_logprobs;
      stats_.generated_tokens += int64_t(c.tokens.size());
    }
    tell_search(r, best);
    return end(r, std::move(best));
  }
  const Sequence* last = sequences.back();
  for (size_t i = 0; i < children.size(); ++i) {
    const Sequence& parent = *sequences[children[i].parent];
    auto seq = std::make_unique<Sequence>(Sequence{.request = &r,
                                                   .sample = int(i),
                                                   .generation = std::move(children[i].generation),
                                                   .tokens = parent.tokens,
                                                   .pages = pool_.fork(parent.pages)});
    seq->tokens.push_back(seq->generation.completion.tokens.back());
    last = &scheduler_.add_after(*last, std::move(seq));
  }
  for (Sequence* seq : sequences) seq->ended = true;
}

void EngineLoop::tell_search(ActiveRequest& r, const std::vector<Completion>& best) {
  for (size_t i = 0; r.listener.token && i < best.size(); ++i) {
    const Completion& c = best[i];
    for (size_t k = 0; k < c.tokens.size(); ++k) {
      const bool last = k + 1 == c.tokens.size();
      r.listener.token({r.id, int(i), c.tokens[k], c.logprobs.empty() ? nullptr : &c.logprobs[k],
                        last ? std::string_view(c.text) : std::string_view(),
                        last ? std::string_view(c.finish_reason) : std::string_view()});
    }
  }
}

void EngineLoop::cancel(ActiveRequest& r) {
  for (Sequence* seq : scheduler_.sequences_of(&r)) {
    if (r.search) continue;  // unfinished beams are not results
    seq->generation.finish("cancelled");
    r.results[size_t(seq->sample)] = std::move(seq->generation.completion);
  }
  for (Completion& c : r.results)
    if (c.finish_reason.empty()) c.finish_reason = "cancelled";
  end(r, std::move(r.results));
}

void EngineLoop::end(ActiveRequest& r, std::vector<Completion> results, std::exception_ptr error) {
  for (Sequence* seq : scheduler_.sequences_of(&r)) seq->ended = true;
  ended_.push_back(std::move(requests_.at(r.id)));
  requests_.erase(r.id);
  if (r.listener.done) r.listener.done(std::move(results), error);
}

void EngineLoop::cancel(uint64_t id) {
  if (const auto at = requests_.find(id); at != requests_.end()) cancel(*at->second);
}

void EngineLoop::cancel_all() {
  while (!requests_.empty()) cancel(*requests_.begin()->second);
}

void EngineLoop::fail_all(std::exception_ptr error) {
  for (Flight* f : {&now_, &next_}) {
    for (const Slot& s : f->slots)
      if (s.seq) s.seq->in_flight = 0;
    f->clear();
  }
  runner_.drop_launches();
  while (!requests_.empty()) end(*requests_.begin()->second, {}, error);
  scheduler_.sweep();
  ended_.clear();
}

EngineStats EngineLoop::stats() const {
  EngineStats s = stats_;
  s.preemptions = scheduler_.stats().preemptions;
  s.reused_tokens = scheduler_.stats().reused_tokens;
  s.drafted = scheduler_.stats().drafted;
  s.prompt_rows = scheduler_.stats().prompt_rows;
  s.running = scheduler_.active();
  s.waiting = scheduler_.waiting();
  s.used_blocks = pool_.size() - pool_.available();
  return s;
}

}  // namespace hearth::inline infer
