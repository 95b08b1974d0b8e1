// The numbers that kernels are tried on. Needs the inside of the CUDA backend, so that a build
// without a CUDA compiler leaves this file out.
#include "cuda/device/same_bits.h"

#include <fmt/format.h>

#include "held.h"
#include "op_cases.h"

namespace hearth::cases {
namespace {

using test::Held;

// What algorithms are tried on: an order of additions other than cuBLASLt's shows in most sums.
TEST(CudaBits, NumbersThatCancelTellOrdersApart) {
  HEARTH_NEEDS_A_CARD();
  const std::unique_ptr<Backend> invariant = make_cuda_backend({.batch_invariant = true});
  constexpr int64_t M = 16, N = 256, K = 768;
  const auto product = [](Backend& b, float sign) {
    Held a(b, {M, K}, DType::bf16), w(b, {N, K}, DType::bf16), c(b, {M, N}, DType::bf16);
    cuda::fill_cancelling(cuda::on(b.stream()), a.t, 1, 1);
    cuda::fill_cancelling(cuda::on(b.stream()), w.t, 2, sign);
    b.kernels().gemm(b.stream(), {.c = c.t, .a = a.t, .b = w.t, .spec = {.tb = true}});
    return c.read();
  };
  const auto differ = [&](float sign) {
    const std::vector<float> few = product(test::card(), sign), lt = product(*invariant, sign);
    int64_t n = 0;
    for (size_t i = 0; i < few.size(); ++i) n += few[i] != lt[i];
    return n;
  };
  EXPECT_GT(differ(-1), M * N / 2);
  EXPECT_LT(differ(1), M * N / 20);  // nothing cancels: nearly all are rounded to the same
}

// Tensors of a product that adds a bias and a prior, filled with addends.
struct Sum {
  Sum(Backend& b, cuda::Addends which, DType dtype, int64_t M, int64_t N, int64_t K)
      : a(b, {M, K}, dtype), w(b, {N, K}, dtype), bias(b, {N}, dtype), prior(b, {M, N}, dtype) {
    cuda::fill_addends(cuda::on(b.stream()), which,
                       {.a = a.t, .b = w.t, .bias = bias.t, .prior = prior.t});
  }
  Held a, w, bias, prior;
};

// As above, for what is added to the sum.
TEST(CudaBits, AddendsTellOrdersApart) {
  HEARTH_NEEDS_A_CARD();
  constexpr int64_t M = 70, N = 130, K = 20;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto which : {cuda::Addends::first, cuda::Addends::second}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(dtype), int(which)));
      Sum on(test::card(), which, dtype, M, N, K);
      const auto a = on.a.read(), w = on.w.read(), bias = on.bias.read(), prior = on.prior.read();
      int64_t bias_first = 0, prior_first = 0, both_first = 0;  // results unlike the other two
      for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) {
          for (int64_t k = 1; k < K; ++k) ASSERT_TRUE(a[m * K + k] == 0 && w[n * K + k] == 0);
          const float x = a[m * K] * w[n * K], p = prior[m * N + n];
          const auto rounded = [&](float sum) { return float(cases::rounded(sum, dtype)); };
          const float one = rounded((x + bias[n]) + p), two = rounded((x + p) + bias[n]),
                      three = rounded(x + (bias[n] + p));
          bias_first += one != two && one != three, prior_first += two != one && two != three;
          both_first += three != one && three != two;
        }
      EXPECT_GT(which == cuda::Addends::first ? both_first : bias_first, M * N * 3 / 4)
          << bias_first << " " << prior_first << " " << both_first;
    }
}

// cuBLASLt has algorithms that add the bias first and others that add the prior first.
TEST(CudaBits, BatchInvariantProductsAddInOneOrder) {
  HEARTH_NEEDS_A_CARD();
  const std::unique_ptr<Backend> b = make_cuda_backend({.batch_invariant = true});
  constexpr int64_t most = 1100;
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{128, 128},
                             {128, 160},
                             {768, 768},
                             {768, 3072},
                             {200, 72},
                             {1600, 1600}})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const auto which : {cuda::Addends::first, cuda::Addends::second}) {
        Sum on(*b, which, dtype, most, N, K);
        const auto product = [&](int64_t M) {
          Held c(*b, {M, N}, dtype);
          const auto rows = [&](Tensor t) {
            t.shape = {M, t.cols()};
            return t;
          };
          b->kernels().gemm(b->stream(), {.c = c.t,
                                          .a = rows(on.a.t),
                                          .b = on.w.t,
                                          .bias = on.bias.t,
                                          .prior = rows(on.prior.t),
                                          .spec = {.tb = true, .weight = true}});
          return c.read();
        };
        const std::vector<float> all = product(most);
        for (const int64_t M : {1, 3, 6, 8, 16, 17, 48, 64, 100, 256, 300, 512, 1024}) {
          const std::vector<float> some = product(M);
          EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()))
              << M << " of " << N << " x " << K << " " << to_string(dtype) << " " << int(which);
        }
      }
}

}  // namespace
}  // namespace hearth::cases
