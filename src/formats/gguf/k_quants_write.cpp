// Writes Q4_K and Q6_K. The scale of each part is searched: candidates near the plain one are
// tried, each with the whole numbers it rounds to, and least squares gives the best scale for these
// numbers.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "formats/gguf/ggml_blocks.h"

namespace hearth::inline formats {
namespace {

void put_f16(std::byte* p, float x) {
  const f16 rounded(x);
  std::memcpy(p, &rounded, sizeof rounded);
}
float as_f16(float x) { return float(f16(x)); }

int whole_in(float x, int low, int high) {
  return int(std::clamp<long>(std::lround(x), low, high));
}

// --- Q4_K ---

constexpr int part4 = 32, most4 = 15;

struct Range {
  float scale = 0, min = 0;  // x = scale * q - min, both at least 0
};

// The scale and minimum that fit x best for given whole numbers; nothing changes if these do not
// determine them.
Range fitted(const float* x, const float* weights, const std::array<int, part4>& q, Range plain) {
  double w = 0, wq = 0, wqq = 0, wx = 0, wqx = 0;
  for (size_t i = 0; i < part4; ++i) {
    const double k = weights[i], n = q[i], v = x[i];
    w += k, wq += k * n, wqq += k * n * n, wx += k * v, wqx += k * n * v;
  }
  const double det = w * wqq - wq * wq;
  if (!(det > 0)) return plain;
  double scale = (w * wqx - wq * wx) / det, min = (wqq * wx - wq * wqx) / det;
  if (min > 0) scale = wqq > 0 ? wqx / wqq : 0, min = 0;
  return scale > 0 ? Range{float(scale), float(-min)} : plain;
}

double error_of_range(const float* x, const float* weights, const std::array<int, part4>& q,
                      Range r) {
  double sum = 0;
  for (size_t i = 0; i < part4; ++i) {
    const double far = double(r.scale) * q[i] - double(r.min) - double(x[i]);
    sum += double(weights[i]) * far * far;
  }
  return sum;
}

Range best_range(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + part4);
  const float min = std::min(*low, 0.0f), width = *high - min;
  if (!(width > 0)) return {0, -min};
  float square = 0;
  std::array<float, part4> weights;
  for (int i = 0; i < part4; ++i) square += x[i] * x[i];
  const float usual = std::sqrt(square / part4);
  for (size_t i = 0; i < part4; ++i) weights[i] = usual + std::abs(x[i]);

  Range best{width / most4, -min};
  double least = HUGE_VAL;
  for (int step = -10; step <= 10; ++step) {
    const float inverse = (most4 + 0.1f * float(step)) / width;
    std::array<int, part4> q;
    for (size_t i = 0; i < part4; ++i) q[i] = whole_in((x[i] - min) * inverse, 0, most4);
    const Range r = fitted(x, weights.data(), q, {1 / inverse, -min});
    if (const double e = error_of_range(x, weights.data(), q, r); e < least) least = e, best = r;
  }
  return best;
}

// --- Q6_K ---

constexpr int part6 = 16, least6 = -32, most6 = 31;

// x = scale * q. Large values weigh more; a negative scale uses the one number more below zero.
float best_scale(const float* x) {
  const float far =
      *std::max_element(x, x + part6, [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (far == 0) return 0;
  double best = -1;
  float scale = 0;
  for (int step = -9; step <= 9; ++step) {
    const float inverse = (float(least6) + 0.1f * float(step)) / far;
    double wqx = 0, wqq = 0;
    for (int i = 0; i < part6; ++i) {
      const double q = whole_in(x[i] * inverse, least6, most6), v = x[i];
      wqx += v * v * q * v, wqq += v * v * q * q;
    }
    if (wqq > 0 && wqx * wqx / wqq > best) {  // the error is a constant minus this
      best = wqx * wqx / wqq;
      scale = float(wqx / wqq);
    }
  }
  return scale;
}

}  // namespace

void floats_to_q4k(std::byte* block, const float* x) {
  std::array<Range, k_block / part4> ranges;
  float scale = 0, min = 0;
  for (size_t p = 0; p < ranges.size(); ++p) {
    ranges[p] = best_range(x + p * part4);
    scale = std::max(scale, ranges[p].scale), min = std::max(min, ranges[p].min);
  }
  std::memset(block, 0, 144);
  put_f16(block, scale / 63), put_f16(block + 2, min / 63);
  const float d = as_f16(scale / 63), least = as_f16(min / 63);
  for (int p = 0; p < int(ranges.size()); ++p) {
    const Range& r = ranges[size_t(p)];
    const ScaleAndMin packed{d > 0 ? whole_in(r.scale / d, 0, 63) : 0,
                             least > 0 ? whole_in(r.min / least, 0, 63) : 0};
    pack_scale(block + 4, p, packed);
    const float own = d * float(packed.scale), below = least * float(packed.min);
    for (int i = 0; i < part4; ++i) {
      const int q = own > 0 ? whole_in((x[p * part4 + i] + below) / own, 0, most4) : 0;
      block[16 + p / 2 * 32 + i] |= std::byte(uint8_t(q << (p % 2 * 4)));
    }
  }
}

void floats_to_q6k(std::byte* block, const float* x) {
  std::array<float, k_block / part6> scales;
  float far = 0;
  for (size_t p = 0; p < scales.size(); ++p) {
    scales[p] = best_scale(x + p * part6);
    if (std::abs(scales[p]) > std::abs(far)) far = scales[p];
  }
  std::memset(block, 0, 210);
  put_f16(block + 208, far / -128);
  const float d = as_f16(far / -128);
  for (int i = 0; i < k_block; ++i) {
    const int p = i / part6, scale = d != 0 ? whole_in(scales[size_t(p)] / d, -128, 127) : 0;
    if (i % part6 == 0) block[192 + p] = std::byte(uint8_t(int8_t(scale)));
    const float own = d * float(scale);
    const int q = (own != 0 ? whole_in(x[i] / own, least6, most6) : 0) - least6;
    const int half = i / 128, part = i % 128 / 32, at = i % 32;
    block[half * 64 + part % 2 * 32 + at] |= std::byte(uint8_t((q & 15) << (part / 2 * 4)));
    block[128 + half * 32 + at] |= std::byte(uint8_t(q >> 4 << (2 * part)));
  }
}

}  // namespace hearth::inline formats
