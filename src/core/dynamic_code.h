// The 8-bit codes of optimizer state: dynamic tree quantisation (Dettmers et al. 2022, "8-bit
// Optimizers via Block-wise Quantization"), with the levels of bitsandbytes. A code stands for a
// fraction of the largest magnitude in its block; its levels are linear within a decade, and each
// decade has half as many as the one above, from 1 down to about 1e-7.
#pragma once

#include "core/math.h"

namespace hearth::inline core {

constexpr int64_t code_block = 256;  // elements that share a scale

struct DynamicCode {
  static constexpr int zero = 127;                          // the code of 0 in a signed table
  static constexpr uint32_t lowest = 0x3400, one = 0x3f80;  // upper 16 bits of 2^-23 and of 1
  static constexpr int cells = int(one - lowest) + 1;

  float value[256];   // of each code, ascending
  float middle[256];  // between magnitudes i and i + 1, which are levels of a table without signs
  // The least magnitude that a number whose float begins with these 16 bits may round to. A cell
  // contains at most one middle, so the nearest level is this one or the next.
  uint8_t cell[cells];
  bool has_sign;

  // The nearest code of x, a fraction of the block's largest magnitude, in three steps that a
  // kernel may run over many elements one after the other: the first and the last vectorise.
  HEARTH_FORMULA uint8_t encode(float x) const {
    return uint8_t(code_of(level_of(cell_of(x), x), x));
  }
  HEARTH_FORMULA static uint32_t cell_of(float x) {
    const uint32_t top = (__builtin_bit_cast(uint32_t, x) & 0x7fffffffu) >> 16;
    return (top < lowest ? lowest : top < one ? top : one) - lowest;
  }
  HEARTH_FORMULA int level_of(uint32_t at, float x) const {
    const int level = cell[at];
    return level + (magnitude_of(x) > middle[level]);
  }
  // In a table without signs a positive x never becomes 0: a second moment of 0 beside a first
  // moment that is not would make the next step as large as the first moment over epsilon.
  HEARTH_FORMULA int code_of(int level, float x) const {
    if (!has_sign) return level + (level == 0 && x > 0);
    const int below = level < zero ? level : zero;  // no code stands for -1
    return x < 0 ? zero - below : zero + level;
  }
  HEARTH_FORMULA static float magnitude_of(float x) {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) & 0x7fffffffu);
  }
};

// The scale of a block whose largest magnitude is `most`. A block of denormals becomes 0, because
// the inverse of its scale could be infinite.
struct BlockScale {
  float scale, inverse;
};
HEARTH_FORMULA BlockScale block_scale(float most) {
  return most >= 0x1p-126f ? BlockScale{most, 1 / most} : BlockScale{0, 0};
}

constexpr DynamicCode make_dynamic_code(bool has_sign) {
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  DynamicCode c{};
  c.has_sign = has_sign;
  double magnitude[256] = {};
  int count = 1;  // the first is 0
  int levels = has_sign ? 1 : 2;
  for (const double decade : decades) {
    for (int k = 0; k < levels; ++k) magnitude[count++] = decade * (0.1 + 0.9 * (k + 0.5) / levels);
    levels *= 2;
  }
  magnitude[count++] = 1;
  for (int i = 0; i < count; ++i) {
    const int first = has_sign ? DynamicCode::zero : 0;
    c.value[first + i] = float(magnitude[i]);
    if (has_sign && i < count - 1) c.value[first - i] = -float(magnitude[i]);
    c.middle[i] = i + 1 < count ? float((magnitude[i] + magnitude[i + 1]) / 2) : __builtin_inff();
  }
  if (has_sign) c.value[DynamicCode::zero] = 0;  // not -0
  int level = 0;
  for (int i = 0; i < DynamicCode::cells; ++i) {
    const float begin =
        i == 0 ? 0 : __builtin_bit_cast(float, (DynamicCode::lowest + uint32_t(i)) << 16);
    const int before = level;
    while (c.middle[level] < begin) ++level;
    if (level > before + 1) throw "a cell has two middles";  // does not compile
    c.cell[i] = uint8_t(level);
  }
  return c;
}

}  // namespace hearth::inline core
