#include "cuda/gemm/gemm_grouped.h"

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

}  // namespace

void grouped_gemm(Stream& stream, const GroupedGemmArgs& args) {
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
                      .groups = args.b.shape[0],
                      .N = args.c.cols(),
                      .K = args.a.cols()};
  for (const DType d : {args.b.dtype, args.c.dtype})
    if (d != c.dtype) refuse_dtypes("grouped_gemm", c.dtype, d);
  expect_groups(c.groups, args.offsets);
  if (args.c.numel() > 0) multiply_groups(on(stream), c);
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
