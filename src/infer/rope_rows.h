// RopeRows: the rope table of programs over a cache, filled as far as positions have come into use.
// Its memory is part of the plan; what a long context promises costs neither time nor, on the CPU,
// pages before a text gets there.
#pragma once

#include "core/exec.h"
#include "model/config.h"

namespace hearth {

class RopeRows {
 public:
  // For programs recorded with DecoderMode::positions = `positions`.
  RopeRows(const ModelConfig&, int64_t positions);
  // Before a launch with positions below `count`, once a program has been made.
  void cover(Memory&, int64_t count);

 private:
  ModelConfig config_;
  int64_t rows_, filled_;
};

}  // namespace hearth
