// Runner: the model's forward programs over one KV cache of fixed slots. Programs are recorded when
// first needed, one per shape, and share weights, cache and arena.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/exec.h"
#include "model/config.h"

namespace hearth {

struct RunnerSpec {
  int64_t slots = 1;
  int64_t context = 1;
};

class Runner {
 public:
  Runner(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&);

  // B sequences in the slots first .. first + B - 1, T tokens each. A negative position is padding.
  struct Feed {
    int64_t first = 0, B = 1, T = 1;
    std::span<const int32_t> tokens;     // (B, T)
    std::span<const int32_t> positions;  // (B, T)
    std::span<const int32_t> rows;       // which of the B * T yield logits
  };
  // Logits of those rows (rows, V), after the model's softcap. Valid until the next call.
  std::span<const float> run(const Feed&);
  std::span<const float> row(int64_t i) const {  // of the last run
    return std::span(logits_).subspan(size_t(i * config_.vocab), size_t(config_.vocab));
  }

  // The first `tokens` cache entries of a slot, written over those of another.
  void copy(int64_t from, int64_t to, int64_t tokens);
  int64_t cache_bytes() const;

 private:
  struct Key {
    int64_t first, B, T, rows;
    auto operator<=>(const Key&) const = default;
  };
  Exec& program(const Key&);

  ModelConfig config_;  // resolved
  DType dtype_;
  RunnerSpec spec_;
  Memory memory_;
  std::map<Key, std::unique_ptr<Exec>> programs_;
  std::vector<float> logits_;
  std::vector<std::byte> rows_;  // of the cache, on their way between slots
};

}  // namespace hearth
