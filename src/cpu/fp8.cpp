#include "cpu/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "core/fp8.h"
#include "cpu/stream.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline cpu {
namespace {

constexpr int64_t group_rows = 8;  // of a column sum: groups are summed first, then added in order

float decoded(DType d, int code) {
  if (d == DType::e4m3) {
    e4m3 c;
    c.bits = uint8_t(code);
    return float(c);
  }
  e5m2 c;
  c.bits = uint8_t(code);
  return float(c);
}

uint8_t encoded(DType d, float v, float inverse) {
  if (!std::isfinite(v)) return 0x7f;
  return d == DType::e4m3 ? e4m3(v * inverse).bits : e5m2(v * inverse).bits;
}

template <class F>
void each_piece(Threads* threads, int64_t pieces, F&& f) {
  if (!threads) {
    for (int64_t i = 0; i < pieces; ++i) f(i);
    return;
  }
  auto body = [&](int64_t piece, int) { f(piece); };
  threads->run(pieces, std::ref(body));
}

// One call: x (R, C) bf16 in tiles of fp8_sum_rows rows.
struct Rounding {
  const QuantiseFp8Args& args;
  const bf16* x;
  int64_t R = args.y.rows(), C = args.y.cols();
  DType format = args.y.dtype;
  float inverse = 1;

  int64_t tiles() const { return ceil_div(R, fp8_sum_rows); }

  uint32_t largest_of(int64_t tile) const {
    const int64_t begin = tile * fp8_sum_rows * C, end = std::min(R * C, begin + fp8_sum_rows * C);
    uint16_t largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, uint16_t(x[i].bits & 0x7fff));
    return uint32_t(largest) << 16;
  }

  void round(int64_t tile) const {
    const int64_t begin = tile * fp8_sum_rows, end = std::min(R, begin + fp8_sum_rows);
    const int64_t wide = round_up(R, 16);  // columns of yt
    auto* y = args.y.as<uint8_t>();
    auto* yt = args.yt.as<uint8_t>();
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < C; ++c) {
        const uint8_t code = encoded(format, float(x[r * C + c]), inverse);
        y[r * C + c] = code;
        if (yt) yt[c * wide + r] = code;
      }
    if (yt && end == R)
      for (int64_t c = 0; c < C; ++c) std::fill(yt + c * wide + R, yt + (c + 1) * wide, 0);
    if (args.sums) add_rows(args.sums.as<float>() + tile * C, begin, end);
  }

  void add_rows(float* sums, int64_t begin, int64_t end) const {
    std::fill(sums, sums + C, 0.0f);
    std::vector<float> group(static_cast<size_t>(C));
    for (int64_t first = begin; first < end; first += group_rows) {
      std::fill(group.begin(), group.end(), 0.0f);
      for (int64_t r = first; r < std::min(end, first + group_rows); ++r)
        for (int64_t c = 0; c < C; ++c) group[size_t(c)] += float(x[r * C + c]);
      for (int64_t c = 0; c < C; ++c) sums[c] += group[size_t(c)];
    }
  }
};

void expect_roundable(const QuantiseFp8Args& a) {
  if (a.x.dtype != DType::bf16) fail("quantise_fp8", "expected bf16, got {}", to_string(a.x.dtype));
  if (a.y.cols() % 16)
    fail("quantise_fp8", "expected a width that is a multiple of 16, got {}", a.y.cols());
  for (const Tensor& t : {a.y, a.yt})
    if (t && !is_fp8(t.dtype))
      fail("quantise_fp8", "expected an fp8 output, got {}", to_string(t.dtype));
}

// The argument of the rounding: x itself, or in scratch with the activation applied.
const bf16* value_of(Stream& s, Scratch& scratch, const QuantiseFp8Args& a, const Fp8Parts& parts) {
  if (a.spec.act == Act::none) return a.x.as<bf16>();
  const Tensor v{scratch.get(2 * a.y.numel()), a.y.shape, DType::bf16};
  if (a.spec.act_slope)
    parts.activation_bwd(s, {.dx = v, .dy = a.x, .x = a.aux, .act = a.spec.act});
  else
    parts.activation(s, {.y = v, .x = a.x, .act = a.spec.act});
  return v.as<bf16>();
}

}  // namespace

void quantise_fp8(Stream& s, Threads* threads, Scratch& scratch, const QuantiseFp8Args& args,
                  const Fp8Parts& parts) {
  expect_roundable(args);
  Rounding pass{.args = args, .x = value_of(s, scratch, args, parts)};
  Fp8Site site;
  std::memcpy(&site, args.site.data, sizeof site);
  std::vector<uint32_t> largest(size_t(pass.tiles()));
  each_piece(threads, pass.tiles(),
             [&](int64_t tile) { largest[size_t(tile)] = pass.largest_of(tile); });
  for (const uint32_t bits : largest) site.largest = std::max(site.largest, bits);
  const bool measures = fp8_measures(site, args.scalars ? args.scalars.as<Scalars>() : nullptr);
  const uint32_t from = measures ? site.largest : std::bit_cast<uint32_t>(site.previous);
  const uint32_t scale = fp8_scale_bits(from, pass.format == DType::e5m2, !measures);
  site.scale = std::bit_cast<float>(scale);
  pass.inverse = std::bit_cast<float>((254u << 23) - scale);
  std::memcpy(args.site.data, &site, sizeof site);
  each_piece(threads, pass.tiles(), [&](int64_t tile) { pass.round(tile); });
}

void quantise_fp8(Stream& s, const QuantiseFp8Args& args, const Fp8Parts& parts) {
  quantise_fp8(s, &cpu_stream(s).threads, cpu_stream(s).fp8_scratch, args, parts);
}

void advance_fp8(Stream&, const AdvanceFp8Args& args) {
  auto* sites = args.sites.as<Fp8Site>();
  for (int64_t i = 0; i < args.sites.rows(); ++i) {
    const uint32_t largest = std::exchange(sites[i].largest, 0);
    if (largest > 0 && largest < 0x7f800000u) sites[i].previous = std::bit_cast<float>(largest);
  }
}

void gemm_fp8(Stream& s, const GemmArgs& args, const Fp8Parts& parts) {
  if (!is_fp8(args.b.dtype) || !args.a_scale || !args.b_scale || args.spec.ta || !args.spec.tb)
    fail("gemm", "expected two fp8 matrices with scales, the second one transposed, got {} x {}",
         to_string(args.a.dtype), to_string(args.b.dtype));
  CpuStream& stream = cpu_stream(s);
  const int64_t a_bytes = round_up(2 * args.a.numel(), 64);
  std::byte* to = stream.fp8_scratch.get(a_bytes + 2 * args.b.numel());
  const auto decode = [&](const Tensor& t, const Tensor& scale, std::byte* at) {
    std::array<bf16, 256> table;
    for (int code = 0; code < 256; ++code)
      table[size_t(code)] = bf16(decoded(t.dtype, code) * *scale.as<float>());
    const Tensor wide{at, t.shape, DType::bf16};
    constexpr int64_t piece = 1 << 16;
    each_piece(&stream.threads, ceil_div(t.numel(), piece), [&](int64_t i) {
      const int64_t end = std::min(t.numel(), (i + 1) * piece);
      for (int64_t j = i * piece; j < end; ++j) wide.as<bf16>()[j] = table[t.as<uint8_t>()[j]];
    });
    return wide;
  };
  GemmArgs plain = args;
  plain.a = decode(args.a, args.a_scale, to);
  plain.b = decode(args.b, args.b_scale, to + a_bytes);
  plain.a_scale = plain.b_scale = {};
  parts.gemm(s, plain);
}

}  // namespace hearth::inline cpu
