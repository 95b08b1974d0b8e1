// Beam search: computes the next beams from the logits of all beams.
#pragma once

#include "infer/generation.h"

namespace hearth::inline infer {

// Stops when no beam, if it ended now, would rank above the worst of `width` finished ones.
class BeamSearch {
 public:
  explicit BeamSearch(const Job&);

  struct Beam {
    const Generation* generation;
    std::span<const float> logits;
    std::optional<LogSum> sum;
  };
  struct Child {
    size_t parent;  // index of the beam it extends
    Generation generation;
  };
  // The next beams, best first, from the beams of the last call (at first only the prompt). Empty:
  // the search has ended.
  std::vector<Child> step(std::span<const Beam>);
  // The job's best n completions, best first; fewer if there are not enough sequences.
  std::vector<Completion> best();

 private:
  struct Candidate {
    size_t parent;
    int32_t token;
    double score;
  };
  static bool better(const Candidate&, const Candidate&);
  static void keep_best(std::vector<Candidate>&, size_t count);
  std::vector<Candidate> candidates(std::span<const Beam>) const;
  void add_finished(Generation, double score);
  double ranked(double score, int64_t tokens) const;

  const Job& job_;
  size_t width_;
  std::vector<double> scores_;        // per beam: log-probability after bias and penalties
  std::vector<Completion> finished_;  // best first, at most width_
};

}  // namespace hearth::inline infer
