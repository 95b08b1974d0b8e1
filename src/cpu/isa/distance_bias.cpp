// The bias of attention scores by distance, from a table by bucket, and back. A few thousand
// elements, so one thread computes them.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {

void distance_bias(Stream&, const DistanceBiasArgs& args) {
  expect_dtypes("distance_bias", DType::f32, args.y);
  const int64_t H = args.y.shape[0], S = args.y.shape[1];
  const int32_t* buckets = args.buckets.as<const int32_t>();
  by_dtype("distance_bias", args.w, [&]<class T>(T*) {
    for (int64_t i = 0; i < H * S; ++i) {
      const T* from = args.w.as<const T>() + buckets[i % S] * H + i / S;
      args.y.as<float>()[i] = load_partial(from, 1)[0];
    }
  });
}

void distance_bias_bwd(Stream&, const DistanceBiasBwdArgs& args) {
  expect_dtypes("distance_bias_bwd", DType::f32, args.dw, args.dy);
  const int64_t H = args.dy.shape[0], S = args.dy.shape[1];
  const int32_t* buckets = args.buckets.as<const int32_t>();
  float* dw = args.dw.as<float>();
  if (!args.add) std::memset(dw, 0, size_t(count(args.dw)) * 4);
  for (int64_t i = 0; i < H * S; ++i)
    dw[buckets[i % S] * H + i / S] += args.dy.as<const float>()[i];
}

}  // namespace hearth::HEARTH_ISA
