#include "cuda/gemm/gemm_grouped.h"

#include <algorithm>

#include "cuda/gemm/gemm_quantised.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

void expect_groups(int64_t groups, const Tensor& offsets) {
  if (groups < 1 || groups > most_groups || offsets.numel() != groups + 1)
    fail("cuda grouped_gemm", "expected 1 to {} groups and an offset more, got {} and {} offsets",
         most_groups, groups, offsets.numel());
}

void multiply_groups(CudaStream& s, const GroupedCall& c) {
  if (gemm_grouped_hopper_takes(s, c)) return gemm_grouped_hopper(s, c);
  if (gemm_grouped_mma_takes(c)) return gemm_grouped_mma(s, c);
  gemm_grouped_simple(s, c);
}

// Unpacks the weights of some groups at a time. The matrices of groups without rows are undefined:
// nothing reads them.
void multiply_packed(CudaStream& s, GroupedCall c, const Tensor& w) {
  if (c.form != GroupedForm::transposed || c.N % quant_panel)
    fail("cuda grouped_gemm", "expected packed weights of whole panels of {} rows, got {} rows",
         quant_panel, c.N);
  const int64_t bytes = c.N * c.K * size_of(c.dtype), groups = c.groups;
  const int64_t each = std::clamp<int64_t>(most_unpacked / bytes, 1, groups);
  auto* const memory = static_cast<std::byte*>(s.scratch(each * bytes));
  c.right = memory;
  for (int64_t first = 0; first < groups; first += each, c.offsets += each) {
    c.groups = std::min(each, groups - first);
    unpack_groups(s, {memory, {c.groups, c.N, c.K}, c.dtype}, w, first * c.N, c.offsets);
    multiply_groups(s, c);
  }
}

}  // namespace

void grouped_gemm(Stream& stream, const GroupedGemmArgs& args) {
  const bool packed = is_panels(args.b.dtype);
  const GroupedCall c{.form = args.tb ? GroupedForm::transposed : GroupedForm::plain,
                      .dtype = args.a.dtype,
                      .out_dtype = args.c.dtype,
                      .left = args.a.data,
                      .right = args.b.data,
                      .out = args.c.data,
                      .offsets = args.offsets.as<int>(),
                      .gather = args.gather.as<int>(),
                      .rows = args.c.rows(),
                      .tokens = args.a.rows(),
                      .groups = packed ? args.offsets.numel() - 1 : args.b.shape[0],
                      .N = args.c.cols(),
                      .K = args.a.cols()};
  for (const DType d : {packed ? c.dtype : args.b.dtype, args.c.dtype})
    if (d != c.dtype) refuse_dtypes("grouped_gemm", c.dtype, d);
  expect_groups(c.groups, args.offsets);
  if (args.c.numel() == 0) return;
  if (packed) return multiply_packed(on(stream), c, args.b);
  multiply_groups(on(stream), c);
}

void grouped_gemm_weights(Stream& stream, const GroupedGemmWeightsArgs& args) {
  const GroupedCall c{.form = GroupedForm::weights,
                      .dtype = args.a.dtype,
                      .out_dtype = args.db.dtype,
                      .left = args.dc.data,
                      .right = args.a.data,
                      .out = args.db.data,
                      .offsets = args.offsets.as<int>(),
                      .gather = args.gather.as<int>(),
                      .rows = args.dc.rows(),
                      .tokens = args.a.rows(),
                      .groups = args.db.shape[0],
                      .N = args.dc.cols(),
                      .K = args.a.cols(),
                      .add = args.add};
  if (args.dc.dtype != c.dtype) refuse_dtypes("grouped_gemm", c.dtype, args.dc.dtype);
  if (c.out_dtype != c.dtype && c.out_dtype != DType::f32)
    refuse_dtypes("grouped_gemm", c.dtype, c.out_dtype);
  expect_groups(c.groups, args.offsets);
  if (args.dc.numel() > 0) return multiply_groups(on(stream), c);
  if (!c.add)
    check(cudaMemsetAsync(c.out, 0, size_t(args.db.bytes()), on(stream).handle),
          "zeroing a gradient");
}

}  // namespace hearth::cuda
