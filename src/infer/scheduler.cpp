#include "infer/scheduler.h"

#include <algorithm>
#include <bit>

#include "infer/draft.h"
#include "infer/runner.h"

namespace hearth::inline infer {
namespace {

constexpr int64_t worth_cutting = 64;  // rows: below this, reading the weights dominates a step

}  // namespace

Scheduler::Scheduler(const SchedulerSpec& spec, BlockPool& pool)
    : spec_(spec), pool_(pool), budget_(spec.rows, spec.interval) {}

void Scheduler::add(std::unique_ptr<Sequence> seq) { waiting_.push_back(std::move(seq)); }

Sequence& Scheduler::add_after(const Sequence& seq, std::unique_ptr<Sequence> next) {
  const auto at =
      std::ranges::find(active_, &seq, [](const auto& s) -> const Sequence* { return s.get(); });
  return **active_.insert(at + 1, std::move(next));
}

std::span<Sequence* const> Scheduler::plan() {
  rows_left_ = spec_.rows, logits_left_ = spec_.logits, slots_left_ = spec_.sequences;
  blocked_ = false;
  for (const auto& seq : active_) seq->rows = 0, seq->draft.clear();
  oldest_ = 0;  // the oldest sequence with something to feed
  while (oldest_ < active_.size() && active_[oldest_]->due() == 0) ++oldest_;
  prompts_left_ = budget_.prompt_rows(
      std::ranges::count_if(active_, [](const auto& s) { return s->due() == 1; }));
  stats_.prompt_rows = prompts_left_;
  // Running sequences continue first; prompts get the rest of the step.
  for (size_t i = 0; i < active_.size(); ++i)
    if (active_[i]->due() == 1) feed(i, 1);
  for (size_t i = 0; i < active_.size(); ++i)
    if (active_[i]->due() > 1) feed(i, active_[i]->due());
  while (!waiting_.empty() && active() < spec_.sequences && !blocked_ && rows_left_ > 0 &&
         prompts_left_ > 0) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (feed(active_.size() - 1, active_.back()->due())) continue;
    stats_.reused_tokens -= active_.back()->pages.cached;  // they are counted at the next attempt
    pool_.release(active_.back()->pages);
    waiting_.push_front(std::move(active_.back()));
    active_.pop_back();
    break;
  }
  fit_bucket();
  speculate();
  plan_.clear();
  for (const auto& seq : active_)
    if (seq->rows > 0) plan_.push_back(seq.get());
  return plan_;
}

bool Scheduler::would_repeat(int64_t running, int64_t left) {
  if (spec_.drafts > 0) return false;
  const auto unfinished = std::ranges::count_if(active_, [](const auto& s) { return !s->ended; });
  const bool preempted = unfinished > running;
  if (!preempted && (waiting_.empty() || left == spec_.sequences)) return true;
  // The oldest one that waits must be unable to start: then no younger one may. A sequence that
  // ends frees blocks.
  if (left < running || unfinished < active()) return false;
  size_t at = active_.size();
  for (size_t i = 0; i < active_.size() && preempted; ++i) {
    if (active_[i]->in_flight > 0) continue;
    if (!active_[i]->pages.blocks.empty()) return false;  // a prompt, or a beam
    at = std::min(at, i);
  }
  if (at == 0) return false;  // the oldest of all always starts
  Sequence& next = at < active_.size() ? *active_[at] : *waiting_.front();
  if (adopt(next, at)) {
    pool_.release(next.pages);
    return false;
  }
  return true;
}

// Gives a sequence up to `rows` rows of this step, with the blocks they need.
bool Scheduler::feed(size_t at, int64_t rows) {
  Sequence& seq = *active_[at];
  if (slots_left_ == 0 || rows_left_ == 0) return false;
  // A preempted one, whose text is a prompt again, does not take blocks that it cannot fill.
  if (seq.due() > 1 && prompts_left_ == 0) return false;
  if (seq.pages.blocks.empty() && !admit(at)) return false;
  const int64_t cached = seq.pages.cached, unscored = seq.first_wanted() - cached;
  const bool prompt = seq.due() > 1;
  rows = std::min({rows, seq.due(), rows_left_, std::max<int64_t>(unscored, 0) + logits_left_});
  if (prompt) rows = std::min(rows, prompts_left_);
  // The last token of a prompt waits until all first draws fit, and younger prompts with it.
  if (seq.logits_of(rows) > logits_left_) --rows, blocked_ = true;
  if (rows <= 0) return false;
  while (!pool_.extend(seq.pages, cached + rows))
    if (!preempt_for(at)) return blocked_ = true, false;
  seq.rows = rows;
  rows_left_ -= rows, --slots_left_;
  if (prompt) prompts_left_ -= rows;
  logits_left_ -= seq.logits_of(rows);
  return true;
}

// Starts (or restarts) a sequence without blocks if all its tokens fit and some blocks remain for
// the others to grow. The oldest sequence always starts, because it can preempt all others.
bool Scheduler::admit(size_t at) {
  Sequence& seq = *active_[at];
  if (blocked_) return false;
  if (!adopt(seq, at)) return blocked_ = true, false;
  stats_.reused_tokens += seq.pages.cached;
  return true;
}

// Gives a sequence without blocks those that are cached; false, and none, if the others that it
// needs are not free and it is not the oldest.
bool Scheduler::adopt(Sequence& seq, size_t at) {
  if (spec_.reuse) pool_.adopt(seq.pages, seq.tokens, seq.first_wanted());
  const int64_t most = spec_.window ? blocks_for(spec_.window + spec_.rows) + 1 : pool_.size();
  const int64_t needed = std::min(blocks_for(seq.size()) - int64_t(seq.pages.blocks.size()), most);
  const int64_t spare = int64_t(at) / 4;
  if (at == oldest_ || pool_.available() >= needed + spare) return true;
  pool_.release(seq.pages);
  return false;
}

// Preempts the youngest sequence with blocks that is younger than the one at `at`. The oldest one
// may also take the blocks of beams that only wait for it.
bool Scheduler::preempt_for(size_t at) {
  for (size_t i = active_.size(); i-- > 0;) {
    if (i == at || (i < at && at != oldest_) || active_[i]->pages.blocks.empty()) continue;
    preempt(*active_[i]);
    return true;
  }
  return false;
}

void Scheduler::preempt(Sequence& seq) {
  if (seq.rows > 0) {
    logits_left_ += seq.logits_of(seq.rows);
    rows_left_ += seq.rows, ++slots_left_;
    if (seq.due() > 1) prompts_left_ += seq.rows;
    seq.rows = 0;
  }
  pool_.release(seq.pages);
  ++stats_.preemptions;
}

// Programs run a power of two of rows. If many rows would be padding, the last prompt is shortened
// so that a smaller program is filled; the rest of the prompt continues in the next step. At least
// half of the prompts' rows must stay: a program of half the size that feeds fewer of them is
// slower. The rest then fits in that size too, so parts never take longer than the whole.
void Scheduler::fit_bucket() {
  const int64_t rows = spec_.rows - rows_left_;
  if (rows == 0) return;
  const int64_t less = int64_t(std::bit_floor(uint64_t(rows))), cut = rows - less;
  if (cut == 0 || less < worth_cutting || bucket(rows, spec_.rows) - rows <= rows / 8) return;
  int64_t of_prompts = 0;
  for (const auto& seq : active_)
    if (seq->rows > 1) of_prompts += seq->rows;
  if (2 * cut > of_prompts) return;
  for (size_t i = active_.size(); i-- > 0;) {
    Sequence& seq = *active_[i];
    if (seq.rows <= cut || seq.rows == 1) continue;
    logits_left_ += seq.logits_of(seq.rows);
    seq.rows -= cut;
    logits_left_ -= seq.logits_of(seq.rows);
    rows_left_ += cut;
    return;
  }
}

// Draft tokens fill the rest of the step's bucket, or enlarge it.
void Scheduler::speculate() {
  if (spec_.drafts == 0) return;
  for (const auto& seq : active_) {
    if (seq->rows != 1 || seq->due() != 1 || seq->first_draws > 1) continue;
    const int64_t room =
        std::min({rows_left_, logits_left_, seq->guesses, seq->generation.room() - 1});
    if (room <= 0) continue;
    std::vector<int32_t> guess = spec_.proposed ? seq->proposal : draft(seq->tokens, room);
    guess.resize(std::min(guess.size(), size_t(room)));
    if (guess.empty() || !pool_.extend(seq->pages, seq->size() + int64_t(guess.size()))) continue;
    rows_left_ -= int64_t(guess.size()), logits_left_ -= int64_t(guess.size());
    stats_.drafted += int64_t(guess.size());
    seq->draft = std::move(guess);
  }
}

void Scheduler::fed(Sequence& seq) {
  pool_.name_blocks(seq.pages, seq.tokens);
  if (spec_.window) pool_.drop_before(seq.pages, seq.pages.cached - spec_.window + 1);
}

void Scheduler::sweep() {
  const auto gone = [this](std::unique_ptr<Sequence>& seq) {
    if (!seq->ended || seq->in_flight > 0) return false;
    pool_.release(seq->pages);
    return true;
  };
  std::erase_if(active_, gone);
  std::erase_if(waiting_, gone);
}

std::vector<Sequence*> Scheduler::started() const {
  std::vector<Sequence*> all;
  for (const auto& seq : active_) all.push_back(seq.get());
  return all;
}

std::vector<Sequence*> Scheduler::sequences_of(const ActiveRequest* request) {
  std::vector<Sequence*> all;
  const auto look = [&](const auto& sequences) {
    for (const auto& seq : sequences)
      if (!seq->ended && seq->request == request) all.push_back(seq.get());
  };
  look(active_);
  look(waiting_);
  return all;
}

}  // namespace hearth::inline infer
