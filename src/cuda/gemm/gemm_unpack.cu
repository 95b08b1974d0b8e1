// Unpacks packed weights (core/quantised.h), for products of many rows. Reads 0.5 or 1 byte per
// weight and writes 2 or 4.
#include "cuda/device/device.cuh"
#include "cuda/gemm/gemm_quantised.h"

namespace hearth::cuda {
namespace {

struct UnpackArgs {
  const unsigned char* panels;
  const float* scales;
  int K, rows;  // rows of w to unpack, from the first panel on
  int panel_bytes, factor_bytes;
  // Of groups: those without rows of a product are left out.
  const int* offsets = nullptr;
  int group_panels = 1;
};

// Four consecutive k of a row, from a multiple of 4 on, without the scale of the row.
template <WeightFormat F>
__device__ __forceinline__ void unpack_four(float (&x)[4], const unsigned char* panel, int row,
                                            int k, int factor_bytes) {
  if constexpr (F == WeightFormat::int4) {
    const int group = k / int(quant_group), i = k % int(quant_group);
    const uint32_t word = *reinterpret_cast<const uint32_t*>(panel + factor_bytes + group * 256 +
                                                             i % 16 / 4 * 64 + row * 4);
    const int factor = int8_t(panel[group * int(quant_panel) + row]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = float(factor * (int((word >> (8 * e + (i < 16 ? 0 : 4))) & 15) - 8));
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(panel + k / 4 * 64 + row * 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t byte = (word >> (8 * e)) & 0xff;
      if constexpr (F == WeightFormat::int8)
        x[e] = float(int8_t(byte));
      else  // a code's bits, placed in a float, give a value 2^120 too small
        x[e] = __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
    }
  }
}

constexpr int unpack_columns = 256;  // of a block: 4 times 64

// to (rows, K). A warp unpacks 8 rows by 16 k at a time: whole 32-byte sectors on both sides.
template <WeightFormat F, class T>
__global__ void __launch_bounds__(256) unpack_panels(T* to, UnpackArgs p) {
  if (p.offsets) {
    const int group = int(blockIdx.x) / p.group_panels;
    if (p.offsets[group] == p.offsets[group + 1]) return;
  }
  const unsigned char* panel = p.panels + int64_t(blockIdx.x) * p.panel_bytes;
  const int t = int(threadIdx.x), row = t / 4 % 16, n = int(blockIdx.x) * 16 + row;
  const int first = int(blockIdx.y) * unpack_columns + t / 64 * 16 + t % 4 * 4;
  if (n >= p.rows) return;
  const float scale = p.scales[n];
#pragma unroll
  for (int k = first; k < first + unpack_columns; k += 64) {
    if (k >= p.K) return;
    float x[4];
    unpack_four<F>(x, panel, row, k, p.factor_bytes);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] *= scale;
    T* out = to + int64_t(n) * p.K + k;
    if (p.K % 4 == 0) {
      store_rounded(out, x);
    } else {
      for (int e = 0; e < 4 && k + e < p.K; ++e) out[e] = T(x[e]);
    }
  }
}

UnpackArgs args_of(Tensor to, Tensor w, const QuantLayout& l, int64_t first) {
  return {.panels = reinterpret_cast<const unsigned char*>(w.data + l.panel(first / quant_panel)),
          .scales = reinterpret_cast<const float*>(w.data + l.scales()) + first,
          .K = int(l.cols),
          .rows = int(to.rows()),
          .panel_bytes = int(l.panel_bytes()),
          .factor_bytes = int(l.factor_bytes())};
}

void unpack(CudaStream& s, Tensor to, const QuantLayout& l, const UnpackArgs& args) {
  const dim3 blocks(unsigned(ceil_div(to.rows(), quant_panel)),
                    unsigned(ceil_div(l.cols, unpack_columns)));
  by_dtype("gemm_quantised", to, [&]<class T>(T*) {
    const auto launch = [&](auto* kernel) {
      kernel<<<blocks, 256, 0, s.handle>>>(as<T>(to), args);
    };
    if (l.format == WeightFormat::int8) launch(unpack_panels<WeightFormat::int8, T>);
    if (l.format == WeightFormat::int4) launch(unpack_panels<WeightFormat::int4, T>);
    if (l.format == WeightFormat::fp8) launch(unpack_panels<WeightFormat::fp8, T>);
  });
  check_launch("gemm_quantised");
}

}  // namespace

void unpack_weights(CudaStream& s, Tensor to, Tensor w, const QuantLayout& l, int64_t first) {
  unpack(s, to, l, args_of(to, w, l, first));
}

void unpack_groups(CudaStream& s, Tensor to, Tensor w, int64_t first, const int* offsets) {
  const QuantLayout l = packed_layout(w, first + to.rows(), to.cols());
  UnpackArgs args = args_of(to, w, l, first);
  args.offsets = offsets, args.group_panels = int(to.shape[1] / quant_panel);
  unpack(s, to, l, args);
}

}  // namespace hearth::cuda
