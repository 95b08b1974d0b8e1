#include "infer/engine_loop.h"

#include <algorithm>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline infer {

Stepper::Stepper(const ModelConfig& config, ParamStore& params, Backend& backend,
                 const RunnerSpec& shape, const SchedulerSpec& spec)
    : drafts_(spec.drafts),
      runner_(config, params, backend, shape),
      pool_(shape.blocks, [this](int32_t from, int32_t to) { runner_.copy_block(from, to); }),
      scheduler_(spec, pool_) {
  stats_.blocks = shape.blocks;
  stats_.cache_bytes = shape.blocks * Runner::block_bytes(config, params.dtype(), shape.cache);
  stats_.cache =
      shape.cache == CacheFormat::plain ? to_string(params.dtype()) : to_string(shape.cache);
}

bool Stepper::step() {
  const auto begin = Clock::now();
  abandon_unless_wanted(next_);
  scheduler_.sweep();  // removes sequences cancelled since the last step
  std::swap(now_, next_);
  if (now_.empty()) {
    const std::span<Lane* const> plan = scheduler_.plan();
    if (plan.empty() && !scheduler_.empty())
      fail("engine", "none of the {} active sequences can continue", scheduler_.active());
    launch(plan);
  }
  const bool works = !now_.empty();
  if (works) {
    if (!launch_behind()) next_.clear();
    take_in();
    abandon_unless_wanted(next_);
    scheduler_.sweep();
    ++stats_.steps;
    stats_.seconds += seconds_since(begin);
  }
  ended_.clear();
  return works;
}

void Stepper::start(std::unique_ptr<ActiveRequest> owned) {
  ActiveRequest& t = *owned;
  tasks_.emplace(t.id, std::move(owned));
  if (t.job.request.beams > 1) t.search = std::make_unique<BeamSearch>(t.job);
  auto lane = std::make_unique<Lane>(Lane{.task = &t,
                                          .sample = 0,
                                          .sequence = Sequence(t.job, 0),
                                          .tokens = t.job.request.prompt,
                                          .guesses = t.search ? 0 : drafts_});
  if (lane->sequence.finished() && !lane->sequence.scores_prompt(0))
    return end(t, std::vector(t.results.size(), lane->sequence.completion));
  // For many samples, a device draws the first tokens from one row each faster than the host.
  if (t.job.request.n > 1 && !t.search && !t.job.request.prompt_logprobs && lane->size() > 1 &&
      draws_on_device(*lane))
    lane->held_back = 1;
  scheduler_.add(std::move(lane));
}

void Stepper::launch(std::span<Lane* const> plan) {
  Feed& feed = now_.feed;
  for (Lane* lane : plan) {
    now_.shares.push_back({lane, lane->rows, int64_t(feed.wanted.size())});
    const int64_t from = lane->pages.cached, known = from + lane->rows;
    const int64_t end = known + int64_t(lane->draft.size());
    for (int64_t p = from; p < end; ++p) {
      if (p >= lane->first_wanted()) {
        feed.wanted.push_back(int32_t(feed.tokens.size()));
        feed.draws.push_back(device_draw(*lane, p));
        feed.scores.push_back(!feed.draws.back() &&
                              (lane->task->job.sampling().logprobs >= 0 || p + 1 < lane->size()));
      }
      feed.tokens.push_back(p < known ? lane->tokens[size_t(p)] : lane->draft[size_t(p - known)]);
      feed.positions.push_back(int32_t(p));
      feed.sequences.push_back(int32_t(feed.tables.size()));
    }
    feed.tables.push_back(lane->pages.blocks);
    const int64_t prompt = lane->task->job.prompt_size();
    stats_.prompt_tokens += std::max<int64_t>(0, std::min(known, prompt) - from);
  }
  if (now_.empty()) return;
  runner_.launch(feed);
  for (const Share& s : now_.shares) ++s.lane->under_way;
}

// Launches the next step before the current one is collected, if no token in flight can change its
// input: its row i is the token sampled from wanted row i. The slot of a sequence whose last token
// is in flight stays unused.
bool Stepper::launch_behind() {
  if (now_.feed.wanted.size() != now_.shares.size()) return false;
  const auto goes_on = [](const Share& s) { return s.lane && !s.lane->ended; };
  const auto more = [&](const Share& s) { return goes_on(s) && s.lane->sequence.room() >= 2; };
  const int64_t rows = int64_t(now_.shares.size()), left = std::ranges::count_if(now_.shares, more);
  // Fewer sequences may run in a smaller program or let others start.
  if (left == 0 || bucket(left, rows) < bucket(rows, rows) ||
      !scheduler_.would_repeat(std::ranges::count_if(now_.shares, goes_on), left))
    return false;
  Feed& feed = next_.feed;
  feed.follows = true;
  for (size_t i = 0; i < now_.shares.size(); ++i) {
    const Share& share = now_.shares[i];
    if (share.wanted != int64_t(i) || !now_.feed.draws[i]) return false;
    Lane* lane = more(share) ? share.lane : nullptr;
    const std::optional<SampleControls> draw =
        lane ? device_draw(*lane, lane->size()) : SampleControls{};
    if (!draw || (lane && !scheduler_.make_room(*lane))) return false;
    next_.shares.push_back({lane, 1, int64_t(i)});
    feed.wanted.push_back(int32_t(i));
    feed.draws.push_back(draw);
    feed.scores.push_back(false);
    feed.positions.push_back(lane ? int32_t(lane->size()) : -1);
    feed.sequences.push_back(int32_t(i));
    feed.tables.push_back(lane ? std::span<const int32_t>(lane->pages.blocks)
                               : std::span<const int32_t>());
  }
  runner_.launch(feed);
  for (const Share& s : next_.shares)
    if (s.lane) ++s.lane->under_way;
  ++stats_.followed;
  return true;
}

// Collects the launch in now_ and advances each of its sequences by one token.
void Stepper::take_in() {
  runner_.collect(now_.feed);
  for (const Share& s : now_.shares)
    if (s.lane) --s.lane->under_way;
  for (const Share& s : now_.shares) {
    if (!s.lane || s.lane->ended) continue;  // cancelled, possibly by another sequence's listener
    ActiveRequest& t = *s.lane->task;
    try {
      advance(s);
    } catch (...) {
      if (!tasks_.contains(t.id))
        throw;  // thrown by a listener that was already notified of the end
      end(t, {}, std::current_exception());
    }
  }
  now_.clear();
}

// Drops a launch in flight if all its sequences have ended meanwhile.
void Stepper::abandon_unless_wanted(Flight& f) {
  if (f.empty() ||
      std::ranges::any_of(f.shares, [](const Share& s) { return s.lane && !s.lane->ended; }))
    return;
  runner_.drop_launches();
  for (const Share& s : f.shares)
    if (s.lane) --s.lane->under_way;
  f.clear();
}

// Whether the log-probability of a token that the host samples must come from the training kernel.
// At temperature 1 on the CPU the sampler's log-probability already equals the trainer's.
bool Stepper::tempers(const ActiveRequest& t) const {
  const SamplingSpec& s = t.job.sampling();
  return s.logprobs >= 0 && s.logprobs_at_temperature && s.temperature > 0 &&
         (s.temperature != 1 || runner_.softcaps() || runner_.draws());
}

// Whether the device can sample the tokens of the sequence.
bool Stepper::draws_on_device(const Lane& lane) const {
  const ActiveRequest& t = *lane.task;
  // Log-probabilities cover every token of the model, including those that cannot be sampled.
  const bool tells = t.job.sampling().logprobs < 0 || runner_.draws_any_token() || tempers(t);
  return runner_.draws() && !t.search && tells && lane.sequence.controls(0);
}

// How the device samples the token after position p of the sequence; nothing if the host needs the
// logits: for prompt scores, for beams, and for samples that share a row.
std::optional<SampleControls> Stepper::device_draw(const Lane& lane, int64_t p) const {
  const ActiveRequest& t = *lane.task;
  const int64_t ahead = p + 1 - lane.size();
  if (ahead < 0 || (!t.forked && t.job.request.n > 1) || !draws_on_device(lane)) return {};
  return lane.sequence.controls(ahead);
}

// Called when the rows of the sequence are in the cache.
void Stepper::advance(const Share& share) {
  Lane& lane = *share.lane;
  const int64_t before = lane.pages.cached, first = lane.first_wanted();
  score_prompt(share);
  lane.pages.cached += share.rows;
  scheduler_.fed(lane);
  if (lane.held_back > 0 && lane.due() == 0) fork(lane);
  if (lane.pages.cached < lane.size()) return;
  int64_t wanted = share.wanted + lane.size() - 1 - std::max(before, first);
  ready(lane, wanted);
  if (lane.draft.empty()) return;
  // An accepted draft token has already been fed.
  int64_t right = 0;
  for (; !lane.ended && right < int64_t(lane.draft.size()); ++right) {
    if (lane.tokens.back() != lane.draft[size_t(right)]) break;
    ++lane.pages.cached;
    draw(lane, ++wanted);
  }
  const int64_t tried = int64_t(lane.draft.size());
  lane.guesses = right == tried ? std::min(drafts_, 2 * tried) : right + 1;
  stats_.accepted += right;
  if (!lane.ended) scheduler_.fed(lane);
}

void Stepper::score_prompt(const Share& share) {
  Lane& lane = *share.lane;
  const Job& job = lane.task->job;
  int64_t wanted = share.wanted;
  auto& logprobs = lane.sequence.completion.prompt_logprobs;
  for (int64_t p = std::max(lane.pages.cached, int64_t(logprobs.size()));
       p < lane.pages.cached + share.rows && lane.sequence.scores_prompt(p); ++p, ++wanted)
    logprobs.push_back(token_logprob(runner_.logits(wanted), job.request.prompt[size_t(p) + 1],
                                     job.sampling().logprobs, runner_.log_sum(wanted)));
}

// Called when all tokens of the sequence have been fed; `row` has the logits of the next one.
void Stepper::ready(Lane& lane, int64_t row) {
  ActiveRequest& t = *lane.task;
  if (t.search) {
    const std::span<const float> logits = runner_.logits(row);
    lane.logits.assign(logits.begin(), logits.end());
    lane.sum = runner_.log_sum(row);
    return search(t);
  }
  if (t.forked) return draw(lane, row);
  for (Lane* l : fork(lane))
    if (!l->ended) draw(*l, row);
}

// The samples of a prompt start together from the same blocks.
std::vector<Lane*> Stepper::fork(Lane& lane) {
  ActiveRequest& t = *lane.task;
  t.forked = true;
  lane.held_back = 0;
  std::vector<Lane*> lanes{&lane};
  for (int sample = 1; sample < t.job.request.n; ++sample) {
    auto next = std::make_unique<Lane>(Lane{.task = &t,
                                            .sample = sample,
                                            .sequence = Sequence(t.job, sample),
                                            .tokens = lane.tokens,
                                            .pages = pool_.fork(lane.pages),
                                            .guesses = drafts_});
    next->sequence.completion.prompt_logprobs = lane.sequence.completion.prompt_logprobs;
    lanes.push_back(&scheduler_.add_after(*lanes.back(), std::move(next)));
  }
  return lanes;
}

void Stepper::draw(Lane& lane, int64_t row) {
  Sequence& s = lane.sequence;
  if (s.finished()) return settle(lane);  // only the prompt was to be scored
  ActiveRequest& t = *lane.task;
  int32_t token;
  std::optional<TokenLogprob> logprob;
  if (now_.feed.draws[size_t(row)]) {
    const Drawn& d = runner_.drawn(row);
    if (!std::isfinite(d.likeliest_logprob))
      fail("sampler", "the logits are not finite: the weights may be damaged");
    token = d.token;
    if (const int64_t top = t.job.sampling().logprobs; top >= 0) {
      logprob = TokenLogprob{token, d.logprob, {}};
      if (top > 0) logprob->top.emplace_back(d.likeliest, d.likeliest_logprob);
    }
  } else {
    const std::span<const float> logits = runner_.logits(row);
    token = s.draw(logits);
    if (tempers(t))
      logprob = TokenLogprob{token, runner_.logprob(row, token, t.job.sampling().temperature), {}};
    else
      logprob = wanted_logprob(t.job, logits, runner_.log_sum(row), token);
  }
  const std::string piece = s.append(token, std::move(logprob));
  lane.tokens.push_back(token);
  ++stats_.generated_tokens;
  const Completion& c = s.completion;
  const bool go_on =
      !t.listener.token ||
      t.listener.token({t.id, lane.sample, token, c.logprobs.empty() ? nullptr : &c.logprobs.back(),
                        piece, c.finish_reason});
  const bool last = s.finished() && t.left == 1;
  if (s.finished()) settle(lane);
  if (!go_on && !last) cancel(t);
}

void Stepper::settle(Lane& lane) {
  ActiveRequest& t = *lane.task;
  lane.ended = true;
  t.results[size_t(lane.sample)] = std::move(lane.sequence.completion);
  if (--t.left == 0) end(t, std::move(t.results));
}

// When every beam has its logits: creates the next beams, each from its parent's blocks.
void Stepper::search(ActiveRequest& t) {
  const std::vector<Lane*> lanes = scheduler_.lanes_of(&t);
  std::vector<BeamSearch::Beam> beams;
  for (const Lane* lane : lanes) {
    if (lane->logits.empty()) return;
    beams.push_back({&lane->sequence, lane->logits, lane->sum});
  }
  std::vector<BeamSearch::Child> children = t.search->step(beams);
  if (children.empty()) {
    std::vector<Completion> best = t.search->best();
    for (Completion& c : best) {
      c.prompt_logprobs = lanes[0]->sequence.completion.prompt_logprobs;
      stats_.generated_tokens += int64_t(c.tokens.size());
    }
    tell_search(t, best);
    return end(t, std::move(best));
  }
  const Lane* last = lanes.back();
  for (size_t i = 0; i < children.size(); ++i) {
    const Lane& parent = *lanes[children[i].parent];
    auto lane = std::make_unique<Lane>(Lane{.task = &t,
                                            .sample = int(i),
                                            .sequence = std::move(children[i].sequence),
                                            .tokens = parent.tokens,
                                            .pages = pool_.fork(parent.pages)});
    lane->tokens.push_back(lane->sequence.completion.tokens.back());
    last = &scheduler_.add_after(*last, std::move(lane));
  }
  for (Lane* lane : lanes) lane->ended = true;
}

void Stepper::tell_search(ActiveRequest& t, const std::vector<Completion>& best) {
  for (size_t i = 0; t.listener.token && i < best.size(); ++i) {
    const Completion& c = best[i];
    for (size_t k = 0; k < c.tokens.size(); ++k) {
      const bool last = k + 1 == c.tokens.size();
      t.listener.token({t.id, int(i), c.tokens[k], c.logprobs.empty() ? nullptr : &c.logprobs[k],
                        last ? std::string_view(c.text) : std::string_view(),
                        last ? std::string_view(c.finish_reason) : std::string_view()});
    }
  }
}

void Stepper::cancel(ActiveRequest& t) {
  for (Lane* lane : scheduler_.lanes_of(&t)) {
    if (t.search) continue;  // unfinished beams are not results
    lane->sequence.finish("cancelled");
    t.results[size_t(lane->sample)] = std::move(lane->sequence.completion);
  }
  for (Completion& c : t.results)
    if (c.finish_reason.empty()) c.finish_reason = "cancelled";
  end(t, std::move(t.results));
}

void Stepper::end(ActiveRequest& t, std::vector<Completion> results, std::exception_ptr error) {
  for (Lane* lane : scheduler_.lanes_of(&t)) lane->ended = true;
  ended_.push_back(std::move(tasks_.at(t.id)));
  tasks_.erase(t.id);
  if (t.listener.done) t.listener.done(std::move(results), error);
}

void Stepper::cancel(uint64_t id) {
  if (const auto at = tasks_.find(id); at != tasks_.end()) cancel(*at->second);
}

void Stepper::cancel_all() {
  while (!tasks_.empty()) cancel(*tasks_.begin()->second);
}

void Stepper::fail_all(std::exception_ptr error) {
  for (Flight* f : {&now_, &next_}) {
    for (const Share& s : f->shares)
      if (s.lane) s.lane->under_way = 0;
    f->clear();
  }
  runner_.drop_launches();
  while (!tasks_.empty()) end(*tasks_.begin()->second, {}, error);
  scheduler_.sweep();
  ended_.clear();
}

EngineStats Stepper::stats() const {
  EngineStats s = stats_;
  s.preemptions = scheduler_.stats().preemptions;
  s.reused_tokens = scheduler_.stats().reused_tokens;
  s.drafted = scheduler_.stats().drafted;
  s.running = scheduler_.active();
  s.waiting = scheduler_.waiting();
  s.used_blocks = pool_.size() - pool_.available();
  return s;
}

}  // namespace hearth::inline infer
