// Initial values of parameters: every kernel gives the bits of the definition, and the host decides
// what a device leaves in doubt.
#include "core/draw.h"

#include <gtest/gtest.h>

#include <bit>
#include <numbers>

#include "core/params.h"
#include "cpu_case.h"
#include "wrapped_backend.h"

namespace hearth {
namespace {

const Init inits[] = {Init::normal(1), Init::normal(0.02f), Init::uniform(0.036f),
                      Init::constant(2.5f), Init::zeros()};

void expect_same_bits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << i;
}

// 2^21 normal draws have about three in doubt.
TEST(Draw, KernelsGiveTheBitsOfTheDefinition) {
  for (const Init& init : inits)
    for (const int64_t n : {int64_t(1), int64_t(255), int64_t(1027), int64_t(1 << 21)}) {
      std::vector<float> want(static_cast<size_t>(n));
      draw(want, init, 7, "a.name");
      for (const Isa isa : usable_isas())
        for (const int threads : {1, 3}) {
          const cpu_test::Runner run = cpu_test::runner_of(isa, threads, DType::f32);
          const cpu_test::Array y = run.out({n}), doubts({16}, DType::i32);
          run.k.draw(run.s, {.y = y, .doubts = doubts, .init = init, .key = draw_key(7, "a.name")});
          expect_same_bits({Tensor(y).as<float>(), size_t(n)}, want);
        }
    }
}

// The largest error that random numbers show is 2^-50.1 of the radius.
TEST(Draw, PolynomialsStayFarWithinTheirDoubt) {
  int64_t unsure = 0;
  const auto check = [&](uint32_t first, uint32_t second) {
    const float u = unit_draw(first), v = unit_draw(second);
    const NormalPair p = normal_pair(1, u, v);
    const double rho = std::sqrt(-2 * std::log(double(u))), phi = 2 * std::numbers::pi * v;
    EXPECT_LE(std::abs(p.first - rho * std::cos(phi)), p.doubt / 4) << u << " " << v;
    EXPECT_LE(std::abs(p.second - rho * std::sin(phi)), p.doubt / 4) << u << " " << v;
    unsure += !is_sure(p.first, p.doubt) + !is_sure(p.second, p.doubt);
  };
  // Both ends of the range, the ends of a power of two, and the borders between eighths of a turn.
  std::vector<uint32_t> edges;
  for (uint32_t eighth = 0; eighth < 8; ++eighth)
    for (uint32_t near = 0; near < 4; ++near) {
      edges.push_back((eighth << 29) + (near << 8));
      edges.push_back((eighth << 29) - ((near + 1) << 8));
    }
  for (uint32_t bit = 8; bit < 32; ++bit)
    edges.push_back(1u << bit), edges.push_back(~0u >> (31 - bit));
  for (const uint32_t a : edges)
    for (const uint32_t b : edges) check(a, b);
  EXPECT_GT(unsure, 0) << "at u = 1 the radius is 0";
  unsure = 0;
  for (uint64_t block = 0; block < 200'000; ++block) {
    const Words r = draw_words(draw_key(3, "w"), block);
    check(r.w[0], r.w[1]), check(r.w[2], r.w[3]);
  }
  EXPECT_LT(unsure, 20);
}

// A device whose kernel gives wrong values for some elements and lists them.
class DoubtfulBackend final : public WrappedBackend {
 public:
  explicit DoubtfulBackend(int64_t step) : table_(WrappedBackend::kernels()) {
    step_ = step;
    table_.draw = [](Stream& s, const DrawArgs& args) {
      cpu_kernels(best_isa()).draw(s, args);
      auto* const list = args.doubts.as<uint32_t>();
      for (int64_t four = 0; 4 * four < args.y.numel(); four += step_) {
        args.y.as<float>()[4 * four] = -1e9f;
        if (++list[0] < args.doubts.numel()) list[list[0]] = uint32_t(four);
      }
    };
  }
  const Kernels& kernels() const override { return table_; }

 private:
  static inline int64_t step_ = 1;
  Kernels table_;
};

TEST(Draw, TheHostDecidesWhatADeviceLeavesInDoubt) {
  const std::vector<ParamSpec> specs{{"table", {611, 1001}, Init::normal(1), Group::embedding}};
  std::vector<float> want(611 * 1001);
  draw(want, Init::normal(1), 5, "table");
  for (const int64_t step : {997, 1})  // 1: more than the list has room for
    for (const DType dtype : {DType::f32, DType::bf16}) {
      DoubtfulBackend backend(step);
      ParamStore store(backend, specs, dtype);
      store.initialise(5);
      const bool both = dtype == DType::bf16;
      expect_same_bits(store.values(both ? Part::master : Part::weight, "table"), want);
      std::vector<float> rounded = want;
      if (both)
        for (float& x : rounded) x = float(bf16(x));
      expect_same_bits(store.values(Part::weight, "table"), rounded);
    }
}

}  // namespace
}  // namespace hearth
