// Quantised weights: a matrix (N, K) as integers with scales, in the one layout that all kernels
// read. Rows are kept in panels of 16, so that one vector of integer dot products, or one tile,
// covers 4 k of 16 rows.
//
// int8: w[n, k] = scale[n] * q, q in [-127, 127].
// int4: w[n, k] = scale[n] * factor[n, k / 32] * q, factor in [-15, 15] and q in [-8, 7]: the scale
// of a group is an integer multiple of its row's. Every |factor * q| fits a byte, and sums of
// products with int8 are exact in 32 bits, in any order, on any machine.
// fp8: w[n, k] = scale[n] * code, code an e4m3 (core/fp8.h); laid out like int8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace hearth::inline sys {
class Threads;
}

namespace hearth::inline core {

enum class WeightFormat : uint8_t { plain, int8, int4, fp8 };
constexpr WeightFormat weight_formats[] = {WeightFormat::plain, WeightFormat::int8,
                                           WeightFormat::int4, WeightFormat::fp8};
std::string_view to_string(WeightFormat);

// The dtype of a tensor of packed weights, and the format of a dtype (plain for all others).
constexpr DType panels_of(WeightFormat f) {
  return f == WeightFormat::int8   ? DType::int8_panels
         : f == WeightFormat::int4 ? DType::int4_panels
                                   : DType::fp8_panels;
}
constexpr WeightFormat format_of(DType d) {
  return d == DType::int8_panels   ? WeightFormat::int8
         : d == DType::int4_panels ? WeightFormat::int4
         : d == DType::fp8_panels  ? WeightFormat::fp8
                                   : WeightFormat::plain;
}

constexpr int64_t quant_panel = 16;      // rows in a panel
constexpr int64_t quant_group = 32;      // consecutive k that share a factor
constexpr int64_t quant_k = 64;          // k is padded to this with zeros
constexpr int64_t quant_most_k = 65536;  // 127 * 127 * quant_most_k fits 31 bits

// The header of a packed matrix. It is followed by the scales (f32) of the padded rows, the sums of
// their q (i32; zeros for other formats than int8), and the panels.
struct QuantHeader {
  int64_t rows = 0, cols = 0;  // N padded to whole panels; K without padding
  WeightFormat format = WeightFormat::int8;
  uint8_t reserved[47] = {};
};
static_assert(sizeof(QuantHeader) == 64);

// Offsets in a packed matrix. A panel of int8 or fp8 holds, for each 4 k, 4 bytes of each of its
// rows. A panel of int4 starts with one byte of factor per row and group (padded to 64 bytes); then
// each group has 4 vectors of 64 bytes: vector v holds 4 k from 4 v on in its low nibbles and 4 k
// from 16 + 4 v on in its high nibbles, each plus 8.
struct QuantLayout {
  int64_t rows, cols;
  WeightFormat format;

  explicit QuantLayout(const QuantHeader& h) : rows(h.rows), cols(h.cols), format(h.format) {}
  QuantLayout(int64_t n, int64_t k, WeightFormat f)
      : rows((n + quant_panel - 1) / quant_panel * quant_panel), cols(k), format(f) {}
  // The layout of a matrix of this size in bytes, for callers that cannot read the header.
  static QuantLayout of_bytes(int64_t bytes, int64_t k, WeightFormat f) {
    const QuantLayout one(quant_panel, k, f);
    const int64_t each = one.bytes() - one.scales();
    return QuantLayout((bytes - one.scales()) / each * quant_panel, k, f);
  }

  int64_t padded_k() const { return (cols + quant_k - 1) / quant_k * quant_k; }
  int64_t groups() const { return padded_k() / quant_group; }
  int64_t panels() const { return rows / quant_panel; }
  int64_t scales() const { return int64_t(sizeof(QuantHeader)); }
  int64_t sums() const { return scales() + rows * 4; }
  int64_t first_panel() const { return sums() + rows * 4; }  // a multiple of 64
  int64_t factor_bytes() const { return (groups() * quant_panel + 63) / 64 * 64; }
  int64_t panel_bytes() const {
    return format == WeightFormat::int4 ? factor_bytes() + padded_k() * quant_panel / 2
                                        : padded_k() * quant_panel;
  }
  int64_t panel(int64_t i) const { return first_panel() + i * panel_bytes(); }
  int64_t bytes() const { return panel(panels()); }
};

// Fills `out` (bytes() of the layout, aligned to 64) from the n rows of k weights in w; padding
// rows are zeros. int8 and fp8 scale by the largest magnitude of a row; int4 searches for the
// factors with the least squared error.
void quantise(std::span<std::byte> out, const QuantLayout&, std::span<const float> w, Threads&);

// The weight that kernels use for element (n, k).
double quantised_value(const std::byte* packed, int64_t n, int64_t k);

}  // namespace hearth::inline core
