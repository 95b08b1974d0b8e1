// RopeRows: the rope table of programs with a cache, filled only up to the positions in use. Its
// memory is part of the plan, but a long context costs neither time nor, on the CPU, pages before a
// text gets that long.
#pragma once

#include "core/exec.h"
#include "model/config.h"

namespace hearth::inline infer {

class RopeRows {
 public:
  // For programs recorded with DecoderMode::positions = `positions`.
  RopeRows(const ModelConfig&, int64_t positions);
  // Call before a launch with positions below `count`, after a program was created.
  void cover(Memory&, int64_t count);

 private:
  ModelConfig config_;
  int64_t rows_, filled_;
  StateRef<float> table_;  // no program's own, so never erased
};

}  // namespace hearth::inline infer
