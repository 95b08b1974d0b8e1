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

// The column sums of an op's first output, if they are wanted (Op::sums).
inline ColumnSumArgs column_sums(In in, Out out, SumPlaces at) {
  const auto sums = size_t(at.out);
  return {.out = out[sums], .parts = out[sums + 1], .x = out[0], .add = bool(in[size_t(at.in)])};
}

// Launches a kernel with the column sums of its result: by one kernel or by two.
template <class Args>
void launch_summed(const Kernels& k, Stream& s, void (*plain)(Stream&, const Args&),
                   void (*summed)(Stream&, const Args&, const ColumnSumArgs&), const Args& args,
                   const ColumnSumArgs& sums) {
  if (sums.out && summed) return summed(s, args, sums);
  plain(s, args);
  if (sums.out) k.column_sum(s, sums);
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
