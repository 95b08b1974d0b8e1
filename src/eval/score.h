// Scorer: log-probabilities of continuations in batches, by whole forward passes; a cache is used
// only if it rounds (fp8). Texts of similar length share a batch; only scored rows reach the head.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/fp8.h"
#include "core/program_cache.h"
#include "infer/rope_rows.h"
#include "model/config.h"

namespace hearth::inline eval {

struct ScoreItem {
  std::vector<int32_t> tokens;  // at most the model's context plus one
  int64_t first = 1;            // tokens from this index on are scored
};

struct Score {
  double logprob = 0;  // sum over the scored tokens, natural log
  double squares = 0;  // sum of squared log-probabilities, for the deviation
  int64_t tokens = 0;
  bool greedy = true;  // all were the most likely token; only on request
};

struct ScorerSpec {
  int64_t batch_tokens = 8192;  // tokens per pass; one sequence may exceed it
  int64_t context = 0;          // maximum tokens per sequence; 0: the model's context
  bool greedy = false;
  CacheFormat cache = CacheFormat::plain;  // fp8: scores like the engine with an fp8 cache
};

class Scorer {
 public:
  Scorer(const ModelConfig&, ParamStore&, Backend&, const ScorerSpec& = {});

  // `progress` receives the number of finished items.
  std::vector<Score> score(std::span<const ScoreItem>,
                           const std::function<void(size_t)>& progress = {});
  // The logits after each token, in one pass: (tokens, V).
  std::vector<float> logits(std::span<const int32_t> tokens);

 private:
  // B sequences of T tokens, of which `rows` reach the head, which gives `logits` or only nll.
  struct Key {
    int64_t B, T, rows;
    bool logits;
    auto operator<=>(const Key&) const = default;
  };
  struct BoundProgram : ShapePrograms {
    StateRef<int32_t> tokens, positions, rows, targets;
    StateRef<int32_t> sequences, tables;  // with a cache
    StateRef<Scalars> scalars;
    StateRef<float> nll, logits;  // logits: if the key asks for them
  };
  const BoundProgram& program(const Key&);
  void run(const Key&);
  int64_t padded_length(int64_t tokens) const;
  void score_batch(std::span<const size_t> which, std::span<const ScoreItem>, std::span<Score>);

  ModelConfig config_;  // resolved
  DType dtype_;
  ScorerSpec spec_;
  Memory memory_;
  RopeRows rope_;  // for programs with a cache
  ProgramCache<Key, BoundProgram> programs_;
  std::vector<int32_t> tokens_, rows_, targets_;
  std::vector<float> nll_, logits_;  // of the last run
};

}  // namespace hearth::inline eval
