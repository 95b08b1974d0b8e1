#include "infer/beam.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace hearth {
namespace {

struct Beam {
  Sequence sequence;
  double score;  // log-probability after bias and penalties, so far
  int64_t slot;
};

struct Candidate {
  size_t parent;
  int32_t token;
  double score;
};

// Ties go to the better parent, then to the lower id: the search is deterministic.
bool better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
}

void keep_best(std::vector<Candidate>& all, size_t count) {
  const auto end = all.begin() + ptrdiff_t(std::min(count, all.size()));
  std::partial_sort(all.begin(), end, all.end(), better);
  all.erase(end, all.end());
}

class Search {
 public:
  Search(Runner& runner, const Job& job, EngineStats& stats)
      : runner_(runner), job_(job), stats_(stats), beams_(size_t(job.request->beams)) {}

  std::vector<Completion> run();

 private:
  std::span<const float> logits(const Beam& b) const {
    return first_.empty() ? runner_.logits(b.slot) : std::span<const float>(first_);
  }
  std::vector<Candidate> candidates();
  void extend(std::span<const Candidate>);
  void place(std::vector<Beam>& children, std::span<const size_t> parents);
  void feed();
  void add_finished(Sequence, double score);
  double ranked(double score, int64_t tokens) const {
    return score / std::pow(double(tokens), double(job_.request->length_penalty));
  }

  Runner& runner_;
  const Job& job_;
  EngineStats& stats_;
  size_t beams_;
  std::vector<float> first_;          // logits after the prompt, until the first step is taken
  std::vector<Beam> live_;            // best first
  std::vector<Completion> finished_;  // best first, at most beams_
};

std::vector<Candidate> Search::candidates() {
  // Enough for all beams to go on even if every stop id is among the best of each.
  const size_t wanted = beams_ * (1 + std::max<size_t>(1, job_.stop_ids.size()));
  std::vector<Candidate> all, own;
  for (size_t i = 0; i < live_.size(); ++i) {
    Beam& b = live_[i];
    const std::span<const double> x =
        b.sequence.sampler.adjusted(logits(b).first(size_t(job_.vocab)), b.sequence.barred());
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += std::exp(v - most);
    const double lse = most + std::log(sum);
    own.clear();
    for (size_t id = 0; id < x.size(); ++id)
      if (std::isfinite(x[id])) own.push_back({i, int32_t(id), b.score + (x[id] - lse)});
    keep_best(own, wanted);
    all.insert(all.end(), own.begin(), own.end());
  }
  keep_best(all, wanted);
  return all;
}

void Search::add_finished(Sequence s, double score) {
  s.completion.score = ranked(score, int64_t(s.completion.tokens.size()));
  const auto at = std::find_if(finished_.begin(), finished_.end(),
                               [&](const Completion& c) { return c.score < s.completion.score; });
  finished_.insert(at, std::move(s.completion));
  if (finished_.size() > beams_) finished_.pop_back();
}

void Search::extend(std::span<const Candidate> candidates) {
  std::vector<Beam> next;
  std::vector<size_t> parents;
  for (size_t rank = 0; rank < candidates.size() && next.size() < beams_; ++rank) {
    const Candidate& c = candidates[rank];
    const Beam& parent = live_[c.parent];
    Sequence s = parent.sequence;
    s.append(c.token, wanted_logprob(job_, logits(parent), c.token));
    if (!s.finished()) {
      next.push_back({std::move(s), c.score, parent.slot});
      parents.push_back(c.parent);
    } else if (rank < beams_) {  // an end no better than that is no hypothesis of this width
      add_finished(std::move(s), c.score);
    }
  }
  place(next, parents);
  live_ = std::move(next);
}

// The first child of a parent goes on in its slot; the others copy its cache into slots that
// nobody goes on in.
void Search::place(std::vector<Beam>& children, std::span<const size_t> parents) {
  std::vector<char> taken(beams_), stays(children.size());
  for (size_t i = 0; i < children.size(); ++i) {
    char& slot = taken[size_t(children[i].slot)];
    stays[i] = !slot;
    slot = 1;
  }
  for (size_t i = 0; i < children.size(); ++i) {
    if (stays[i]) continue;
    const auto unused = std::find(taken.begin(), taken.end(), 0);
    const int64_t slot = unused - taken.begin();
    runner_.copy(children[i].slot, slot, live_[parents[i]].sequence.size());
    children[i].slot = slot;
    *unused = 1;
  }
}

void Search::feed() {
  std::vector<Runner::Next> next;
  for (const Beam& b : live_)
    next.push_back({b.slot, b.sequence.last(), int32_t(b.sequence.size() - 1)});
  runner_.decode(next);
  ++stats_.decode_steps;
  first_.clear();
}

std::vector<Completion> Search::run() {
  Prefilled prompt = prefill(runner_, job_, 0, stats_);
  const auto begin = Clock::now();
  first_ = std::move(prompt.logits);
  live_.push_back({Sequence(job_, 0), 0, 0});
  if (live_[0].sequence.finished())  // no room for a token
    finished_.assign(size_t(job_.request->n), live_[0].sequence.completion), live_.clear();
  while (!live_.empty()) {
    const std::vector<Candidate> best = candidates();
    extend(best);
    if (live_.empty()) break;
    const int64_t made = live_[0].sequence.size() - job_.prompt_size();
    if (finished_.size() >= beams_ && finished_.back().score >= ranked(best[0].score, made)) break;
    feed();
  }
  stats_.decode_seconds += seconds_since(begin);
  if (finished_.empty())
    fail("beams", "expected a token that may follow, got none: all are barred");
  finished_.resize(std::min(finished_.size(), size_t(job_.request->n)));
  for (Completion& c : finished_) {
    c.prompt_logprobs = prompt.logprobs;
    stats_.generated_tokens += int64_t(c.tokens.size());
  }
  return std::move(finished_);
}

}  // namespace

std::vector<Completion> beam_search(Runner& runner, const Job& job, EngineStats& stats) {
  return Search(runner, job, stats).run();
}

}  // namespace hearth
