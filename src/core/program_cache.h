// ProgramCache: programs by the shape they were recorded for, and the rule that rounds sizes up to
// a few shapes. The least recently used programs are dropped when all together hold too much.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/exec.h"
#include "core/math.h"
#include "core/memory_budget.h"

namespace hearth::inline core {

// The one rule that rounds sizes up: to multiples of 1 / parts of the next power of two, so that
// the padding is at most one such part and the number of sizes grows with the logarithm.
struct BucketSpec {
  int64_t parts = 8;  // 1: powers of two
  int64_t least = 1;  // every size is a multiple of it, unless it is the limit
  int64_t widest = std::numeric_limits<int64_t>::max();  // between two sizes
};
inline int64_t bucket(int64_t n, const BucketSpec& s,
                      int64_t limit = std::numeric_limits<int64_t>::max()) {
  const int64_t part = int64_t(std::bit_ceil(uint64_t(n))) / s.parts;
  return std::min(round_up(n, std::clamp(part, s.least, s.widest)), limit);
}

// Every size that programs are recorded for. A coarser rule makes fewer programs, a finer one less
// padding.
namespace buckets {
// Rows of an engine step; also the number of rows whose logits are computed.
inline constexpr BucketSpec engine_rows{.parts = 1};
// Rows that reach the head, in scoring and in alignment.
inline constexpr BucketSpec head_rows{.parts = 8, .least = 64};
// Tokens per sequence: of scored texts and of examples, of examples where the device prefers few
// programs, and of completions, many of which are short.
inline constexpr BucketSpec text_tokens{.least = 32, .widest = 32};
inline constexpr BucketSpec few_text_tokens{.parts = 4, .least = 64};
inline constexpr BucketSpec completion_tokens{.parts = 8, .least = 2, .widest = 64};
// Completions per batch: the number of those with an advantage changes at every step.
inline constexpr BucketSpec completions{.parts = 16};
}  // namespace buckets

// The programs of one shape. All their inputs and results have state names that start with `name`,
// and are freed with the programs. A user that keeps handles of them derives from this struct and
// keeps them here.
struct ShapePrograms {
  std::string name;
  std::vector<std::unique_ptr<Exec>> kinds;  // by purpose; null: not recorded yet

  // Memory they hold: a node is a kernel launch in a graph plus its record on the host.
  int64_t bytes(const StateStore& state) const {
    constexpr int64_t node_bytes = 4096;
    int64_t n = state.bytes(name + ".");
    for (const auto& exec : kinds)
      if (exec) n += int64_t(exec->tape().nodes.size()) * node_bytes;
    return n;
  }
};

template <class Key, std::derived_from<ShapePrograms> Programs = ShapePrograms>
class ProgramCache {
 public:
  explicit ProgramCache(Memory& memory, int64_t most_bytes = program_cache_bytes)
      : memory_(memory), most_bytes_(most_bytes) {}

  // The programs of a shape; an empty entry called name() is added on first use. A reference is
  // valid until the next call.
  template <class Name>
  Programs& get(const Key& key, Name name) {
    auto it = slots_.find(key);
    if (it == slots_.end()) {
      make_room();
      it = slots_.try_emplace(key).first;
      it->second.programs.name = name();
    }
    it->second.used = ++clock_;
    return it->second.programs;
  }
  void clear() {
    while (!slots_.empty()) drop(slots_.begin());
  }
  size_t size() const { return slots_.size(); }

 private:
  struct Slot {
    Programs programs;
    uint64_t used = 0;  // by the clock: when it was last asked for
  };
  using Slots = std::map<Key, Slot>;

  void drop(typename Slots::iterator it) {
    memory_.backend.synchronize();  // it may be running
    const std::string prefix = it->second.programs.name + ".";
    slots_.erase(it);
    memory_.state.erase(prefix);
  }
  void make_room() {
    int64_t held = 0;
    for (const auto& [key, slot] : slots_) held += slot.programs.bytes(memory_.state);
    while (held > most_bytes_ && slots_.size() > 1) {
      const auto oldest =
          std::ranges::min_element(slots_, {}, [](const auto& entry) { return entry.second.used; });
      held -= oldest->second.programs.bytes(memory_.state);
      drop(oldest);
    }
  }

  Memory& memory_;
  int64_t most_bytes_;
  uint64_t clock_ = 0;
  Slots slots_;
};

}  // namespace hearth::inline core
