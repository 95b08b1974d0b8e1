// Arguments of the kernels that update parameters. As in kernel_args.h, an absent Tensor is empty.
#pragma once

#include "core/kernel_specs.h"
#include "core/tensor.h"

namespace hearth::inline core {

// out = sum of squares of x, in fixed parts
struct SumSquaresArgs {
  Tensor out;    // (1) acc
  Tensor parts;  // (row_parts) acc
  Tensor x;
};

// Reads the squared gradient norm and the loss, and decides whether to clip or skip the update.
struct GateUpdateArgs {
  Tensor state;    // UpdateState, written
  Tensor squares;  // (1) acc
  Tensor loss;     // (1) acc
  Tensor scalars;  // Scalars
};

// `count` ranges of `size` elements in flat buffers, all of which have the same order: range i
// begins at element begin[i]. The array must live as long as the call. A pointer, because files
// compiled for several instruction sets read it.
struct Pieces {
  const int64_t* begin = nullptr;
  int64_t count = 0;  // 0: the whole buffers
  int64_t size = 0;
};

// One pass of an elementwise optimizer over a flat range of parameters: new weights, rounded to
// nearest even where the stored dtype is narrower, and new state, rounded stochastically where it
// is bf16 (core/update_rules.h). Changes nothing if the gate says skip. All tensors but the scales
// and the last two have the same number of elements, or share their pieces.
//
// AdamW's slots may both hold 8-bit codes (u8, core/dynamic_code.h), each with a scale per block of
// code_block elements, counted from the start of the range. A step decodes a block, updates it in
// acc, and encodes it relative to its new largest magnitude.
struct UpdateArgs {
  Tensor weight;  // any float
  // (n, row_parts) acc, for nesterov of n pieces (n, R, C) only: receives the sums of squares of
  // each piece's new weights, as they are stored, in fixed parts.
  Tensor squares = {};
  Tensor master = {};              // acc; absent: the weight itself is updated
  Tensor slots[most_slots] = {};   // optimizer state, one per slot of the rule; acc, bf16 or u8
  Tensor scales[most_slots] = {};  // (blocks) f32: of slots in u8; else absent
  Tensor grad;                     // acc; for descent also bf16
  // Descent of pieces only, acc: (n, max(R, C)) factors on a gradient (n, R, C), one for each row
  // or, where R < C, for each column.
  Tensor factors = {};
  Tensor gate;     // UpdateState, written by gate_update
  Tensor scalars;  // Scalars
  RuleSpec spec = {};
  // The pieces of the buffers that are updated, for nesterov and descent. In the temporary of the
  // rule (the weight of nesterov, the gradient of descent) they lie one after another.
  Pieces pieces = {};
  // The number of the range's first element among all parameters, which keys the rounding of bf16
  // slots: an element is rounded alike in every division into ranges.
  int64_t first = 0;
};
// The update of piece i alone, without its squares. With factors, its gradient is (R, C).
inline UpdateArgs piece_of(UpdateArgs args, int64_t i) {
  const Shape matrix = args.factors ? Shape{args.grad.shape[1], args.grad.shape[2]} : Shape{};
  const int64_t size = args.pieces.size, packed = i * size, at = args.pieces.begin[i];
  const bool packs_weight = args.spec.rule == UpdateRule::nesterov;
  const auto cut = [size](Tensor& t, int64_t begin) {
    if (t) t = {t.data + begin * size_of(t.dtype), {size}, t.dtype};
  };
  cut(args.weight, packs_weight ? packed : at), cut(args.grad, packs_weight ? at : packed);
  cut(args.master, at);
  for (Tensor& slot : args.slots) cut(slot, at);
  if (args.factors) {
    const int64_t n = args.factors.shape[1];
    args.grad.shape = matrix;
    args.factors = {
        args.factors.data + i * n * size_of(args.factors.dtype), {n}, args.factors.dtype};
  }
  args.squares = {};
  args.pieces = {};
  args.first += at;
  return args;
}

// y = x / (1.02 |x| + 1e-6) with the Frobenius norm |x|, which no singular value exceeds: what the
// iterations of Muon start from. The factor above 1 leaves room for their rounding. For each of n
// matrices.
struct UnitMatrixArgs {
  Tensor y;        // (n, R, C); may be x's memory
  Tensor x;        // (n, R, C)
  Tensor squares;  // (n, row_parts) acc: the sums of squares of x that UpdateArgs receives
};

// NorMuon: one factor for each row of x or, in a wide matrix (R < C), for each column. The mean
// squares of x by row or column enter their running mean, `moment`; a factor is 1 / sqrt(moment),
// times what gives x with all factors the Frobenius norm that it has without. The moment is kept
// where the gate says skip. For each of n matrices.
struct NeuronFactorsArgs {
  Tensor factors;  // (n, max(R, C)) acc: what UpdateArgs takes
  Tensor moment;   // acc: max(R, C) elements for each matrix, at its piece
  Tensor x;        // (n, R, C) acc or bf16
  Tensor gate;     // UpdateState
  float beta2 = 0.9f;
  Pieces pieces;  // of moment
};

}  // namespace hearth::inline core
