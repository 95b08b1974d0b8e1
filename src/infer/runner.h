// Runner: the model's forward programs over one KV cache of fixed slots. Programs are recorded when
// first needed, one per shape, and share weights, cache and arena.
#pragma once

#include <functional>
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
  int64_t chunk = 256;  // most tokens of a prompt in one program
};

class Runner {
 public:
  Runner(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&);

  // Puts a prompt into a slot, in place of what was there. Returns the logits that follow its last
  // token; `each`, when given, sees those after every token, by its place in the prompt. All logits
  // are after the model's softcap and valid until the next prefill or decode.
  using Each = std::function<void(int64_t place, std::span<const float> logits)>;
  std::span<const float> prefill(int64_t slot, std::span<const int32_t> prompt,
                                 const Each& each = {});

  // One more token for each sequence; afterwards logits(slot) are what follows it.
  struct Next {
    int64_t slot;
    int32_t token, position;
  };
  void decode(std::span<const Next>);
  std::span<const float> logits(int64_t slot) const { return row(slot); }
  // The batch a decode program has for sequences in the slots below `used`.
  int64_t bucket(int64_t used) const;

  // The first `tokens` cache entries of a slot, written over those of another.
  void copy(int64_t from, int64_t to, int64_t tokens);
  int64_t cache_bytes() const;

 private:
  // B sequences in the slots from `first` on, T tokens each, of which `rows` yield logits.
  struct Key {
    int64_t first, B, T, rows;
    auto operator<=>(const Key&) const = default;
  };
  Exec& program(const Key&);
  void run(const Key&);  // with tokens_, positions_ (B, T) and rows_ (rows)
  std::span<const float> row(int64_t i) const {
    return std::span(logits_).subspan(size_t(i * config_.vocab), size_t(config_.vocab));
  }

  ModelConfig config_;  // resolved
  DType dtype_;
  RunnerSpec spec_;
  Memory memory_;
  std::map<Key, std::unique_ptr<Exec>> programs_;
  std::vector<int32_t> tokens_, positions_, rows_;
  std::vector<float> logits_;     // (rows, V) of the last run
  std::vector<std::byte> moved_;  // cache entries on their way between slots
};

}  // namespace hearth
