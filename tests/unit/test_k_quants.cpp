// ggml's quantised types: every block of random bytes against a decoder written here, in the order
// of the bytes (the code decodes in the order of the values), and what writing loses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/dtype.h"
#include "formats/gguf/gguf.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;

using Raw = std::vector<uint8_t>;

double half_at(const Raw& b, size_t at) {
  f16 x;
  std::memcpy(&x, b.data() + at, sizeof x);
  return double(float(x));
}
void put_half(Raw& b, size_t at, float value) {
  const f16 x(value);
  std::memcpy(b.data() + at, &x, sizeof x);
}

// --- decoders, byte by byte ---

std::vector<double> decode_q4_1(const Raw& b) {
  std::vector<double> x(32);
  for (size_t i = 0; i < 16; ++i) {
    x[i] = half_at(b, 0) * (b[4 + i] % 16) + half_at(b, 2);
    x[i + 16] = half_at(b, 0) * (b[4 + i] / 16) + half_at(b, 2);
  }
  return x;
}

std::vector<double> decode_q5(const Raw& b, bool has_min) {
  const size_t high = has_min ? 4 : 2;
  std::vector<double> x(32);
  for (size_t i = 0; i < 32; ++i) {
    const int low = i < 16 ? b[high + 4 + i] % 16 : b[high + 4 + i - 16] / 16;
    const int q = low + (b[high + i / 8] >> i % 8) % 2 * 16;
    x[i] = has_min ? half_at(b, 0) * q + half_at(b, 2) : half_at(b, 0) * (q - 16);
  }
  return x;
}

std::vector<double> decode_q2k(const Raw& b) {
  std::vector<double> x(256);
  for (size_t byte = 0; byte < 64; ++byte)  // four values, 32 apart
    for (size_t k = 0; k < 4; ++k) {
      const size_t i = byte / 32 * 128 + k * 32 + byte % 32;
      const int q = (b[16 + byte] >> 2 * k) % 4, scale = b[i / 16];
      x[i] = half_at(b, 80) * (scale % 16) * q - half_at(b, 82) * (scale / 16);
    }
  return x;
}

std::vector<double> decode_q3k(const Raw& b) {
  int scales[16];
  for (int i = 0; i < 16;
       ++i) {  // 12 bytes: eight with two low halves each, four with the high bits
    const int low = i < 8 ? b[96 + size_t(i)] % 16 : b[96 + size_t(i) - 8] / 16;
    const int high = b[104 + size_t(i) % 4] / (i < 4 ? 1 : i < 8 ? 4 : i < 12 ? 16 : 64) % 4;
    scales[i] = low + 16 * high - 32;
  }
  std::vector<double> x(256);
  for (size_t byte = 0; byte < 64; ++byte)
    for (size_t k = 0; k < 4; ++k) {
      const size_t i = byte / 32 * 128 + k * 32 + byte % 32;
      const int q = (b[32 + byte] >> 2 * k) % 4;
      const bool high = (b[byte % 32] >> (byte / 32 * 4 + k)) % 2;
      x[i] = half_at(b, 108) * scales[i / 16] * (high ? q : q - 4);
    }
  return x;
}

// Eight scales and eight minimums of 6 bits in 12 bytes.
void scales_of(const uint8_t* s, int scales[8], int mins[8]) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = s[i] % 64, mins[i] = s[i + 4] % 64;
    scales[i + 4] = s[i + 8] % 16 + 16 * (s[i] / 64);
    mins[i + 4] = s[i + 8] / 16 + 16 * (s[i + 4] / 64);
  }
}

std::vector<double> decode_q45k(const Raw& b, bool fifth) {
  int scales[8], mins[8];
  scales_of(b.data() + 4, scales, mins);
  std::vector<double> x(256);
  for (size_t byte = 0; byte < 128; ++byte)
    for (size_t k = 0; k < 2; ++k) {
      const size_t part = byte / 32 * 2 + k, i = part * 32 + byte % 32;
      int q = k ? b[(fifth ? 48 : 16) + byte] / 16 : b[(fifth ? 48 : 16) + byte] % 16;
      if (fifth) q += (b[16 + byte % 32] >> part) % 2 * 16;
      x[i] = half_at(b, 0) * scales[part] * q - half_at(b, 2) * mins[part];
    }
  return x;
}

std::vector<double> decode_q6k(const Raw& b) {
  std::vector<double> x(256);
  for (size_t half = 0; half < 2; ++half)
    for (size_t l = 0; l < 32; ++l) {
      const int low0 = b[half * 64 + l], low1 = b[half * 64 + 32 + l],
                high = b[128 + half * 32 + l];
      const int q[4] = {low0 % 16 + 16 * (high % 4), low1 % 16 + 16 * (high / 4 % 4),
                        low0 / 16 + 16 * (high / 16 % 4), low1 / 16 + 16 * (high / 64)};
      for (size_t k = 0; k < 4; ++k) {
        const int scale = int8_t(b[192 + half * 8 + 2 * k + l / 16]);
        x[half * 128 + k * 32 + l] = half_at(b, 208) * scale * (q[k] - 32);
      }
    }
  return x;
}

std::vector<double> decode_q8k(const Raw& b) {
  float scale;
  std::memcpy(&scale, b.data(), 4);
  std::vector<double> x(256);
  for (size_t i = 0; i < 256; ++i) x[i] = double(scale) * int8_t(b[4 + i]);
  return x;
}

struct Case {
  GgmlType type;
  size_t bytes;
  std::vector<size_t> halves;  // where the block has f16 numbers
  std::function<std::vector<double>(const Raw&)> decode;
};

std::vector<Case> block_cases() {
  return {{GgmlType::q4_1, 20, {0, 2}, decode_q4_1},
          {GgmlType::q5_0, 22, {0}, [](const Raw& b) { return decode_q5(b, false); }},
          {GgmlType::q5_1, 24, {0, 2}, [](const Raw& b) { return decode_q5(b, true); }},
          {GgmlType::q2_k, 84, {80, 82}, decode_q2k},
          {GgmlType::q3_k, 110, {108}, decode_q3k},
          {GgmlType::q4_k, 144, {0, 2}, [](const Raw& b) { return decode_q45k(b, false); }},
          {GgmlType::q5_k, 176, {0, 2}, [](const Raw& b) { return decode_q45k(b, true); }},
          {GgmlType::q6_k, 210, {208}, decode_q6k},
          {GgmlType::q8_k, 292, {}, decode_q8k}};
}

TEST(KQuants, RandomBlocksAreReadAsTheirLayoutSays) {
  std::mt19937 random(17);
  for (const Case& c : block_cases()) {
    SCOPED_TRACE(to_string(c.type));
    ASSERT_EQ(size_t(block_bytes(c.type)), c.bytes);
    for (int round = 0; round < 20; ++round) {
      Raw all;
      std::vector<double> want;
      for (int block = 0; block < 3; ++block) {
        Raw b(c.bytes);
        for (uint8_t& x : b) x = uint8_t(random());
        for (const size_t at : c.halves) put_half(b, at, float(int(random() % 2001) - 1000) / 512);
        if (c.type == GgmlType::q8_k) {
          const float scale = float(int(random() % 2001) - 1000) / 512;
          std::memcpy(b.data(), &scale, 4);
        }
        const std::vector<double> own = c.decode(b);
        want.insert(want.end(), own.begin(), own.end());
        all.insert(all.end(), b.begin(), b.end());
      }
      const std::vector<float> got = from_ggml(std::as_bytes(std::span(all)), c.type);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(double(got[i]), want[i], 1e-6 * std::max(1.0, std::abs(want[i])) * 64) << i;
    }
  }
}

// --- writing ---

std::vector<float> drawn(size_t n, float mean) {
  std::mt19937 random(23);
  std::normal_distribution<float> draw(mean, 1);
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

double relative_error(const std::vector<float>& x, GgmlType t) {
  const std::vector<float> y = from_ggml(to_ggml(x, t), t);
  EXPECT_EQ(x.size(), y.size());
  double sum = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += std::pow(double(x[i]) - double(y[i]), 2), all += double(x[i]) * double(x[i]);
  return std::sqrt(sum / all);
}

TEST(KQuants, WritingLosesLittle) {
  const std::vector<float> x = drawn(256 * 40, 0), shifted = drawn(256 * 40, 2);
  EXPECT_LT(relative_error(x, GgmlType::q4_k), 0.075);
  EXPECT_LT(relative_error(x, GgmlType::q4_k), 0.9 * relative_error(x, GgmlType::q4_0));
  EXPECT_LT(relative_error(x, GgmlType::q6_k), 0.018);
  EXPECT_GT(relative_error(x, GgmlType::q6_k), 0.002);
  // A minimum serves values of one sign.
  EXPECT_LT(relative_error(shifted, GgmlType::q4_k), 0.05);
}

// Values that a block can hold exactly come back so, of either sign and with a zero block.
TEST(KQuants, WritesWhatFitsExactly) {
  std::vector<float> x(512, 0.0f);
  for (size_t i = 0; i < 256; ++i) x[i] = float(int((i * 7) % 64) - 32) / 32;
  for (size_t part = 0; part < 16; ++part) x[part * 16] = -1;  // every part has the same scale
  const std::vector<float> y = from_ggml(to_ggml(x, GgmlType::q6_k), GgmlType::q6_k);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 2e-3) << i;
  for (size_t i = 0; i < 256; ++i) x[i] = float((i * 5) % 16) / 8 - 0.5f;
  for (size_t part = 0; part < 8; ++part) x[part * 32] = -0.5f, x[part * 32 + 1] = 15 / 8.f - 0.5f;
  const std::vector<float> z = from_ggml(to_ggml(x, GgmlType::q4_k), GgmlType::q4_k);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], z[i], 2e-3) << i;
  for (size_t i = 256; i < 512; ++i) EXPECT_EQ(z[i], 0);
}

TEST(KQuants, RefusesWhatItCannotWrite) {
  expect_error(error_of([] { to_ggml(std::vector<float>(256), GgmlType::q3_k); }),
               "Q3_K can be read, but not written");
  expect_error(error_of([] { to_ggml(std::vector<float>(255), GgmlType::q4_k); }),
               "expected a multiple of 256 values for Q4_K, got 255");
  expect_error(error_of([] { to_ggml(std::vector<float>(256, INFINITY), GgmlType::q6_k); }),
               "expected finite weights");
}

}  // namespace
}  // namespace hearth
