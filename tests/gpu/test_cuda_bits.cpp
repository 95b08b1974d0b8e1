// The numbers that kernels are tried on. Needs the inside of the CUDA backend, so that a build
// without a CUDA compiler leaves this file out.
#include "cuda/device/same_bits.h"

#include "held.h"

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

}  // namespace
}  // namespace hearth::cases
