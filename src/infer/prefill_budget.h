// PrefillBudget: how many tokens of prompts a step takes. While sequences decode, a step should not
// take longer than a target, so it learns from measured steps what a step of each size takes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace hearth::inline infer {

class PrefillBudget {
 public:
  // `rows`: maximum tokens of a step. `interval`: seconds that a step should take at most while
  // sequences decode; 0: steps take all the tokens they can, and nothing is learnt.
  PrefillBudget(int64_t rows, double interval);

  // A step of this many rows took this long.
  void note(int64_t rows, double seconds);
  // Tokens that prompts may take in the next step, beside `decoding` sequences of one row each.
  int64_t prompt_rows(int64_t decoding) const;

 private:
  // What steps of one size take. Programs run powers of two of rows, so these are the sizes.
  struct Cost {
    double seconds = 0;  // 0: not measured
    int64_t noted = 0;   // when it was measured last: steps that were noted by then
    int64_t count = 0;   // measurements
  };
  static constexpr size_t sizes = 24;
  size_t index_of(int64_t rows) const;
  int64_t size(size_t i) const;
  std::optional<double> expected(size_t i) const;
  double alone(size_t i) const;

  int64_t rows_;
  double interval_;
  std::array<Cost, sizes> costs_{};
  int64_t noted_ = 0;
};

}  // namespace hearth::inline infer
