// MemoryBudget: how much memory a part of the program may take, and what of that is reserved by
// name. All shares and limits of memory stand in this file, each with its reason; nothing else
// computes a share of its own.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/params.h"

namespace hearth::inline core {

// Shares of the memory that is free when a budget is made. The reason says what needs the rest.
namespace memory_share {
// Training. Kernel scratch, library workspaces, captured graphs and inputs are in no plan.
constexpr double run = 0.9;
// The model step and the KV cache of an engine. A GPU is the engine's alone, except for the same
// unplanned memory.
constexpr double engine_on_gpu = 0.9;
// The host's memory also holds the page cache of the model files and other programs.
constexpr double engine_on_host = 0.5;
// The KV cache of rollouts. Training of the same weights needs the larger part of the device.
constexpr double rollouts = 0.4;
// The arena of a program that keeps its logits, which it can do without. Kernel scratch, and the
// arena of a reference model, may still grow.
constexpr double kept_logits_arena = 0.75;
// The snapshot of a checkpoint, in the host's memory. Training goes on beside it and must not be
// the one that runs out.
constexpr double snapshot = 0.5;
}  // namespace memory_share

// What the programs of one ProgramCache may hold. One is recorded again when it was dropped, so
// this only has to cover the shapes in use.
constexpr int64_t program_cache_bytes = int64_t(1) << 30;

// A chunk of logits in the head. Larger products run faster on a GPU, so the chunk grows with its
// memory; on the CPU the smallest chunk is as fast as any.
constexpr int64_t least_logits_chunk_bytes = int64_t(64) << 20;
int64_t logits_chunk_bytes(const Backend&);
// Logits that may stay from a forward pass to its backward pass instead of being recomputed: an
// eighth of a GPU's memory. 0 on the CPU, whose memory is not the program's alone.
int64_t kept_logits_bytes(const Backend&);

// The matrices of one shape that Muon takes through its products together; with their temporaries
// they need three to five times this. Enough matrices for every processor of a large GPU: those of
// GPT-2 124M in one batch, 26 of 1600 x 1600. The same on every backend, because programs are
// compared node by node (`doctor lockstep`), and the memory plan records them without a device.
constexpr int64_t matrix_batch_bytes = int64_t(128) << 20;

// Divides memory among holders that can use `wanted` bytes each. Nobody gets more than he wants,
// and who wants more than an equal part gets as much as every other such holder, so that a large
// one cannot take what small ones need.
std::vector<int64_t> fair_shares(int64_t bytes, std::span<const int64_t> wanted);

// The free memory is measured when the budget is made, so a holder (a run, an engine) makes its
// budget once, when it decides. Parts that are planned but not yet allocated are reserved in it.
class MemoryBudget {
 public:
  // For a training run. The weights that `held` has allocated count as free, because the plan of
  // the run counts them too; nothing else of a run is allocated before its plan.
  static MemoryBudget for_run(const Backend&, const ParamStore* held = nullptr);
  static MemoryBudget for_engine(const Backend&);
  static MemoryBudget for_rollouts(const Backend&);
  // `held`: bytes of the arena that there is, which a larger one replaces.
  static MemoryBudget for_kept_logits_arena(const Backend&, int64_t held);
  static MemoryBudget for_snapshot(const Backend& host);
  explicit MemoryBudget(int64_t bytes, bool host_offload = false)
      : bytes_(bytes), host_offload_(host_offload) {}

  // Adds memory in full: of a part that is allocated already although the plan counts it.
  void extend(int64_t bytes) { bytes_ += bytes; }
  // Reserves memory for a part, even if it does not fit: left() is then negative.
  void reserve(std::string part, int64_t bytes);
  // Reserves what is left, at most `wanted`, and returns it.
  int64_t reserve_up_to(std::string part, int64_t wanted);

  int64_t bytes() const { return bytes_; }  // reserved or not
  int64_t left() const;
  bool fits(int64_t bytes) const { return bytes <= left(); }
  // Whether masters and optimizer state can be in host memory that this budget does not count.
  bool host_offload() const { return host_offload_; }
  // "12.00 GiB: model step 0.50 + KV cache 10.00 reserved, 1.50 left".
  std::string describe() const;

 private:
  struct Reservation {
    std::string part;
    int64_t bytes;
  };
  int64_t bytes_;
  bool host_offload_;
  std::vector<Reservation> reserved_;
};

// The largest divisor of n that fits; 0: not even 1 does. If a size fits, so must every smaller
// one. Planning a batch takes time in proportion to it, so `fits` is not asked about sizes far
// beyond the answer.
int64_t largest_divisor(int64_t n, const std::function<bool(int64_t)>& fits);

}  // namespace hearth::inline core
