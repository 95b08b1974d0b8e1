// ModuleRunner: runs modules of multi-token prediction over the paged cache of a Runner, one module
// at a time. Modules have their own layers of the cache, in the blocks of the sequences.
#pragma once

#include <span>
#include <vector>

#include "core/exec.h"
#include "infer/step_shape.h"

namespace hearth::inline infer {

// The input of a run. The rows of a sequence are consecutive, ordered by position.
struct ModuleFeed {
  int64_t module = 0;
  std::vector<int32_t> tokens = {};  // per row: the token module + 1 positions further
  std::vector<int32_t> positions = {}, sequences = {};  // per row; sequences are numbered from 0
  std::vector<int32_t> sources = {};                    // per row: see ModuleRunner::source
  std::vector<int32_t> wanted = {};  // rows of which the likeliest token is returned
  std::vector<std::span<const int32_t>> tables = {};  // cache blocks of each sequence
};

class ModuleRunner {
 public:
  // `memory` is the runner's; the spec has modules.
  ModuleRunner(const ModelConfig& resolved, Memory& memory, const RunnerSpec&);

  // The place of cached states: those of the model (level 0) or of module level - 1 at a position.
  static int32_t source(const RunnerSpec&, int64_t level, std::span<const int32_t> table,
                        int64_t position);
  // The most rows of a run.
  static int64_t most_rows(const RunnerSpec& s) { return s.rows + s.sequences * s.modules; }

  // Runs the module and stores its states at level module + 1, if that level exists. Returns the
  // likeliest token after each wanted row.
  std::vector<int32_t> run(const ModuleFeed&);

  // As of Runner.
  int64_t cold_launches() const { return cold_; }

  // Memory of the largest program, without what it shares with the runner's.
  static ProgramNeed need(const ModelConfig& resolved, DType, RunnerSpec);

 private:
  struct Key {
    int64_t module = 0;
    StepShape shape = {};  // logits 0: no row is wanted
    auto operator<=>(const Key&) const = default;
  };
  Exec& program(const Key&);
  StepShape shape_of(const ModuleFeed&) const;
  void upload(const ModuleFeed&, const StepShape&);

  const ModelConfig& config_;
  const RunnerSpec spec_;
  Memory& memory_;
  ProgramCache<Key> programs_;
  StateRef<int32_t> inputs_, drawn_;  // drawn: if the device samples
  StateRef<float> logits_;            // the runner's
  std::vector<int32_t> staged_;
  int64_t cold_ = 0;
};

}  // namespace hearth::inline infer
