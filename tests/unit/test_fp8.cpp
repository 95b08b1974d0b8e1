// e4m3 and the KV cache made of it, against a codec written here: values from the format's
// definition, the nearest found by looking at all of them, attention in double over what it gives.
#define HEARTH_ISA fp8_test
#include <bit>
#include <limits>

#include "core/fp8.h"
#include "core/math.h"
#include "cpu/isa/simd_math.h"
#include "head_views.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

double value_of(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  if (e == 15 && m == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = e ? std::ldexp(1 + m / 8.0, e - 7) : std::ldexp(m / 8.0, -6);
  return code & 128 ? -magnitude : magnitude;
}

// The nearest of all finite codes, the even one of two as near.
int nearest(double x) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (int code = 0; code < 127; ++code) all.push_back(value_of(code));
    return all;
  }();
  int best = 0;
  double least = std::abs(x);
  for (int code = 1; code < 127; ++code) {
    const double off = std::abs(values[size_t(code)] - std::abs(x));
    if (off < least || (off == least && code % 2 == 0)) best = code, least = off;
  }
  return best | (std::signbit(x) ? 128 : 0);
}

float decoded(int code) {
  e4m3 c;
  c.bits = uint8_t(code);
  return float(c);
}

TEST(Fp8, EveryCodeIsItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const double want = value_of(code);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(decoded(code))) << code;
      EXPECT_TRUE(std::isnan(decoded(e4m3(decoded(code)).bits))) << code;
      continue;
    }
    EXPECT_EQ(double(decoded(code)), want) << code;
    EXPECT_EQ(std::signbit(decoded(code)), code >= 128) << code;
    EXPECT_EQ(int(e4m3(float(want)).bits), code);
  }
}

TEST(Fp8, RoundsToTheNearestAndStopsAtTheLargest) {
  for (int i = 0; i < 40000; ++i) {
    const float x = std::bit_cast<float>(uint32_t(0x38000000u + uint32_t(i) * 5003u));
    for (const float f : {x, -x}) {
      const int got = e4m3(f).bits;
      ASSERT_EQ(got, std::abs(f) >= 448 ? (f < 0 ? 0xfe : 0x7e) : nearest(f)) << f;
    }
  }
  for (int code = 0; code < 126; ++code) {  // halfway between two, and next to it
    const float middle = float((value_of(code) + value_of(code + 1)) / 2);
    for (const float f : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)})
      ASSERT_EQ(int(e4m3(f).bits), nearest(f)) << f;
  }
  EXPECT_EQ(e4m3(infinity).bits, 0x7e);
  EXPECT_EQ(e4m3(-infinity).bits, 0xfe);
  EXPECT_EQ(e4m3(1e-30f).bits, 0);
  EXPECT_EQ(e4m3(-1e-30f).bits, 0x80);
  EXPECT_TRUE(std::isnan(float(e4m3(NAN))));
}

TEST(Fp8, VectorsAreTheSame) {
  using namespace fp8_test;
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) == 127) continue;  // no cache holds it
    vb codes{};
    codes += uint8_t(code);
    const float f = decoded(code);
    EXPECT_EQ(std::bit_cast<uint32_t>(e4m3_to_float(codes)[lanes - 1]), std::bit_cast<uint32_t>(f));
    EXPECT_EQ(int(float_to_e4m3(broadcast(f))[lanes - 1]), code);
  }
  for (uint64_t u = 0; u < (1ull << 32); u += 10007) {
    const float f = std::bit_cast<float>(uint32_t(u));
    if (!std::isfinite(f)) continue;
    ASSERT_EQ(float_to_e4m3(broadcast(f))[0], e4m3(f).bits) << f;
  }
}

TEST(Fp8, AVectorHasTheExponentOfItsLargest) {
  std::vector<uint8_t> codes(7);
  std::vector<float> back(7);
  for (const float unit : {1.0f, 0x1p-100f, 0x1p126f, 3e-39f}) {
    const std::vector<float> x{
        0, 1.7f * unit, -0.3f * unit, 1e-3f * unit, -1.75f * unit, 0.01f * unit, -0.0f};
    const uint8_t e = encode_cached(codes.data(), x.data(), 7);
    decode_cached(back.data(), codes.data(), e, 7);
    if (unit > 1e-38f) {
      EXPECT_EQ(codes[4], 0xfe);  // 1.75 is 448 but for a power of two
    }
    for (size_t i = 0; i < 7; ++i)
      EXPECT_LE(std::abs(back[i] - x[i]), std::abs(x[i]) / 16 + 0x1p-135f) << unit << " " << i;
  }
  std::vector<float> above(7, 1.76f);
  EXPECT_EQ(encode_cached(codes.data(), above.data(), 7), 127 - 7);
  EXPECT_EQ(codes[0], nearest(1.76 * 128));

  std::vector<float> zero(7, 0.0f);
  const uint8_t e = encode_cached(codes.data(), zero.data(), 7);
  decode_cached(back.data(), codes.data(), e, 7);
  for (const float f : back) EXPECT_EQ(f, 0);
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> huge(7, largest);
  decode_cached(back.data(), codes.data(), encode_cached(codes.data(), huge.data(), 7), 7);
  for (const float f : back) EXPECT_GE(f, largest * 0.9f);
  for (const float bad : {infinity, -infinity, NAN}) {
    std::vector<float> x(7, 1.0f);
    x[3] = bad;
    decode_cached(back.data(), codes.data(), encode_cached(codes.data(), x.data(), 7), 7);
    for (const float f : back) EXPECT_TRUE(std::isnan(f));
  }
}

// --- attention ---

// Codes and exponent of D numbers: the least power of two that brings the largest to 448 or below.
std::vector<uint8_t> kept(const double* x, int64_t D) {
  double top = 0;
  for (int64_t i = 0; i < D; ++i) top = std::max(top, std::abs(x[i]));
  int e = -126;
  while (top > std::ldexp(448.0, e)) ++e;
  std::vector<uint8_t> r;
  for (int64_t i = 0; i < D; ++i) r.push_back(uint8_t(nearest(std::ldexp(x[i], -e))));
  r.push_back(uint8_t(e + 127));
  return r;
}

struct Variant {
  const char* name;
  int64_t H, G, D;
  int64_t window = 0;
  float softcap = 0;
  bool alibi = false;
};

const Variant variants[] = {{"plain", 4, 4, 16},           {"groups", 6, 2, 24},
                            {"one key head", 8, 1, 64},    {"odd heads", 3, 3, 21},
                            {"window", 4, 2, 16, 40},      {"softcap", 4, 2, 16, 0, 2},
                            {"all", 4, 2, 48, 70, 5, true}};

constexpr int64_t T = 140, width = 3;  // tokens of the one sequence, blocks of it

struct Problem {
  Variant v;
  AttnSpec spec;
  Array qkv, exact, slopes, tables;  // exact: qkv in double

  Problem(const Variant& variant, DType d) : v(variant) {
    spec = {.window = v.window, .scale = float(1 / std::sqrt(double(v.D))), .softcap = v.softcap};
    qkv = random({1, T, v.H + 2 * v.G, v.D}, d, 2);
    exact = qkv.as(DType::f64);
    for (int64_t i = 0; i < v.D; ++i) exact[at(5, v.H) + i] = 0;  // a key of zeros
    for (int64_t i = 0; i < v.D; ++i) exact[at(9, v.H + v.G) + i] *= 1024;
    qkv = exact.as(d);
    if (v.alibi) {
      Array s({v.H});
      for (int64_t h = 0; h < v.H; ++h) s[h] = std::exp2(-double(h + 1));
      slopes = s.as(DType::f32);
    }
    tables = Array::ints({1, width}, {2, 0, 3});
  }
  int64_t at(int64_t t, int64_t h) const { return (t * (v.H + 2 * v.G) + h) * v.D; }

  std::vector<double> seen(int64_t t, int64_t h) const {  // head h of token t as the cache keeps it
    const std::vector<uint8_t> k = kept(&exact[at(t, h)], v.D);
    std::vector<double> r;
    for (int64_t i = 0; i < v.D; ++i)
      r.push_back(std::ldexp(value_of(k[size_t(i)]), k.back() - 127));
    return r;
  }
  Array want() const {
    Array y({1, T, v.H, v.D});
    for (int64_t h = 0; h < v.H; ++h) {
      std::vector<std::vector<double>> keys, values;
      const int64_t g = h / (v.H / v.G);
      for (int64_t t = 0; t < T; ++t) {
        keys.push_back(seen(t, v.H + g)), values.push_back(seen(t, v.H + v.G + g));
        std::vector<double> p;
        double sum = 0;
        const int64_t first = v.window ? std::max<int64_t>(0, t - v.window + 1) : 0;
        for (int64_t j = first; j <= t; ++j) {
          double s = 0;
          for (int64_t i = 0; i < v.D; ++i) s += exact[at(t, h) + i] * keys[size_t(j)][size_t(i)];
          s *= double(spec.scale);
          if (v.softcap > 0) s = v.softcap * std::tanh(s / v.softcap);
          if (v.alibi) s -= std::exp2(-double(h + 1)) * double(t - j);
          p.push_back(std::exp(s)), sum += p.back();
        }
        for (int64_t j = first; j <= t; ++j)
          for (int64_t i = 0; i < v.D; ++i)
            y[(t * v.H + h) * v.D + i] += p[size_t(j - first)] / sum * values[size_t(j)][size_t(i)];
      }
    }
    return y;
  }
  Array cache() const {
    Array c({4, 2 * v.G, cache_block, v.D + 1}, DType::u8);
    std::memset(Tensor(c).data, 0xff, size_t(Tensor(c).bytes()));
    return c;
  }
  // Tokens [from, from + n) into the cache, and what their queries see.
  Array step(const Runner& r, const Array& cache, int64_t from, int64_t n) const {
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < n; ++i) positions.push_back(int32_t(from + i));
    const Tensor all = qkv;
    const Tensor rows{
        all.data + at(from, 0) * size_of(all.dtype), {1, n, v.H + 2 * v.G, v.D}, all.dtype};
    Array y = r.out({1, n, v.H, v.D});
    const QkvViews x = packed_views(rows, packed_qkv(v.H, v.G, v.D, v.D));
    r.k.attention_cached(r.s, {.y = y,
                               .cache = cache,
                               .q = x.q,
                               .k = x.k,
                               .v = x.v,
                               .positions = Array::ints({1, n}, positions),
                               .sequences = Array::ints({1, n}, std::vector<int32_t>(size_t(n), 0)),
                               .tables = tables,
                               .slopes = slopes,
                               .spec = spec});
    return y;
  }
};

void expect_kept(const Problem& p, const Array& cache) {
  const std::vector<int32_t> table{2, 0, 3};
  const auto* bytes = Tensor(cache).as<const uint8_t>();
  for (int64_t t = 0; t < T; ++t)
    for (int64_t h = 0; h < 2 * p.v.G; ++h) {
      const std::vector<uint8_t> want = kept(&p.exact[p.at(t, p.v.H + h)], p.v.D);
      const int64_t block = table[size_t(t / cache_block)], j = t % cache_block;
      const uint8_t* panel = bytes + (block * 2 * p.v.G + h) * cache_block * (p.v.D + 1);
      for (int64_t i = 0; i < p.v.D; ++i)
        ASSERT_EQ(panel[j * p.v.D + i], want[size_t(i)]) << t << " " << h << " " << i;
      ASSERT_EQ(panel[cache_block * p.v.D + j], want.back()) << t << " " << h;
    }
}

TEST(Fp8Attention, IsAttentionOverWhatTheCacheKeeps) {
  for (const DType d : dtypes)
    for (const Variant& v : variants) {
      SCOPED_TRACE(fmt::format("{} {}", v.name, to_string(d)));
      const Problem p(v, d);
      const Array want = p.want();
      {
        const Runner r = reference_runner();
        const Array cache = p.cache();
        expect_close(p.step(r, cache, 0, T), want, 1e-9);
        expect_kept(p, cache);
      }
      for (const Isa isa : usable_isas()) {
        SCOPED_TRACE(name(isa));
        const Runner r = runner_of(isa, 2, d);
        const Array whole_cache = p.cache(), whole = p.step(r, whole_cache, 0, T);
        expect_close(whole, want, tolerance(d));
        expect_kept(p, whole_cache);
        // In pieces, and token by token: the same bits.
        const Runner one = runner_of(isa, 1, d);
        for (const int64_t chunk : {37, 3, 1}) {
          const Array cache = p.cache();
          const int64_t row = v.H * v.D * size_of(d);
          for (int64_t from = 0; from < T; from += chunk) {
            const int64_t n = std::min(chunk, T - from);
            const Array y = p.step(one, cache, from, n);
            ASSERT_EQ(std::memcmp(Tensor(y).data, Tensor(whole).data + from * row, size_t(n * row)),
                      0)
                << chunk << " from " << from;
          }
          EXPECT_TRUE(same_bytes(cache, whole_cache));
        }
        if (testing::Test::HasFailure()) return;
      }
    }
}

// A key that is not finite shows in every row that sees it, and in no other.
TEST(Fp8Attention, WhatIsNotFiniteIsNotHidden) {
  for (const DType d : dtypes)
    for (const Isa isa : usable_isas()) {
      Problem p(variants[1], d);
      p.exact[p.at(70, p.v.H) + 3] = INFINITY;
      p.qkv = p.exact.as(d);
      const Runner r = runner_of(isa, 1, d);
      const Array cache = p.cache(), y = p.step(r, cache, 0, T).as(DType::f64);
      const auto nan_of = [&](int64_t t, int64_t h) {
        return std::isnan(y[(t * p.v.H + h) * p.v.D]);
      };
      for (int64_t t = 0; t < T; ++t) {
        EXPECT_EQ(nan_of(t, 0), t >= 70) << t;  // of the damaged key head
        EXPECT_FALSE(nan_of(t, p.v.H - 1)) << t;
      }
    }
}

}  // namespace
}  // namespace hearth::cpu_test
