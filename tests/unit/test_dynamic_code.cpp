// The 8-bit code of optimizer state: its levels, and rounding to the nearest.
#include "core/dynamic_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace hearth {
namespace {

const DynamicCode codes[] = {make_dynamic_code(false), make_dynamic_code(true)};

TEST(DynamicCode, HasTheLevelsOfBitsandbytes) {
  for (const DynamicCode& c : codes) {
    EXPECT_EQ(std::adjacent_find(c.value, c.value + 256, std::greater_equal<float>()),
              c.value + 256)
        << "not strictly ascending";
    EXPECT_EQ(std::count(c.value, c.value + 256, 0.0f), 1);
    EXPECT_EQ(c.value[255], 1);
  }
  // 127 magnitudes of either sign, 0 and 1; -1 is not among them.
  const DynamicCode& s = codes[true];
  EXPECT_EQ(s.value[DynamicCode::zero], 0);
  EXPECT_FALSE(std::signbit(s.value[DynamicCode::zero]));
  for (int i = 1; i <= 127; ++i) EXPECT_EQ(s.value[127 - i], -s.value[127 + i]);
  EXPECT_FLOAT_EQ(s.value[128], 0.55e-6f);
  EXPECT_FLOAT_EQ(s.value[129], 3.25e-6f);
  EXPECT_FLOAT_EQ(s.value[254], 1 - 0.45f / 64);
  // 254 magnitudes, 0 and 1.
  const DynamicCode& u = codes[false];
  EXPECT_EQ(u.value[0], 0);
  EXPECT_FLOAT_EQ(u.value[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(u.value[2], 7.75e-7f);
  EXPECT_FLOAT_EQ(u.value[254], 1 - 0.45f / 128);
}

int nearest(const DynamicCode& c, double x) {
  int best = 0;
  for (int i = 1; i < 256; ++i)
    if (std::abs(double(c.value[i]) - x) < std::abs(double(c.value[best]) - x)) best = i;
  return !c.has_sign && x > 0 && best == 0 ? 1 : best;
}

// Over all magnitudes: a float in every few thousand, and both neighbours of every middle.
TEST(DynamicCode, RoundsToTheNearest) {
  for (const DynamicCode& c : codes) {
    const auto expect_nearest = [&](float x) {
      // The middle is rounded to a float, so a float next to it may go either way.
      const double got = c.value[c.encode(x)], want = c.value[nearest(c, x)];
      ASSERT_NEAR(std::abs(got - double(x)), std::abs(want - double(x)), 2e-7 * std::abs(double(x)))
          << x;
    };
    for (uint32_t bits = 0; bits <= 0x3f800000u; bits += 20011) {
      expect_nearest(std::bit_cast<float>(bits));
      if (c.has_sign) expect_nearest(-std::bit_cast<float>(bits));
    }
    for (int i = 0; i < 255; ++i)
      for (const float away : {-2.0f, 2.0f}) {
        const float middle = (c.value[i] + c.value[i + 1]) / 2;
        expect_nearest(middle * (1 + away * std::numeric_limits<float>::epsilon()));
      }
    for (int i = 0; i < 256; ++i) EXPECT_EQ(c.encode(c.value[i]), i);
  }
}

// The first decade has 64 or 128 levels 0.9 / levels apart, and each decade below has half as many.
TEST(DynamicCode, ErrorIsBounded) {
  for (const DynamicCode& c : codes)
    for (double x = 1; x > 1e-5; x *= 0.999) {
      const int decade = int(-std::log10(x));
      const double levels = (c.has_sign ? 64.0 : 128.0) / std::pow(2, decade);
      const double half_gap = 0.45 / levels * std::pow(0.1, decade);
      const double error = std::abs(double(c.value[c.encode(float(x))]) - x);
      EXPECT_LE(error, 1.001 * half_gap) << x;
    }
}

TEST(DynamicCode, ExtremesAndSigns) {
  const DynamicCode &u = codes[false], &s = codes[true];
  EXPECT_EQ(s.encode(0), DynamicCode::zero);
  EXPECT_EQ(s.encode(-0.0f), DynamicCode::zero);
  EXPECT_EQ(s.encode(1), 255);
  EXPECT_EQ(s.encode(-1), 0);
  EXPECT_EQ(s.encode(1e-9f), DynamicCode::zero) << "a first moment may become 0";
  EXPECT_EQ(s.encode(std::nextafter(1.0f, 2.0f)), 255);
  EXPECT_EQ(s.encode(-std::nextafter(1.0f, 2.0f)), 0);
  EXPECT_EQ(u.encode(0), 0);
  EXPECT_EQ(u.encode(1), 255);
  EXPECT_EQ(u.encode(std::nextafter(1.0f, 2.0f)), 255);
  EXPECT_EQ(u.encode(1e-12f), 1) << "a positive second moment never becomes 0";
  EXPECT_EQ(u.encode(std::numeric_limits<float>::denorm_min()), 1);
}

TEST(DynamicCode, ScaleOfABlock) {
  EXPECT_EQ(block_scale(4).scale, 4);
  EXPECT_EQ(block_scale(4).inverse, 0.25f);
  for (const float tiny : {0.0f, 1e-40f}) {
    EXPECT_EQ(block_scale(tiny).scale, 0);
    EXPECT_EQ(block_scale(tiny).inverse, 0);
  }
  EXPECT_TRUE(std::isfinite(block_scale(0x1p-126f).inverse));
}

}  // namespace
}  // namespace hearth
