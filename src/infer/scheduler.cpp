#include "infer/scheduler.h"

#include <algorithm>
#include <bit>

#include "infer/draft.h"
#include "infer/runner.h"

namespace hearth::inline infer {
namespace {

constexpr int64_t worth_cutting = 64;  // rows: below this, reading the weights dominates a step

}  // namespace

int64_t Lane::first_wanted() const {
  // The first token is not predicted, and the last one's logits are wanted anyway.
  const int64_t scored = int64_t(sequence.completion.prompt_logprobs.size());
  return sequence.scores_prompt(scored) ? scored : size() - 1;
}

Scheduler::Scheduler(const SchedulerSpec& spec, BlockPool& pool) : spec_(spec), pool_(pool) {}

void Scheduler::add(std::unique_ptr<Lane> lane) { waiting_.push_back(std::move(lane)); }

Lane& Scheduler::add_after(const Lane& lane, std::unique_ptr<Lane> next) {
  const auto at =
      std::ranges::find(active_, &lane, [](const auto& l) -> const Lane* { return l.get(); });
  return **active_.insert(at + 1, std::move(next));
}

std::span<Lane* const> Scheduler::plan() {
  rows_left_ = spec_.rows, logits_left_ = spec_.logits, lanes_left_ = spec_.lanes;
  blocked_ = false;
  for (const auto& lane : active_) lane->rows = 0, lane->draft.clear();
  oldest_ = 0;  // the oldest sequence with something to feed
  while (oldest_ < active_.size() && active_[oldest_]->due() == 0) ++oldest_;
  // Running sequences continue first; prompts get the rest of the step.
  for (size_t i = 0; i < active_.size(); ++i)
    if (active_[i]->due() == 1) feed(i, 1);
  for (size_t i = 0; i < active_.size(); ++i)
    if (active_[i]->due() > 1) feed(i, active_[i]->due());
  while (!waiting_.empty() && active() < spec_.lanes && !blocked_ && rows_left_ > 0) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (feed(active_.size() - 1, active_.back()->due())) continue;
    pool_.release(active_.back()->pages);
    waiting_.push_front(std::move(active_.back()));
    active_.pop_back();
    break;
  }
  fit_bucket();
  speculate();
  plan_.clear();
  for (const auto& lane : active_)
    if (lane->rows > 0) plan_.push_back(lane.get());
  return plan_;
}

bool Scheduler::would_repeat(int64_t lanes, int64_t left) const {
  const auto going_on = std::ranges::count_if(active_, [](const auto& l) { return !l->ended; });
  return spec_.drafts == 0 && going_on == lanes && (waiting_.empty() || left == spec_.lanes);
}

// Gives a sequence up to `rows` rows of this step, with the blocks they need.
bool Scheduler::feed(size_t at, int64_t rows) {
  Lane& lane = *active_[at];
  if (lanes_left_ == 0 || rows_left_ == 0) return false;
  if (lane.pages.blocks.empty() && !admit(at)) return false;
  const int64_t cached = lane.pages.cached, unscored = lane.first_wanted() - cached;
  rows = std::min({rows, lane.due(), rows_left_, std::max<int64_t>(unscored, 0) + logits_left_});
  if (rows <= 0) return false;
  while (!pool_.extend(lane.pages, cached + rows))
    if (!preempt_for(at)) return blocked_ = true, false;
  lane.rows = rows;
  rows_left_ -= rows, --lanes_left_;
  logits_left_ -= std::max<int64_t>(0, rows - unscored);
  return true;
}

// Starts (or restarts) a sequence without blocks if all its tokens fit and some blocks remain for
// the others to grow. The oldest sequence always starts, because it can preempt all others.
bool Scheduler::admit(size_t at) {
  Lane& lane = *active_[at];
  if (blocked_) return false;
  if (spec_.reuse) pool_.adopt(lane.pages, lane.tokens, lane.first_wanted() - lane.held_back);
  const int64_t adopted = lane.pages.cached;
  const int64_t most = spec_.window ? blocks_for(spec_.window + spec_.rows) + 1 : pool_.size();
  const int64_t needed =
      std::min(blocks_for(lane.size()) - int64_t(lane.pages.blocks.size()), most);
  const int64_t spare = int64_t(at) / 4;
  if (at != oldest_ && pool_.available() < needed + spare) {
    pool_.release(lane.pages);
    blocked_ = true;
    return false;
  }
  stats_.reused_tokens += adopted;
  return true;
}

// Preempts the youngest sequence with blocks that is younger than the one at `at`. The oldest one
// may also take the blocks of beams that only wait for it.
bool Scheduler::preempt_for(size_t at) {
  for (size_t i = active_.size(); i-- > 0;) {
    if (i == at || (i < at && at != oldest_) || active_[i]->pages.blocks.empty()) continue;
    give_back(*active_[i]);
    return true;
  }
  return false;
}

void Scheduler::give_back(Lane& lane) {
  if (lane.rows > 0) {
    const int64_t unscored = lane.first_wanted() - lane.pages.cached;
    logits_left_ += std::max<int64_t>(0, lane.rows - unscored);
    rows_left_ += lane.rows, ++lanes_left_;
    lane.rows = 0;
  }
  pool_.release(lane.pages);
  ++stats_.preemptions;
}

// Programs run a power of two of rows. If many rows would be padding, the last prompt is shortened
// so that a smaller program is filled; the rest of the prompt continues in the next step.
void Scheduler::fit_bucket() {
  const int64_t rows = spec_.rows - rows_left_;
  if (rows == 0) return;
  const int64_t less = int64_t(std::bit_floor(uint64_t(rows))), cut = rows - less;
  if (cut == 0 || less < worth_cutting || bucket(rows, spec_.rows) - rows <= rows / 8) return;
  for (size_t i = active_.size(); i-- > 0;) {
    Lane& lane = *active_[i];
    if (lane.rows <= cut || lane.rows == 1) continue;
    const int64_t unscored = std::max<int64_t>(0, lane.first_wanted() - lane.pages.cached);
    logits_left_ += std::max<int64_t>(0, lane.rows - unscored);
    lane.rows -= cut;
    logits_left_ -= std::max<int64_t>(0, lane.rows - unscored);
    rows_left_ += cut;
    return;
  }
}

// Draft tokens fill the rest of the step's bucket, or enlarge it.
void Scheduler::speculate() {
  if (spec_.drafts == 0) return;
  for (const auto& lane : active_) {
    if (lane->rows != 1 || lane->due() != 1) continue;
    const int64_t room =
        std::min({rows_left_, logits_left_, lane->guesses, lane->sequence.room() - 1});
    if (room <= 0) continue;
    std::vector<int32_t> guess = draft(lane->tokens, room);
    if (guess.empty() || !pool_.extend(lane->pages, lane->size() + int64_t(guess.size()))) continue;
    rows_left_ -= int64_t(guess.size()), logits_left_ -= int64_t(guess.size());
    stats_.drafted += int64_t(guess.size());
    lane->draft = std::move(guess);
  }
}

void Scheduler::fed(Lane& lane) {
  pool_.name_blocks(lane.pages, lane.tokens);
  if (spec_.window) pool_.drop_before(lane.pages, lane.pages.cached - spec_.window + 1);
}

void Scheduler::sweep() {
  const auto gone = [this](std::unique_ptr<Lane>& lane) {
    if (!lane->ended || lane->under_way > 0) return false;
    pool_.release(lane->pages);
    return true;
  };
  std::erase_if(active_, gone);
  std::erase_if(waiting_, gone);
}

std::vector<Lane*> Scheduler::lanes_of(const ActiveRequest* task) {
  std::vector<Lane*> all;
  const auto look = [&](const auto& lanes) {
    for (const auto& lane : lanes)
      if (!lane->ended && lane->task == task) all.push_back(lane.get());
  };
  look(active_);
  look(waiting_);
  return all;
}

}  // namespace hearth::inline infer
