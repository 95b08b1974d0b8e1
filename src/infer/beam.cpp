#include "infer/beam.h"

#include <algorithm>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline infer {

BeamSearch::BeamSearch(const Job& job)
    : job_(job), width_(size_t(job.request.beams)), scores_{0.0} {}

// Ties go to the better parent, then to the lower id, so the search is deterministic.
bool BeamSearch::better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
}

void BeamSearch::keep_best(std::vector<Candidate>& all, size_t count) {
  const auto end = all.begin() + ptrdiff_t(std::min(count, all.size()));
  std::partial_sort(all.begin(), end, all.end(), better);
  all.erase(end, all.end());
}

double BeamSearch::ranked(double score, int64_t tokens) const {
  return score / std::pow(double(tokens), double(job_.request.length_penalty));
}

std::vector<BeamSearch::Candidate> BeamSearch::candidates(std::span<const Beam> beams) const {
  // Enough for all beams to continue even if every stop id is among the best tokens of each.
  const size_t wanted = width_ * (1 + std::max<size_t>(1, job_.stop_ids.size()));
  std::vector<Candidate> all, own;
  for (size_t i = 0; i < beams.size(); ++i) {
    const Generation& s = *beams[i].generation;
    Sampler sampler = s.sampler;
    const std::span<const double> x = sampler.adjusted(beams[i].logits.first(size_t(job_.vocab)),
                                                       s.barred(), job_.usable_tokens());
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += std::exp(v - most);
    const double lse = most + std::log(sum);
    own.clear();
    for (size_t id = 0; id < x.size(); ++id)
      if (std::isfinite(x[id])) own.push_back({i, int32_t(id), scores_[i] + (x[id] - lse)});
    keep_best(own, wanted);
    all.insert(all.end(), own.begin(), own.end());
  }
  keep_best(all, wanted);
  return all;
}

void BeamSearch::add_finished(Generation s, double score) {
  s.completion.score = ranked(score, int64_t(s.completion.tokens.size()));
  const auto at = std::find_if(finished_.begin(), finished_.end(),
                               [&](const Completion& c) { return c.score < s.completion.score; });
  finished_.insert(at, std::move(s.completion));
  if (finished_.size() > width_) finished_.pop_back();
}

std::vector<BeamSearch::Child> BeamSearch::step(std::span<const Beam> beams) {
  if (beams[0].generation->finished()) {  // no room for another token
    finished_.assign(size_t(job_.request.n), beams[0].generation->completion);
    return {};
  }
  const std::vector<Candidate> best = candidates(beams);
  std::vector<Child> next;
  std::vector<double> scores;
  for (size_t rank = 0; rank < best.size() && next.size() < width_; ++rank) {
    const Candidate& c = best[rank];
    const Beam& parent = beams[c.parent];
    Generation s = *parent.generation;
    s.append(c.token, wanted_logprob(job_, parent.logits, parent.sum, c.token));
    if (!s.finished()) {
      next.push_back({c.parent, std::move(s)});
      scores.push_back(c.score);
    } else if (rank < width_) {  // an end of lower rank is not a hypothesis of this width
      add_finished(std::move(s), c.score);
    }
  }
  scores_ = std::move(scores);
  if (next.empty()) return {};
  const int64_t made = int64_t(next[0].generation.completion.tokens.size());
  if (finished_.size() >= width_ && finished_.back().score >= ranked(best[0].score, made))
    return {};
  return next;
}

std::vector<Completion> BeamSearch::best() {
  if (finished_.empty())
    fail("beams", "no token can follow: logit_bias or min_tokens excludes all of them");
  finished_.resize(std::min(finished_.size(), size_t(job_.request.n)));
  return std::move(finished_);
}

}  // namespace hearth::inline infer
