// What one instruction set offers to gemm(): for each input type, how operands are packed and how
// packed blocks are multiplied. src/cpu/gemm.cpp does the cutting and the threads.
#pragma once

#include <cstdint>

#include "core/quantised.h"

namespace hearth::inline cpu {

struct GemmProblem;

// One operand as the packing sees it: `count` vectors (rows of op(a), columns of op(b)) of k
// elements.
struct GemmOperand {
  const void* data = nullptr;  // element (0, 0) of the part to pack
  int64_t ld = 0;
  bool k_major = false;  // element (p, k) at k * ld + p, else at p * ld + k
};

// Packs `count` vectors into panels of mr (or nr) vectors, k padded with zeros to `padded_k`; panel
// i starts at i * panel * padded_k elements.
using GemmPack = void (*)(void* packed, const GemmOperand&, int64_t count, int64_t k);

// acc (rows, cols, stride ld) gets the product of packed blocks, added to what it holds unless
// `first`. acc may be written up to the next multiples of mr rows and nr columns.
using GemmMultiply = void (*)(float* acc, int64_t ld, const void* a, const void* b, int64_t rows,
                              int64_t cols, int64_t k, bool first);

constexpr int64_t few_tile = 32;

// Products of at most `rows` rows with b (n, k) as it lies: see gemm_rows16.h. Element by element
// they are summed in the order of the packed product.
struct GemmFew {
  int rows = 0;                                                // most rows of c
  int64_t (*packed_bytes)(int64_t rows, int64_t k) = nullptr;  // of a
  GemmPack pack = nullptr;                                     // of a, which is never k_major
  // acc (rows, cols, stride ld), may be written up to the next multiples of few_tile. Without k:
  // zeros.
  void (*multiply)(float* acc, int64_t ld, const void* a, const GemmOperand& b, int64_t rows,
                   int64_t cols, int64_t k) = nullptr;
};

struct GemmKernel {
  int mr = 0, nr = 0;     // rows of a panel of a, columns of a panel of b
  int k_block = 0;        // the sum over k is cut into blocks of this length
  int k_unit = 0;         // packed k is a multiple of this
  int element_bytes = 0;  // of a packed element
  int64_t tile = 0;       // elements of c one task may take
  int64_t strip = 0;      // bytes one task packs at a time, to stay in L2
  GemmPack pack_a = nullptr, pack_b = nullptr;
  GemmMultiply multiply = nullptr;
  GemmFew few = {};
};

// Rows of x as whole numbers for products with quantised weights.
struct QuantRows {
  int8_t* q = nullptr;         // (rows in whole tiles of 16, ld): x / scale, each byte ^ flip
  float* scales = nullptr;     // (rows)
  int32_t* offsets = nullptr;  // (rows, padded / 32): -8 times the sum of a group; int4 only
  int64_t ld = 0, k = 0, padded = 0;
  uint8_t flip = 0;
  bool few = false;  // at most quant_few_rows in all the call
};

struct QuantKernel {
  const char* name = nullptr;  // of the instructions
  int few_flip = 0, flip = 0;  // of q where w is int8: when `few`, and when not
  void (*quantise)(const QuantRows&, const void* x, bool half, int64_t ldx, int64_t begin,
                   int64_t end) = nullptr;
  // acc (rows, columns of panels [first, last), stride ld); scratch of 32 bytes for each padded k.
  void (*multiply)(float* acc, int64_t ld, const QuantRows&, const std::byte* packed, int64_t first,
                   int64_t last, int64_t rows, std::byte* scratch) = nullptr;
};
constexpr int64_t quant_few_rows = 8;

struct GemmTable {
  GemmKernel f32, bf16;
  QuantKernel quantised;
  // Writes rows [row, row + rows) and columns [col, col + cols) of c from their finished sums.
  void (*finish)(const GemmProblem&, float* acc, int64_t ld, int64_t row, int64_t col, int64_t rows,
                 int64_t cols) = nullptr;
};

}  // namespace hearth::inline cpu
