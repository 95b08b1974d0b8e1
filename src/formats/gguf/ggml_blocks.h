// The blocks of ggml's quantised types: sizes, and conversion of one block to floats and back.
// Internal to formats/gguf.
#pragma once

#include "formats/gguf/gguf.h"

namespace hearth::inline formats {

// Elements and bytes of a block, and its conversions; to_floats is null for types without blocks,
// from_floats for types that are only read.
struct GgmlBlock {
  GgmlType type;
  int64_t elements, bytes;
  void (*to_floats)(const std::byte* block, float* x) = nullptr;
  void (*from_floats)(std::byte* block, const float* x) = nullptr;
};
std::span<const GgmlBlock> ggml_blocks();  // of every type that is read

// Types with blocks of 256 (k_quants.cpp, k_quants_write.cpp).
constexpr int64_t k_block = 256;
void q2k_to_floats(const std::byte*, float*);
void q3k_to_floats(const std::byte*, float*);
void q4k_to_floats(const std::byte*, float*);
void q5k_to_floats(const std::byte*, float*);
void q6k_to_floats(const std::byte*, float*);
void q8k_to_floats(const std::byte*, float*);
void floats_to_q4k(std::byte*, const float*);
void floats_to_q6k(std::byte*, const float*);

// The 6-bit scale and minimum of part i (of 8, each of 32 values) of a Q4_K or Q5_K block, from the
// 12 bytes that pack them.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin unpack_scale(const std::byte* packed, int i);
void pack_scale(std::byte* packed, int i, ScaleAndMin);  // into bytes that start as zeros

}  // namespace hearth::inline formats
