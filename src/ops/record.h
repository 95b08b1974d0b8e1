// Recording steps that several ops share.
#pragma once

#include "core/tape.h"

namespace hearth::inline ops {

inline Shape with_cols(Shape s, int64_t cols) {
  s.dim[size_t(s.rank - 1)] = cols;
  return s;
}

// The fp8 outputs of an op: its last three outputs and last two inputs (Op::fp8_result).
inline Fp8Output fp8_output(In in, Out out) {
  const auto o = out.last(3), i = in.last(2);
  return {.y = o[0], .yt = o[1], .sums = o[2], .site = i[0], .scalars = i[1]};
}

// The values that a recorded product reads and writes; GemmArgs documents them.
struct GemmVars {
  Var c;
  Var aux = {};
  Var a;
  Var b;
  Var bias = {};
  Var prior = {};
  GemmSpec spec = {};
};
// c = alpha * op(a) op(b) .. + prior. No gradient.
void record_gemm(Tape&, const GemmVars&);

// The gradient of the product of a node of linear(), before the node's activation.
Var product_gradient(Tape&, const Node&);

// Records the gradient of `param`, a vector added to every row of a value; dy is that value's
// gradient.
void record_column_sum(Tape&, Var param, Var dy, float scale);

}  // namespace hearth::inline ops
