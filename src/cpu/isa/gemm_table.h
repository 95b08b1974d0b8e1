// The part of gemm() that depends on the instruction set: for each input type, how operands are
// packed and how packed blocks are multiplied. src/cpu/gemm.cpp divides the work among threads.
#pragma once

#include <cstdint>

#include "core/quantised.h"

namespace hearth::inline cpu {

struct GemmProblem;

// One operand as packing sees it: `count` vectors (rows of op(a), columns of op(b)) of k elements.
struct GemmOperand {
  const void* data = nullptr;  // element (0, 0) of the range to pack
  int64_t ld = 0;
  bool k_major = false;  // element (p, k) at k * ld + p, else at p * ld + k
};

// Packs `count` vectors into panels of mr (or nr) vectors, k padded with zeros to `padded_k`; panel
// i starts at i * panel * padded_k elements.
using GemmPack = void (*)(void* packed, const GemmOperand&, int64_t count, int64_t k);

// acc (rows, cols, stride ld) receives the product of packed blocks, added to its contents unless
// `first`. acc may be written up to the next multiples of mr rows and nr columns.
using GemmMultiply = void (*)(float* acc, int64_t ld, const void* a, const void* b, int64_t rows,
                              int64_t cols, int64_t k, bool first);

constexpr int64_t few_tile = 32;

// Products of at most `rows` rows with an unpacked b (n, k): see gemm_rows16.h. Each element is
// summed in the order of the packed product.
struct GemmFew {
  int rows = 0;                                                // most rows of c
  int64_t (*packed_bytes)(int64_t rows, int64_t k) = nullptr;  // of a
  GemmPack pack = nullptr;                                     // of a, which is never k_major
  // acc (rows, cols, stride ld) may be written up to the next multiples of few_tile. With k = 0 it
  // becomes zero.
  void (*multiply)(float* acc, int64_t ld, const void* a, const GemmOperand& b, int64_t rows,
                   int64_t cols, int64_t k) = nullptr;
};

struct GemmKernel {
  int mr = 0, nr = 0;     // rows of a panel of a, columns of a panel of b
  int k_block = 0;        // the sum over k is divided into blocks of this length
  int k_unit = 0;         // packed k is a multiple of this
  int element_bytes = 0;  // of a packed element
  int64_t tile = 0;       // elements of c per task, at most
  int64_t strip = 0;      // bytes a task packs at a time, to stay in L2
  GemmPack pack_a = nullptr, pack_b = nullptr;
  GemmMultiply multiply = nullptr;
  GemmFew few = {};
};

// Rows of x as integers, for products with quantised weights.
struct QuantRows {
  int8_t* q = nullptr;         // (rows padded to tiles of 16, ld): x / scale, each byte ^ flip
  float* scales = nullptr;     // (rows)
  int32_t* offsets = nullptr;  // (rows, padded / 32): -8 * sum of q over a group; int4 only
  int64_t ld = 0, k = 0, padded = 0;
  uint8_t flip = 0;
  bool few = false;  // the whole call has at most quant_few_rows
};

struct QuantKernel {
  const char* name = nullptr;  // name of the instructions
  int few_flip = 0, flip = 0;  // the flip of q for int8 weights: if `few`, and otherwise
  void (*quantise)(const QuantRows&, const void* x, bool half, int64_t ldx, int64_t begin,
                   int64_t end) = nullptr;
  // acc (rows, columns of panels [first, last), stride ld); scratch has 32 bytes per padded k.
  void (*multiply)(float* acc, int64_t ld, const QuantRows&, const std::byte* packed, int64_t first,
                   int64_t last, int64_t rows, std::byte* scratch) = nullptr;
};
constexpr int64_t quant_few_rows = 8;

struct GemmTable {
  GemmKernel f32, bf16;
  QuantKernel quantised;
  // Writes rows [row, row + rows) and columns [col, col + cols) of c from their complete sums.
  void (*finish)(const GemmProblem&, float* acc, int64_t ld, int64_t row, int64_t col, int64_t rows,
                 int64_t cols) = nullptr;
};

}  // namespace hearth::inline cpu
