#include "infer/batch.h"

#include <algorithm>

namespace hearth {

Batch::Batch(Runner& runner, int64_t slots, const OnToken& on_token, EngineStats& stats,
             std::vector<std::vector<Completion>>& results)
    : runner_(runner),
      on_token_(on_token),
      stats_(stats),
      results_(results),
      slots_(size_t(slots)) {}

size_t Batch::used() const {
  size_t n = slots_.size();
  while (n > 0 && !slots_[n - 1].sequence) --n;
  return n;
}

size_t Batch::count() const {
  return size_t(std::count_if(slots_.begin(), slots_.end(),
                              [](const Slot& s) { return s.sequence.has_value(); }));
}

void Batch::run(std::span<const Job> jobs) {
  for (const Job& job : jobs)
    for (int i = 0; i < job.request->n; ++i) waiting_.push_back({&job, i});
  while (true) {
    admit();
    if (count() == 0) return;
    step();
    compact();
  }
}

// Samples of one job come in a row, so the logits after one prompt are all that need be kept.
void Batch::bring_prompt(const Job& job, size_t slot) {
  const auto holder =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.holds == &job; });
  if (prompt_of_ != &job || holder == slots_.end()) {
    prompt_ = prefill(runner_, job, int64_t(slot), stats_);
    prompt_of_ = &job;
  } else if (const size_t from = size_t(holder - slots_.begin()); from != slot) {
    runner_.copy(int64_t(from), int64_t(slot), job.prompt_size());
  }
  slots_[slot].holds = &job;
}

void Batch::admit() {
  while (!waiting_.empty()) {
    const auto free =
        std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.sequence; });
    if (free == slots_.end()) return;
    const Waiting next = waiting_.front();
    waiting_.pop_front();
    bring_prompt(*next.job, size_t(free - slots_.begin()));
    free->job = next.job;
    free->sample = next.sample;
    free->sequence.emplace(*next.job, next.sample);
    free->sequence->completion.prompt_logprobs = prompt_.logprobs;
    if (free->sequence->finished())
      settle(*free);
    else
      advance(*free, prompt_.logits);
  }
}

void Batch::step() {
  const auto begin = Clock::now();
  std::vector<Runner::Next> next;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (const auto& s = slots_[i].sequence)
      next.push_back({int64_t(i), s->last(), int32_t(s->size() - 1)});
  runner_.decode(next);
  ++stats_.decode_steps;
  for (const Runner::Next& n : next)
    if (Slot& slot = slots_[size_t(n.slot)]; slot.sequence)  // it may have been cancelled just now
      advance(slot, runner_.logits(n.slot));
  stats_.decode_seconds += seconds_since(begin);
}

void Batch::advance(Slot& slot, std::span<const float> logits) {
  const Job& job = *slot.job;
  Sequence& s = *slot.sequence;
  const int32_t token =
      s.sampler.draw(logits.first(size_t(job.vocab)), uint64_t(s.size()), s.barred());
  const std::string piece = s.append(token, wanted_logprob(job, logits, token));
  ++stats_.generated_tokens;
  const Completion& c = s.completion;
  const bool go_on = !on_token_ || on_token_({job.index, slot.sample, token,
                                              c.logprobs.empty() ? nullptr : &c.logprobs.back(),
                                              piece, c.finish_reason});
  if (s.finished()) settle(slot);
  if (!go_on) cancel(job);
}

void Batch::settle(Slot& slot) {
  results_[slot.job->index][size_t(slot.sample)] = std::move(slot.sequence->completion);
  slot.sequence.reset();
}

void Batch::cancel(const Job& job) {
  for (Slot& slot : slots_)
    if (slot.sequence && slot.job == &job) {
      slot.sequence->finish("cancelled");
      settle(slot);
    }
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.job == &job) results_[job.index][size_t(w.sample)].finish_reason = "cancelled";
    return w.job == &job;
  });
}

// Once nobody waits, the last sequences move down to let smaller programs serve the rest.
void Batch::compact() {
  if (!waiting_.empty() || count() == 0) return;
  while (runner_.bucket(int64_t(count())) < runner_.bucket(int64_t(used()))) {
    const size_t from = used() - 1;
    const auto free =
        std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.sequence; });
    // The last token has been drawn and not fed yet.
    runner_.copy(int64_t(from), free - slots_.begin(), slots_[from].sequence->size() - 1);
    *free = std::move(slots_[from]);
    slots_[from] = {};
  }
}

}  // namespace hearth
