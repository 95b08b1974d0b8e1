// Recording products in fp8, for tapes with Tape::fp8 set. A linear layer is three products: y = x
// wT of e4m3 values, dx = dy w and dw = dyT x of e5m2 gradients with e4m3 values. The GPU
// multiplies rows by rows only, so x, w and dy are each rounded once into a plain and a transposed
// copy.
#pragma once

#include <functional>

#include "ops/ops.h"

namespace hearth::inline ops {

// linear() in fp8.
Var linear_fp8(Tape&, Var x, Var w, const LinearSpec&);
// The backward rule of linear() with a forward product that is not in fp8 (Fp8Recording::forward).
std::function<void(Tape&, const Node&)> linear_gradients_fp8(Tape&, Var x, Var w,
                                                             const LinearSpec&);

// The products of the head over one chunk of rows: logits = scale x wT, and the gradients. In fp8
// if the tape says so, else in the tape's dtype.
class HeadProducts {
 public:
  struct Spec {
    bool trains = false;  // gradients will be recorded
    float scale = 1;      // of the logits
  };
  // `w` (V, C) padded to whole tiles.
  HeadProducts(Tape&, Var w, const Spec&);
  // Whether weight() and input() read the gradient of the logits in the tape's dtype, which
  // cross_entropy then writes over the logits.
  bool read_plain_gradient() const { return !fp8_wgrad_; }
  // Begins a chunk: `logits` (n, V) receives the product with x (n, C).
  void logits(Tape&, Var logits, Var x);
  // Where cross_entropy writes the gradient of this chunk in fp8. Nothing if none reads it.
  Fp8Copies rounded_gradient(Tape&);
  void weight(Tape&, Var dw, Var prior);  // dw = scale dlogitsT x [+ prior]
  void input(Tape&, Var dx);              // dx = scale dlogits w

 private:
  Var w_, x_, dlogits_;
  bool fp8_, fp8_wgrad_ = false;
  float scale_;
  Fp8Copies rounded_w_, rounded_x_, rounded_d_;
  Var x_site_, d_site_;
};

}  // namespace hearth::inline ops
