// AdamW with bf16 moments: 4 bytes per parameter at every beta, moments that follow those of fp32
// where rounding to nearest would not, and a loss that does.
#include <cmath>

#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using namespace optim_test;

std::vector<ParamSpec> one_vector(int64_t n) { return {{"v", {n}, Init::zeros(), Group::vector}}; }

TEST(AdamwBf16, KeepsTwoBytesAMomentAtEveryBeta) {
  const auto backend = make_reference_backend();
  for (const float beta : {0.9f, 0.95f, 0.999f}) {
    Update u(*backend, DType::f32,
             {.optimizer = OptimizerKind::adamw_bf16, .beta1 = beta, .beta2 = beta});
    ASSERT_EQ(u.store.slots().size(), 2u);
    for (const Part p : {slot_part(0), slot_part(1)}) EXPECT_EQ(u.store.dtype(p), DType::bf16);
  }
}

double mean(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double(v) / double(x.size());
  return sum;
}

// A second moment decays when gradients get smaller. Gradients of one size are the worst case: to
// nearest, all elements would stay where they are together.
TEST(AdamwBf16, SecondMomentFollowsSmallerGradients) {
  constexpr int64_t n = 512;
  const auto backend = make_cpu_backend(1);
  for (const float beta2 : {0.95f, 0.98f, 0.999f}) {
    UpdateSpec spec{.optimizer = OptimizerKind::adamw_bf16, .beta2 = beta2};
    Update got(*backend, DType::f32, spec, one_vector(n));
    spec.optimizer = OptimizerKind::adamw;
    Update want(*backend, DType::f32, spec, one_vector(n));
    for (Update* u : {&got, &want})
      for (int step = 0; step < 3000; ++step) {
        const float size = step < 1000 ? 1.0f : 0.1f;
        u->store.set(Part::grad, "v", std::vector<float>(n, step % 2 ? size : -size));
        u->run(Scalars{});
      }
    const double ratio =
        mean(got.store.values(slot_part(1), "v")) / mean(want.store.values(slot_part(1), "v"));
    RecordProperty(fmt::format("ratio_{}", beta2), fmt::format("{:.4f}", ratio));
    EXPECT_NEAR(ratio, 1, 0.02) << beta2;
  }
}

enum class Moments { fp32, stochastic, nearest };

struct Descended {
  double loss = 0, second = 0;  // at the end: the mean of w^2, and the mean of the second moment
};

// 800 steps from w = +-3 toward the minimum of w^2 / 2, by gradients with noise of deviation 0.2.
// Those of the beginning are fifteen times as large.
Descended descend(Backend& backend, Moments moments, uint64_t seed) {
  constexpr int64_t n = 512;
  const UpdateSpec spec{.optimizer = moments == Moments::stochastic ? OptimizerKind::adamw_bf16
                                                                    : OptimizerKind::adamw,
                        .beta2 = 0.999f};
  Update u(backend, DType::f32, spec, one_vector(n));
  std::vector<float> start(n), grad(n);
  for (size_t i = 0; i < n; ++i) start[i] = i % 2 ? 3.0f : -3.0f;
  u.store.set(Part::weight, "v", start);
  for (uint64_t step = 0; step < 800; ++step) {
    draw(grad, Init::normal(0.2f), seed * 1000 + step, "noise");
    const std::vector<float> w = u.store.values(Part::weight, "v");
    for (size_t i = 0; i < n; ++i) grad[i] += w[i];
    u.store.set(Part::grad, "v", grad);
    u.run(Scalars{.lr = 0.01f, .seed_lo = uint32_t(seed)});
    for (size_t k = 0; k < 2 && moments == Moments::nearest; ++k) {
      std::vector<float> m = u.store.values(slot_part(k), "v");
      for (float& x : m) x = float(cases::rounded(double(x), DType::bf16));
      u.store.set(slot_part(k), "v", m);
    }
  }
  Descended d{.second = mean(u.store.values(slot_part(1), "v"))};
  for (const float w : u.store.values(Part::weight, "v")) d.loss += double(w) * double(w) / n;
  return d;
}

TEST(AdamwBf16, FollowsFp32WhereRoundingToNearestDoesNot) {
  const auto backend = make_cpu_backend(1);
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const Descended want = descend(*backend, Moments::fp32, seed);
    const Descended got = descend(*backend, Moments::stochastic, seed);
    const Descended nearest = descend(*backend, Moments::nearest, seed);
    EXPECT_NEAR(got.loss / want.loss, 1, 0.05) << seed;
    EXPECT_NEAR(got.second / want.second, 1, 0.02) << seed;
    EXPECT_GT(nearest.loss / want.loss, 1.15) << seed;
    EXPECT_GT(nearest.second / want.second, 1.3) << seed;
  }
}

}  // namespace
}  // namespace hearth
