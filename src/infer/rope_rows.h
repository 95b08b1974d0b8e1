// RopeRows: the rope tables of programs with a cache, filled only up to the positions in use. Their
// memory is part of the plan, but a long context costs neither time nor, on the CPU, pages before a
// text gets that long.
#pragma once

#include "core/exec.h"
#include "model/layer_spec.h"

namespace hearth::inline infer {

class RopeRows {
 public:
  // For programs recorded with DecoderMode::positions = `positions`.
  RopeRows(const ModelConfig&, int64_t positions);
  // Call before a launch with positions below `count`, after a program was created.
  void cover(Memory&, int64_t count);

 private:
  int64_t rows_, filled_;
  struct Table {
    LayerRopeTable made;
    StateRef<float> ref = {};  // no program's own, so never erased
  };
  std::vector<Table> tables_;
};

}  // namespace hearth::inline infer
