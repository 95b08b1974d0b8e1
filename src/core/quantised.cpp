#include "core/quantised.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/fp8.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline core {
namespace {

float largest(const float* x, int64_t n) {
  float m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, std::abs(x[i]));
  return m;
}

// Rounds to the nearest integer by way of a floating-point addition; |x| < 2^22. Unlike a library
// call, compilers vectorise it.
float nearest(float x) {
  constexpr float shift = 12582912;  // 1.5 * 2^23
  return (x + shift) - shift;
}

float rounded(float x, float low, float high) {
  return std::min(high, std::max(low, nearest(std::min(high + 1, std::max(low - 1, x)))));
}

// Element k of a panel's row in the int8 layout.
int8_t* quad_of(std::byte* panel, int64_t row, int64_t k) {
  return reinterpret_cast<int8_t*>(panel) + k / 4 * 64 + row * 4 + k % 4;
}

struct RowTerms {
  float scale = 0;
  int32_t sum = 0;
};

RowTerms int8_row(std::byte* panel, int64_t row, const float* w, int64_t K) {
  const float most = largest(w, K);
  if (!(most > 0)) return {};
  RowTerms t{most / 127, 0};
  const float inverse = 127 / most;
  for (int64_t k = 0; k < K; ++k) {
    const int q = int(rounded(w[k] * inverse, -127, 127));
    *quad_of(panel, row, k) = int8_t(q);
    t.sum += q;
  }
  return t;
}

// The largest weight becomes 448, the largest code; above 2^-14 of it, 4 significant bits remain.
float fp8_row(std::byte* panel, int64_t row, const float* w, int64_t K) {
  const float most = largest(w, K);
  if (!(most > 1e-30f)) return 0;
  const float inverse = 448 / most;
  for (int64_t k = 0; k < K; ++k) *quad_of(panel, row, k) = int8_t(e4m3(w[k] * inverse).bits);
  return most / 448;
}

using Four [[gnu::vector_size(16)]] = float;

Four four_of(const float* p) {
  Four v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Sum of squared errors of a group quantised with this step.
float group_error(const float* w, float step) {
  constexpr float shift = 12582912;  // as in nearest()
  const float inverse = 1 / step;
  Four sum = {};
  for (int64_t k = 0; k < quant_group; k += 4) {
    const Four x = four_of(w + k);
    Four q = x * inverse;  // |q| is small: the step is near the largest weight / 8
    q = (q + shift) - shift;
    q = q > 7 ? Four{} + 7 : q;
    q = q < -8 ? Four{} - 8 : q;
    const Four d = x - step * q;
    sum += d * d;
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

struct Factor {
  int value = 0;
  float error = 0;
};

// The best factor of one group, given the row's scale: tries those nearest to the one that covers
// the largest weight, with either sign, because q reaches one further on the negative side.
Factor best_factor(const float* w, float scale) {
  const float most = largest(w, quant_group);
  Factor best;
  for (int64_t k = 0; k < quant_group; ++k) best.error += w[k] * w[k];
  const int middle = int(most / (8 * scale));
  for (int f = std::max(1, middle); f <= std::min(15, middle + 1); ++f)
    for (const int value : {f, -f})
      if (const float e = group_error(w, scale * float(value)); e < best.error) best = {value, e};
  return best;
}

constexpr float scale_tries[] = {1.0f, 0.94f, 0.88f};

struct GroupedRow {
  float scale = 0;
  std::vector<int> factors;
};

GroupedRow best_row(const float* w, int64_t groups) {
  GroupedRow best{0, std::vector<int>(size_t(groups))};
  const float most = largest(w, groups * quant_group);
  if (!(most > 0)) return best;
  double least = -1;
  std::vector<int> factors(static_cast<size_t>(groups));
  for (const float shrink : scale_tries) {
    const float scale = shrink * most / (8 * 15);
    double error = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const Factor f = best_factor(w + g * quant_group, scale);
      factors[size_t(g)] = f.value;
      error += f.error;
    }
    if (least < 0 || error < least) least = error, best = {scale, factors};
  }
  return best;
}

float int4_row(std::byte* panel, const QuantLayout& l, int64_t row, const float* w) {
  const GroupedRow r = best_row(w, l.groups());
  for (int64_t g = 0; g < l.groups(); ++g) {
    const int factor = r.factors[size_t(g)];
    reinterpret_cast<int8_t*>(panel)[g * quant_panel + row] = int8_t(factor);
    const float inverse = factor ? 1 / (r.scale * float(factor)) : 0;
    uint8_t* nibbles =
        reinterpret_cast<uint8_t*>(panel) + l.factor_bytes() + g * quant_group * quant_panel / 2;
    for (int64_t i = 0; i < quant_group; ++i) {
      const int q = int(rounded(w[g * quant_group + i] * inverse, -8, 7)) + 8;
      nibbles[i % 16 / 4 * 64 + row * 4 + i % 4] |= uint8_t(i < 16 ? q : q << 4);
    }
  }
  return r.scale;
}

}  // namespace

std::string_view to_string(WeightFormat f) {
  constexpr std::string_view names[] = {"plain", "int8", "int4", "fp8"};
  return names[size_t(f)];
}

void quantise(std::span<std::byte> out, const QuantLayout& l, std::span<const float> w,
              Threads& threads) {
  const int64_t K = l.cols, N = K ? int64_t(w.size()) / K : 0;
  if (int64_t(out.size()) != l.bytes() || K < 1 || K > quant_most_k || N > l.rows ||
      N * K != int64_t(w.size()) || l.format == WeightFormat::plain)
    fail("quantise", "expected at most {} rows of 1 to {} weights, got {} weights in rows of {}",
         l.rows, quant_most_k, w.size(), K);
  for (const float x : w)
    if (!std::isfinite(x))
      fail("quantise", "expected finite weights, got {}: the model may be damaged", x);
  std::memset(out.data(), 0, out.size());
  const QuantHeader header{.rows = l.rows, .cols = K, .format = l.format};
  std::memcpy(out.data(), &header, sizeof header);
  auto* scales = reinterpret_cast<float*>(out.data() + l.scales());
  auto* sums = reinterpret_cast<int32_t*>(out.data() + l.sums());
  threads.run(l.panels(), [&](int64_t p, int) {
    std::vector<float> padded(size_t(l.padded_k()));
    for (int64_t row = 0; row < quant_panel; ++row) {
      const int64_t n = p * quant_panel + row;
      std::byte* panel = out.data() + l.panel(p);
      if (n < N) std::copy_n(w.data() + n * K, K, padded.begin());
      // Zeros still have to be encoded: q = 0 is stored as 8 in int4.
      if (n >= N) std::fill(padded.begin(), padded.end(), 0.0f);
      if (l.format == WeightFormat::int4) {
        scales[n] = int4_row(panel, l, row, padded.data());
        continue;
      }
      if (l.format == WeightFormat::fp8) {
        scales[n] = fp8_row(panel, row, padded.data(), K);
        continue;
      }
      const RowTerms t = int8_row(panel, row, padded.data(), K);
      scales[n] = t.scale, sums[n] = t.sum;
    }
  });
}

double quantised_value(const std::byte* packed, int64_t n, int64_t k) {
  QuantHeader header;
  std::memcpy(&header, packed, sizeof header);
  const QuantLayout l(header);
  const double scale = reinterpret_cast<const float*>(packed + l.scales())[n];
  const std::byte* panel = packed + l.panel(n / quant_panel);
  const int64_t row = n % quant_panel;
  if (l.format != WeightFormat::int4) {
    const int8_t q = *quad_of(const_cast<std::byte*>(panel), row, k);
    if (l.format == WeightFormat::int8) return scale * q;
    e4m3 code;
    code.bits = uint8_t(q);
    return scale * double(float(code));
  }
  const int64_t g = k / quant_group, i = k % quant_group;
  const auto* nibbles = reinterpret_cast<const uint8_t*>(panel) + l.factor_bytes() +
                        g * quant_group * quant_panel / 2;
  const uint8_t byte = nibbles[i % 16 / 4 * 64 + row * 4 + i % 4];
  const int q = (i < 16 ? byte & 15 : byte >> 4) - 8;
  return scale * reinterpret_cast<const int8_t*>(panel)[g * quant_panel + row] * q;
}

}  // namespace hearth::inline core
