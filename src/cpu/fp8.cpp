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

// Columns of a transposed copy from R on.
void clear_columns(const Tensor& yt, int64_t R) {
  for (int64_t c = 0; c < yt.rows(); ++c)
    std::fill(yt.as<uint8_t>() + c * yt.cols() + R, yt.as<uint8_t>() + (c + 1) * yt.cols(), 0);
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
  const Fp8Output& to;
  const bf16* x;
  int64_t R;
  int64_t C = to.cols();
  DType format = to.dtype();
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
    auto* y = to.y.as<uint8_t>();
    auto* yt = to.yt.as<uint8_t>();
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < C; ++c) {
        const uint8_t code = encoded(format, float(x[r * C + c]), inverse);
        if (y) y[r * C + c] = code;
        if (yt) yt[c * wide + r] = code;
      }
    if (yt && end == R) clear_columns(to.yt, R);
    if (to.sums) add_rows(to.sums.as<float>() + tile * C, begin, end);
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

void expect_roundable(const Tensor& x, const Fp8Output& to) {
  if (x.dtype != DType::bf16) fail("quantise_fp8", "expected bf16, got {}", to_string(x.dtype));
  if (to.cols() % 16)
    fail("quantise_fp8", "expected a width that is a multiple of 16, got {}", to.cols());
  for (const Tensor& t : {to.y, to.yt})
    if (t && !is_fp8(t.dtype))
      fail("quantise_fp8", "expected an fp8 output, got {}", to_string(t.dtype));
}

void round_to(const Fp8Run& run, const Fp8Output& to, const Tensor& x) {
  expect_roundable(x, to);
  Rounding pass{.to = to, .x = x.as<bf16>(), .R = x.rows()};
  Fp8Site site;
  std::memcpy(&site, to.site.data, sizeof site);
  std::vector<uint32_t> largest(size_t(pass.tiles()));
  each_piece(run.threads, pass.tiles(),
             [&](int64_t tile) { largest[size_t(tile)] = pass.largest_of(tile); });
  for (const uint32_t bits : largest) site.largest = std::max(site.largest, bits);
  const bool measures = fp8_measures(site, to.scalars ? to.scalars.as<Scalars>() : nullptr);
  const uint32_t from = measures ? site.largest : std::bit_cast<uint32_t>(site.previous);
  const uint32_t scale = fp8_scale_bits(from, pass.format == DType::e5m2, !measures);
  site.scale = std::bit_cast<float>(scale);
  pass.inverse = std::bit_cast<float>((254u << 23) - scale);
  std::memcpy(to.site.data, &site, sizeof site);
  each_piece(run.threads, pass.tiles(), [&](int64_t tile) { pass.round(tile); });
}

// A result as the kernel wants it: its tensor, or scratch if only fp8 copies are needed.
Tensor in_bf16(const Fp8Run& run, const Tensor& y, const Shape& shape) {
  return y ? y : Tensor{run.scratch.get(2 * shape.numel()), shape, DType::bf16};
}

// Elements of a tensor with one per row.
Tensor part_of(const Tensor& t, int64_t begin, int64_t n) {
  return t ? Tensor{t.data + begin * size_of(t.dtype), {n}, t.dtype} : t;
}

}  // namespace

Fp8Run fp8_run(Stream& s, const Fp8Parts& parts) {
  return {s, &cpu_stream(s).threads, cpu_stream(s).fp8_scratch, parts};
}

void quantise_fp8(const Fp8Run& run, const QuantiseFp8Args& a) {
  if (a.spec.act == Act::none) return round_to(run, a.to, a.x);
  Shape shape = a.x.shape;
  shape.dim[size_t(shape.rank - 1)] = a.to.cols();
  const Tensor v = in_bf16(run, {}, shape);
  if (a.spec.act_slope)
    run.parts.activation_bwd(run.stream, {.dx = v, .dy = a.x, .x = a.aux, .act = a.spec.act});
  else
    run.parts.activation(run.stream, {.y = v, .x = a.x, .act = a.spec.act});
  round_to(run, a.to, v);
}

void norm_fp8(const Fp8Run& run, const NormArgs& args) {
  NormArgs plain = args;
  plain.fp8 = {};
  plain.y = in_bf16(run, args.y, args.x.shape);
  run.parts.norm(run.stream, plain);
  round_to(run, args.fp8, plain.y);
}

void norm_bwd_fp8(const Fp8Run& run, const NormBwdArgs& args) {
  NormBwdArgs plain = args;
  plain.fp8 = {};
  plain.dx = in_bf16(run, args.dx, args.x.shape);
  run.parts.norm_bwd(run.stream, plain);
  round_to(run, args.fp8, plain.dx);
}

void qk_norm_rope_bwd_fp8(const Fp8Run& run, const QkNormRopeBwdArgs& args) {
  QkNormRopeBwdArgs plain = args;
  plain.fp8 = {};
  plain.dqkv = in_bf16(run, args.dqkv, args.dy.shape);
  run.parts.qk_norm_rope_bwd(run.stream, plain);
  round_to(run, args.fp8, plain.dqkv);
}

void attention_bwd_fp8(const Fp8Run& run, const AttentionBwdArgs& args) {
  AttentionBwdArgs plain = args;
  plain.fp8 = {};
  const Tensor dqkv = in_bf16(run, args.dq.tensor, args.q.tensor.shape);
  plain.dq.tensor = plain.dk.tensor = plain.dv.tensor = dqkv;
  run.parts.attention_bwd(run.stream, plain);
  round_to(run, args.fp8, dqkv);
}

// Computes the gradient of a few rows at a time in f32, with the factor left out.
void cross_entropy_fp8(const Fp8Run& run, const CrossEntropyArgs& args) {
  constexpr int64_t some = 64;
  const Fp8Output& to = args.fp8;
  expect_roundable(args.logits, to);
  const int64_t R = args.logits.rows(), C = args.logits.cols(), wide = round_up(R, 16);
  const float unit = fp8_logits_unit(args.spec);
  LossSpec spec = args.spec;
  spec.grad = true, spec.weight /= unit, spec.z_loss /= unit;
  Scalars one;
  const Tensor scalars{reinterpret_cast<std::byte*>(&one), {int64_t(sizeof one)}, DType::u8};
  auto* v = reinterpret_cast<float*>(run.scratch.get(4 * std::min(some, R) * C));
  for (int64_t begin = 0; begin < R; begin += some) {
    const int64_t n = std::min(some, R - begin);
    const bf16* x = args.logits.as<bf16>() + begin * C;
    each_piece(run.threads, n, [&](int64_t r) {
      for (int64_t i = r * C; i < (r + 1) * C; ++i) v[i] = float(x[i]);
    });
    run.parts.cross_entropy(run.stream,
                            {.nll = part_of(args.nll, begin, n),
                             .z = part_of(args.z, begin, n),
                             .logits = {reinterpret_cast<std::byte*>(v), {n, C}, DType::f32},
                             .targets = part_of(args.targets, begin, n),
                             .scalars = scalars,
                             .spec = spec});
    each_piece(run.threads, n, [&](int64_t r) {
      for (int64_t c = 0; c < C; ++c) {
        const uint8_t code = encoded(DType::e5m2, v[r * C + c], 1 / fp8_logits_scale);
        if (to.y) to.y.as<uint8_t>()[(begin + r) * C + c] = code;
        if (to.yt) to.yt.as<uint8_t>()[c * wide + begin + r] = code;
      }
    });
  }
  if (to.yt) clear_columns(to.yt, R);
  to.site.as<Fp8Site>()->scale =
      fp8_logits_scale * fp8_logits_factor(args.spec, *args.scalars.as<Scalars>());
  if (!args.spec.grad) return;
  CrossEntropyArgs plain = args;
  plain.fp8 = {};
  run.parts.cross_entropy(run.stream, plain);
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
  GemmArgs plain = args;
  // A scale is a power of two, which is exact in bf16, times a factor that alpha takes.
  const auto decode = [&](const Tensor& t, const Tensor& scale, std::byte* at) {
    int exponent = 0;
    const float factor = 2 * std::frexp(*scale.as<float>(), &exponent);
    if (factor != 1 && args.bias)
      fail("gemm", "expected a scale that is a power of two with a bias, got {}",
           *scale.as<float>());
    plain.spec.alpha *= factor;
    std::array<bf16, 256> table;
    for (int code = 0; code < 256; ++code)
      table[size_t(code)] = bf16(std::ldexp(decoded(t.dtype, code), exponent - 1));
    const Tensor wide{at, t.shape, DType::bf16};
    constexpr int64_t piece = 1 << 16;
    each_piece(&stream.threads, ceil_div(t.numel(), piece), [&](int64_t i) {
      const int64_t end = std::min(t.numel(), (i + 1) * piece);
      for (int64_t j = i * piece; j < end; ++j) wide.as<bf16>()[j] = table[t.as<uint8_t>()[j]];
    });
    return wide;
  };
  plain.a = decode(args.a, args.a_scale, to);
  plain.b = decode(args.b, args.b_scale, to + a_bytes);
  plain.a_scale = plain.b_scale = {};
  parts.gemm(s, plain);
}

}  // namespace hearth::inline cpu
