// Scorer: log-probabilities of continuations, many at a time, by whole forward passes; through a
// cache only where it rounds. Texts of like length share a batch; only the scored rows reach the
// head.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/exec.h"
#include "core/fp8.h"
#include "infer/rope_rows.h"
#include "model/config.h"

namespace hearth {

struct ScoreItem {
  std::vector<int32_t> tokens;  // at most the model's context and one
  int64_t first = 1;            // tokens from here on are scored, each after all before it
};

struct Score {
  double logprob = 0;  // natural, the sum over the scored tokens
  double squares = 0;  // of their log-probabilities, for the spread
  int64_t tokens = 0;
  bool greedy = true;  // each was the likeliest; only where asked for
};

struct ScorerSpec {
  int64_t batch_tokens = 8192;  // of a pass, as far as one sequence allows
  int64_t context = 0;          // most tokens of a sequence that are read; 0: the model's context
  bool greedy = false;
  CacheFormat cache = CacheFormat::plain;  // fp8: as the engine with such a cache would score
};

class Scorer {
 public:
  Scorer(const ModelConfig&, ParamStore&, Backend&, const ScorerSpec& = {});

  // `progress` is told how many items are done.
  std::vector<Score> score(std::span<const ScoreItem>,
                           const std::function<void(size_t)>& progress = {});
  // After each token, in one pass: (tokens, V).
  std::vector<float> logits(std::span<const int32_t> tokens);

 private:
  // B sequences of T tokens, of which `rows` reach the head, which gives `logits` or only nll.
  struct Key {
    int64_t B, T, rows;
    bool logits;
    auto operator<=>(const Key&) const = default;
  };
  Exec& program(const Key&);
  void run(const Key&);
  int64_t padded_length(int64_t tokens) const;
  void score_batch(std::span<const size_t> which, std::span<const ScoreItem>, std::span<Score>);

  ModelConfig config_;  // resolved
  DType dtype_;
  ScorerSpec spec_;
  Memory memory_;
  RopeRows rope_;  // of cached programs
  std::map<Key, std::unique_ptr<Exec>> programs_;
  std::vector<int32_t> tokens_, rows_, targets_;
  std::vector<float> nll_, logits_;  // of the last run
};

}  // namespace hearth
