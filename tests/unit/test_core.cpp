// The ground everything stands on: numbers, random words, threads, parameters and state.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>

#include "core/params.h"
#include "cpu/reference/reference.h"
#include "sys/cores.h"
#include "sys/error.h"
#include "sys/threads.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(Shape, CountsAndIndexesFromBothEnds) {
  const Shape s{4, 6, 8};
  EXPECT_EQ(s.numel(), 192);
  EXPECT_EQ(s[0], 4);
  EXPECT_EQ(s[-1], 8);
  EXPECT_EQ(s[-3], 4);
  EXPECT_EQ(to_string(s), "(4, 6, 8)");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
}

TEST(Tensor, KnowsItsBytesRowsAndColumns) {
  const Tensor t{nullptr, {3, 5, 7}, DType::bf16};
  EXPECT_FALSE(t);
  EXPECT_EQ(t.bytes(), 210);
  EXPECT_EQ(t.cols(), 7);
  EXPECT_EQ(t.rows(), 15);
  EXPECT_EQ((Tensor{nullptr, {3, 0}, DType::f32}).rows(), 0);
}

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(to_string(DType::bf16), "bf16");
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_TRUE(is_float(DType::f16));
  EXPECT_FALSE(is_float(DType::i32));
  EXPECT_EQ(dtype_of<bf16>(), DType::bf16);
}

template <class H>
H half_of(uint32_t bits) {
  H h;
  h.bits = uint16_t(bits);
  return h;
}

// Every pattern survives the way through float; NaN stays NaN of the same sign.
template <class H>
void expect_round_trips() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = float(half_of<H>(bits));
    const H back(f);
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(float(back))) << bits;
      ASSERT_EQ(back.bits >> 15, bits >> 15) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

// Half way between two neighbours rounds to the even one, a hair beside it to the nearer one.
template <class H>
void expect_ties_to_even(uint32_t infinity) {
  for (uint32_t low = 0; low + 1 < infinity; ++low) {
    const float a = float(half_of<H>(low)), b = float(half_of<H>(low + 1));
    const float middle = float((double(a) + double(b)) / 2);
    const uint32_t even = low % 2 ? low + 1 : low;
    ASSERT_EQ(H(middle).bits, even) << low;
    ASSERT_EQ(H(-middle).bits, even | 0x8000) << low;
    ASSERT_EQ(H(std::nextafter(middle, a)).bits, low);
    ASSERT_EQ(H(std::nextafter(middle, b)).bits, low + 1);
  }
  EXPECT_EQ(H(INFINITY).bits, infinity);
  EXPECT_EQ(H(-INFINITY).bits, infinity | 0x8000);
  EXPECT_TRUE(std::isnan(float(H(NAN))));
}

TEST(DType, Bf16RoundsToNearestEven) {
  expect_round_trips<bf16>();
  expect_ties_to_even<bf16>(0x7f80);
  EXPECT_EQ(bf16(3.4e38f).bits, 0x7f80);  // beyond the largest by half a step
  // A NaN whose set bits would all be cut off must not become infinite.
  EXPECT_TRUE(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, ConversionSaysWhetherValuesFit) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> fits{1, -0.0f, 65504, -65504, inf, -inf, NAN}, halves{65519, 65520};
  std::vector<std::byte> bytes(1 + 8 * fits.size());
  for (const DType d : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    std::byte* const unaligned = bytes.data() + 1;
    EXPECT_TRUE(convert_from_floats(unaligned, d, fits)) << to_string(d);
    std::vector<float> back(fits.size());
    convert_to_floats(back, d, unaligned);
    for (const size_t i : {0u, 1u, 4u, 5u}) EXPECT_EQ(back[i], fits[i]) << to_string(d);
    EXPECT_TRUE(std::signbit(back[1]) && std::isnan(back[6])) << to_string(d);
    EXPECT_EQ(back[2], d == DType::bf16 ? 65536 : 65504);
    EXPECT_TRUE(convert_from_floats(unaligned, d, std::span(halves).first(1))) << to_string(d);
    EXPECT_EQ(convert_from_floats(unaligned, d, halves), d != DType::f16);
    for (const float x : {3.4e38f, -3.4e38f})
      EXPECT_EQ(convert_from_floats(unaligned, d, {&x, 1}), size_of(d) > 2) << to_string(d);
  }
  EXPECT_THROW(convert_from_floats(bytes.data(), DType::i32, fits), Error);
}

TEST(DType, F16RoundsToNearestEven) {
  expect_round_trips<f16>();
  expect_ties_to_even<f16>(0x7c00);
  EXPECT_EQ(f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(f16(0x1p-25f).bits, 0);  // half of the smallest: to the even zero
  EXPECT_EQ(f16(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
}

void expect_words(const Words& got, std::array<uint32_t, 4> want) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.w[i], want[size_t(i)]) << i;
}

// The known answers of Random123.
TEST(Philox, KnownAnswers) {
  const uint32_t f = 0xffffffff;
  expect_words(philox({{0, 0, 0, 0}}, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(philox({{f, f, f, f}}, f, f), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, WordsDifferByElementSaltStepAndMicro) {
  Scalars s, step = s, micro = s;
  step.step = 1, micro.micro = 1;
  std::set<uint32_t> seen;
  for (uint64_t i = 0; i < 64; ++i) seen.insert(random_word(s, 1, i));
  seen.insert(random_word(s, 2, 0));
  seen.insert(random_word(step, 1, 0));
  seen.insert(random_word(micro, 1, 0));
  seen.insert(random_word(s, 1, uint64_t(1) << 34));  // beyond one counter word
  EXPECT_EQ(seen.size(), 68u);
}

TEST(Threads, RunsEachPieceOnce) {
  for (int count : {1, 2, 3, 5}) {
    Threads threads(count);
    ASSERT_EQ(threads.count(), count);
    for (int64_t pieces : {0, 1, 2, 7, 1000}) {
      for (const auto run : {&Threads::run, &Threads::run_adjacent}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(pieces));
        std::atomic<bool> in_range{true};
        (threads.*run)(pieces, [&](int64_t i, int worker) {
          ++seen[size_t(i)];
          if (worker < 0 || worker >= count) in_range = false;
        });
        EXPECT_TRUE(in_range);
        for (const auto& n : seen) EXPECT_EQ(n.load(), 1);
      }
    }
  }
  EXPECT_GE(Threads().count(), 1);
}

TEST(Threads, FollowTheQuotaOfTheControlGroup) {
  EXPECT_EQ(quota_cores("200000 100000"), 2);
  EXPECT_EQ(quota_cores("150000 100000"), 2);  // a part of a core is worth a thread
  EXPECT_EQ(quota_cores("1000 100000"), 1);
  EXPECT_EQ(quota_cores("100001 50000"), 3);
  for (const char* unlimited : {"max 100000", "", "max", "100000", "100000 0", "100000 x"})
    EXPECT_FALSE(quota_cores(unlimited)) << unlimited;
  EXPECT_GE(usable_threads(), 1);
  EXPECT_EQ(Threads().count(), usable_threads());
}

TEST(Threads, WorkersAreExclusive) {
  Threads threads(3);
  std::array<std::atomic<int>, 3> inside{};
  std::atomic<bool> shared{false};
  threads.run(300, [&](int64_t, int worker) {
    if (inside[size_t(worker)].fetch_add(1) != 0) shared = true;
    inside[size_t(worker)].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(Threads, RangesCoverWithoutOverlap) {
  Threads threads(2);
  for (int64_t n : {0, 1, 9, 10, 11, 101}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    threads.ranges(n, 10, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 10, 0);
      EXPECT_LE(end - begin, 10);
      for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
    });
    for (const auto& x : seen) EXPECT_EQ(x.load(), 1) << n;
  }
}

TEST(Threads, RethrowsAndGoesOn) {
  for (int count : {1, 3}) {
    Threads threads(count);
    for (int again = 0; again < 20; ++again) {
      EXPECT_EQ(message_of([&] {
                  threads.run(100, [](int64_t i, int) {
                    if (i == 37) fail("piece", "expected luck, got {}", i);
                  });
                }),
                "[piece] expected luck, got 37");
      std::atomic<int> done{0};
      threads.run(50, [&](int64_t, int) { ++done; });
      EXPECT_EQ(done.load(), 50);
    }
  }
}

TEST(Threads, EndWhileWorkersWakeOrSleep) {
  for (int i = 0; i < 50; ++i) {
    Threads threads(3);
    if (i % 2) threads.run(3, [](int64_t, int) {});
  }
}

std::vector<ParamSpec> some_specs() {
  return {{"embed", {10, 7}, Init::normal(0.5f), Group::embedding},
          {"a", {3, 5}, Init::uniform(0.25f), Group::matrix},
          {"gain", {5}, Init::ones(), Group::vector},
          {"b", {64, 2}, Init::normal(1), Group::matrix},
          {"head", {9, 2}, Init::constant(2), Group::head}};
}

TEST(ParamStore, LaysGroupsOutInOrderPaddedWithZeros) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, some_specs(), DType::bf16);
  EXPECT_EQ(store.count(), 70 + 15 + 5 + 128 + 18);
  EXPECT_EQ(store.flat_size(), 64 + 128 + 128 + 448 + 64);  // tables have 64 rows at least
  EXPECT_EQ(store.range_size(Group::matrix), 64 + 128);
  EXPECT_EQ(store.range_size(Group::head), 128);
  EXPECT_EQ(store.range_size(Group::embedding), 448);
  EXPECT_EQ(store.range_size(Group::vector), 64);
  const std::byte* base = store.flat(Part::weight).data;
  const std::pair<const char*, int64_t> order[] = {
      {"a", 0}, {"b", 64}, {"head", 192}, {"embed", 320}, {"gain", 768}};
  for (auto [name, at] : order)
    EXPECT_EQ(store.get(Part::weight, name).data - base, at * 2) << name;
  EXPECT_EQ(store.range(Part::grad, Group::embedding).data - store.flat(Part::grad).data, 320 * 4);
  EXPECT_EQ(store.dtype(Part::grad), DType::f32);
  EXPECT_TRUE(store.has_master());
  EXPECT_EQ(store.part_bytes(Part::weight), 832 * 2);
  EXPECT_EQ(store.part_bytes(Part::master), 832 * 4);

  store.initialise(1);
  std::vector<bf16> flat(832);
  backend->download(flat.data(), base, 832 * 2);
  const std::pair<int64_t, int64_t> gaps[] = {{15, 64}, {210, 320}, {390, 768}, {773, 832}};
  for (auto [begin, end] : gaps)
    for (int64_t i = begin; i < end; ++i) EXPECT_EQ(flat[size_t(i)].bits, 0) << i;
}

TEST(ParamStore, MakesBuffersWhenAsked) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, some_specs(), DType::f32);
  EXPECT_FALSE(store.has_master());
  EXPECT_FALSE(store.made(Part::weight));
  store.initialise(1);
  EXPECT_TRUE(store.made(Part::weight));
  EXPECT_FALSE(store.made(Part::grad));
  EXPECT_FALSE(store.made(Part::master));
}

TEST(ParamStore, InitialisesFromSeedAndNameAlone) {
  const auto backend = make_reference_backend();
  ParamStore one(*backend, some_specs(), DType::f32), other(*backend, some_specs(), DType::f32);
  std::vector<ParamSpec> turned = some_specs();
  std::reverse(turned.begin(), turned.end());
  ParamStore shuffled(*backend, turned, DType::f32);
  one.initialise(1), other.initialise(2), shuffled.initialise(1);
  EXPECT_EQ(one.values(Part::weight, "b"), shuffled.values(Part::weight, "b"));
  EXPECT_NE(one.values(Part::weight, "b"), other.values(Part::weight, "b"));
  EXPECT_EQ(one.values(Part::weight, "gain"), std::vector<float>(5, 1));
  EXPECT_EQ(one.values(Part::weight, "head"), std::vector<float>(18, 2));
}

// Mean, deviation, and the share of a normal's draws within one deviation.
TEST(ParamStore, DrawsFollowTheirLaw) {
  const size_t n = 200000;
  std::vector<float> x(n);
  const auto moments = [&] {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / double(n);
    double square = 0;
    for (float v : x) square += (v - mean) * (v - mean);
    return std::pair{mean, std::sqrt(square / double(n))};
  };
  draw(x, Init::normal(0.02f), 7, "w");
  auto [mean, deviation] = moments();
  EXPECT_NEAR(mean, 0, 0.02 * 4 / std::sqrt(double(n)));
  EXPECT_NEAR(deviation, 0.02, 0.02 * 0.008);
  const double inside =
      double(std::count_if(x.begin(), x.end(), [](float v) { return std::abs(v) < 0.02f; })) /
      double(n);
  EXPECT_NEAR(inside, 0.6827, 0.005);
  draw(x, Init::uniform(0.5f), 7, "w");
  std::tie(mean, deviation) = moments();
  EXPECT_NEAR(mean, 0, 0.5 / std::sqrt(3.0) * 4 / std::sqrt(double(n)));
  EXPECT_NEAR(deviation, 0.5 / std::sqrt(3.0), 0.003);
  EXPECT_LE(*std::max_element(x.begin(), x.end()), 0.5f);
  EXPECT_GE(*std::min_element(x.begin(), x.end()), -0.5f);
  EXPECT_GT(*std::max_element(x.begin(), x.end()), 0.499f);
}

TEST(ParamStore, SetsAndGivesValues) {
  const auto backend = make_reference_backend();
  ParamStore store(*backend, some_specs(), DType::bf16);
  const std::vector<float> exact{1.0f + 0x1p-12f, 2, 3, 4, 5};
  store.set("gain", exact);
  EXPECT_EQ(store.values(Part::master, "gain"), exact);
  EXPECT_EQ(store.values(Part::weight, "gain"), (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(message_of([&] { store.set("gain", std::vector<float>(4)); }),
            "[params] expected 5 numbers for gain (5), got 4");
  EXPECT_EQ(message_of([&] { store.get(Part::weight, "gian"); }),
            "[params] expected a parameter of this model, got gian");
  EXPECT_EQ(message_of([&] {
              ParamStore(*backend, {{"a", {1}, {}, Group::matrix}, {"a", {1}, {}, Group::vector}},
                         DType::f32);
            }),
            "[params] expected one parameter named a, got two");
}

}  // namespace
}  // namespace hearth
