// An op that tests record to keep a value as a result.
#pragma once

#include "ops/record.h"

namespace hearth {

inline Op copy_op() {
  return kernel_op<&Kernels::copy>(
      "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); });
}

}  // namespace hearth
