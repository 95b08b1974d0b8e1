// Shared by the GPU tests: the GPU of this machine, or a skip that says why there is none.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "cuda/backend.h"
#include "op_cases.h"

namespace hearth::test {

// Empty, or why the GPU tests cannot run: a reason that scripts/check-skips accepts.
inline std::string no_card() {
  static const std::string why = []() -> std::string {
    if (!HEARTH_CUDA_BUILT) return "built without CUDA";
    const CudaDriver driver = cuda_driver();
    const std::string problem = driver.problem.empty() ? cuda_card(0).problem : driver.problem;
    return problem.empty() ? "" : "needs a card: " + problem;
  }();
  return why;
}

#define HEARTH_NEEDS_A_CARD() \
  if (const std::string why = ::hearth::test::no_card(); !why.empty()) GTEST_SKIP() << why

// One backend per configuration, created once: starting a GPU takes longer than a test.
inline Backend& card(bool hopper_kernels = true, bool graphs = true) {
  static std::unique_ptr<Backend> made[2][2];
  std::unique_ptr<Backend>& b = made[hopper_kernels][graphs];
  if (!b) b = make_cuda_backend({.graphs = graphs, .hopper_kernels = hopper_kernels});
  return *b;
}

// Like a consumer GPU: mma.sync, and 99 KiB of shared memory per block.
inline Backend& consumer_card() {
  static const std::unique_ptr<Backend> made =
      make_cuda_backend({.hopper_kernels = false, .shared_limit = 99 << 10});
  return *made;
}

// Uses this variant of gemm_hopper wherever it can, instead of where it was measured to be faster.
inline Backend& own_products_card(int variant = 0) {
  static const std::unique_ptr<Backend> made[] = {make_cuda_backend({.own_products = 0}),
                                                  make_cuda_backend({.own_products = 1}),
                                                  make_cuda_backend({.own_products = 2})};
  return *made[variant];
}

inline constexpr cases::Tolerance card_tolerances[] = {
    {DType::f32, 1e-5, 2e-5}, {DType::bf16, 1.5e-2, 2.5e-2}, {DType::f16, 2e-3, 4e-3}};

// The error is relative to the largest element, or absolute if all expected values are near zero.
inline void expect_close(const std::vector<cases::Named>& got,
                         const std::vector<cases::Named>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_FALSE(want.empty());
  for (size_t i = 0; i < got.size(); ++i) {
    double top = 0;
    for (double x : want[i].values) top = std::max(top, std::abs(x));
    if (top < 1e-9) {
      for (double x : got[i].values) EXPECT_LE(std::abs(x), tolerance) << got[i].name;
      continue;
    }
    EXPECT_LT(cases::error_of(got[i].values, want[i].values), tolerance) << got[i].name;
  }
}

}  // namespace hearth::test
