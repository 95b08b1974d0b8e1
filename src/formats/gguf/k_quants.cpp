// Reads ggml's types with blocks of 256 values (K-quants): parts of 16 or 32 values have small
// whole-number scales, which the block's own scales multiply.
#include <cstring>

#include "core/dtype.h"
#include "formats/gguf/ggml_blocks.h"

namespace hearth::inline formats {
namespace {

int byte_at(const std::byte* p, int64_t i) { return int(uint8_t(p[i])); }

float f16_at(const std::byte* p) {
  f16 x;
  std::memcpy(&x, p, sizeof x);
  return float(x);
}

// Part i of 16 of a Q3_K block: four low bits in one place, two high bits in another.
int q3k_scale(const std::byte* packed, int i) {
  const int low = i < 8 ? byte_at(packed, i) & 15 : byte_at(packed, i - 8) >> 4;
  const int high = byte_at(packed, 8 + i % 4) >> (2 * (i / 4)) & 3;
  return (low | high << 4) - 32;
}

}  // namespace

ScaleAndMin unpack_scale(const std::byte* packed, int i) {
  if (i < 4) return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
  return {(byte_at(packed, i + 4) & 15) | byte_at(packed, i - 4) >> 6 << 4,
          byte_at(packed, i + 4) >> 4 | byte_at(packed, i) >> 6 << 4};
}

void pack_scale(std::byte* packed, int i, ScaleAndMin s) {
  const auto merge = [&](int at, int bits) { packed[at] |= std::byte(uint8_t(bits)); };
  if (i < 4) {
    merge(i, s.scale);
    merge(i + 4, s.min);
  } else {
    merge(i + 4, (s.scale & 15) | (s.min & 15) << 4);
    merge(i - 4, s.scale >> 4 << 6);
    merge(i, s.min >> 4 << 6);
  }
}

// scales[16] (4 bits of scale, 4 of minimum), quants[64] (2 bits), scale, scale of minimums. A byte
// holds four values that are 32 apart.
void q2k_to_floats(const std::byte* block, float* x) {
  const std::byte *scales = block, *quants = block + 16;
  const float d = f16_at(block + 80), least = f16_at(block + 82);
  for (int i = 0; i < k_block; ++i) {
    const int scale = byte_at(scales, i / 16);
    const int q = byte_at(quants, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const float part = d * float(scale & 15), min = least * float(scale >> 4);
    x[i] = part * float(q) - min;
  }
}

// high[32] (1 bit), quants[64] (2 bits), scales[12], scale.
void q3k_to_floats(const std::byte* block, float* x) {
  const std::byte *high = block, *quants = block + 32, *scales = block + 96;
  const float d = f16_at(block + 108);
  for (int i = 0; i < k_block; ++i) {
    const int low = byte_at(quants, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const bool above = byte_at(high, i % 32) >> (i / 32) & 1;
    x[i] = d * float(q3k_scale(scales, i / 16)) * float(low - (above ? 0 : 4));
  }
}

// scale, scale of minimums, scales[12], quants[128] (4 bits). A byte holds two values that are 32
// apart.
void q4k_to_floats(const std::byte* block, float* x) {
  const float d = f16_at(block), least = f16_at(block + 2);
  const std::byte *scales = block + 4, *quants = block + 16;
  for (int part = 0; part < 8; ++part) {
    const ScaleAndMin s = unpack_scale(scales, part);
    const float scale = d * float(s.scale), min = least * float(s.min);
    for (int i = 0; i < 32; ++i) {
      const int q = byte_at(quants, part / 2 * 32 + i) >> (part % 2 * 4) & 15;
      x[part * 32 + i] = scale * float(q) - min;
    }
  }
}

// As Q4_K, with high[32] (1 bit) before the quants.
void q5k_to_floats(const std::byte* block, float* x) {
  const float d = f16_at(block), least = f16_at(block + 2);
  const std::byte *scales = block + 4, *high = block + 16, *quants = block + 48;
  for (int part = 0; part < 8; ++part) {
    const ScaleAndMin s = unpack_scale(scales, part);
    const float scale = d * float(s.scale), min = least * float(s.min);
    for (int i = 0; i < 32; ++i) {
      const int q = byte_at(quants, part / 2 * 32 + i) >> (part % 2 * 4) & 15;
      const int top = byte_at(high, i) >> part & 1;
      x[part * 32 + i] = scale * float(q + 16 * top) - min;
    }
  }
}

// low[128] (4 bits), high[64] (2 bits), scales[16] (signed bytes), scale.
void q6k_to_floats(const std::byte* block, float* x) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = f16_at(block + 208);
  for (int i = 0; i < k_block; ++i) {
    const int half = i / 128, part = i % 128 / 32, at = i % 32;
    const int bits = byte_at(low, half * 64 + part % 2 * 32 + at) >> (part / 2 * 4) & 15;
    const int top = byte_at(high, half * 32 + at) >> (2 * part) & 3;
    x[i] = d * float(int8_t(byte_at(scales, i / 16))) * float((bits | top << 4) - 32);
  }
}

// scale (f32), quants[256] (signed bytes), and sums that only products need.
void q8k_to_floats(const std::byte* block, float* x) {
  float d;
  std::memcpy(&d, block, sizeof d);
  for (int i = 0; i < k_block; ++i) x[i] = d * float(int8_t(byte_at(block, 4 + i)));
}

}  // namespace hearth::inline formats
