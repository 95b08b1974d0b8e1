// Matrix multiplication on the CPU: c = hook(alpha * op(a) op(b) + bias) + beta * residual, 2*m*n*k
// FLOP.
// Row i of c has the same bits whatever m is and however many threads run: each element is summed
// over k in blocks of fixed length, in order, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "cpu/features.h"

namespace hearth::inline sys {
class Threads;
}

namespace hearth::inline cpu {

// Memory that the CPU kernels pack into. It grows to the largest call so far and is then reused, so
// a step in steady state allocates nothing. One per caller; a call owns it while it runs.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`, 64-byte aligned, contents undefined; invalidates the result of earlier calls.
  std::byte* get(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Called once for each row segment c[row, col .. col + count) after alpha and bias and before the
// residual and the rounding to c_type, from any thread; changes the fp32 values x in place. This is
// where an activation goes (forward: store x in an aux matrix, apply act; backward: multiply by
// act'(aux)). Segments of one row are disjoint and cover it; their bounds are unspecified.
using GemmHook = void (*)(const void* state, float* x, int64_t row, int64_t col, int64_t count);

// All matrices are row-major; a leading dimension counts elements from one stored row to the next.
struct GemmProblem {
  void* c = nullptr;        // (m, n), c_type
  const void* a = nullptr;  // (m, k), or (k, m) when ta; ab_type
  const void* b = nullptr;  // (k, n), or (n, k) when tb; ab_type
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t b_row = 0;  // of a packed b: the first row that is read, which begins a panel
  bool ta = false;
  bool tb = false;
  DType c_type = DType::f32;   // f32 or bf16
  DType ab_type = DType::f32;  // f32 or bf16
  float alpha = 1.0f;
  const void* bias = nullptr;      // (n), ab_type
  const void* residual = nullptr;  // (m, n) with stride ldc, c_type; may be c itself: accumulate
  float beta = 1.0f;               // factor on the residual
  // The product and the residual are symmetric: what lies above the diagonal of c is not computed
  // but copied from below it, where the bits are those of the whole product.
  bool symmetric = false;  // without bias and hook
  GemmHook hook = nullptr;
  const void* hook_state = nullptr;
};

struct GemmTable;  // cpu/isa/gemm_table.h
const GemmTable& gemm_table(Isa);
const char* quantised_instructions(Isa);  // the integer dot-product instructions: "AVX512-VNNI"

void gemm(Threads&, Scratch&, const GemmTable&, const GemmProblem&);
// `batch` products of one shape, of which g is the first: their matrices lie one after another.
void gemm_batch(Threads&, Scratch&, const GemmTable&, const GemmProblem& g, int64_t batch);
// A product with b packed by quantise() of core/quantised.h, and rows of a rounded to int8.
void gemm_quantised(Threads&, Scratch&, const GemmTable&, const GemmProblem&);
void gemm(Threads&, Scratch&, const GemmProblem&);  // with the table of best_isa()

}  // namespace hearth::inline cpu
