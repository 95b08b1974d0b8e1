// The bias of attention scores by distance, from a table by bucket; its gradient, from the parts
// that attention computes back to the table. A few thousand elements; every sum has a fixed order.
#include "cuda/attention/attention.h"
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int threads = 128;

template <class T>
__global__ void spread_table(float* y, const T* w, const int32_t* buckets, int H, int S) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= H * S) return;
  y[i] = get(load<1>(w + int64_t(buckets[i % S]) * H + i / S), 0);
}

// One thread per element of dw.
__global__ void gather_table(float* dw, const float* dy, const int32_t* buckets, int n, int H,
                             int S, bool add) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n * H) return;
  float sum = add ? dw[i] : 0;
  for (int d = 0; d < S; ++d)
    if (buckets[d] == i / H) sum += dy[int64_t(i % H) * S + d];
  dw[i] = sum;
}

// One thread per element of dbias (H, S); parts (B, H, tiles, S).
__global__ void add_parts_of_heads(float* dbias, const float* prior, const float* parts, int B,
                                   int H, int tiles, int S) {
  const int d = int(blockIdx.x * blockDim.x + threadIdx.x), h = int(blockIdx.y);
  if (d >= S) return;
  const int64_t at = int64_t(h) * S + d;
  float sum = prior ? prior[at] : 0;
  for (int b = 0; b < B; ++b) {
    const float* from = parts + (int64_t(b) * H + h) * tiles * S + d;
#pragma unroll 8
    for (int n = 0; n < tiles; ++n) sum += from[int64_t(n) * S];
  }
  dbias[at] = sum;
}

unsigned blocks_of(int64_t n) { return unsigned(ceil_div(n, threads)); }

}  // namespace

void add_bias_parts(const AttnCall& c, int tiles, CudaStream& stream) {
  const dim3 blocks(blocks_of(c.distances), unsigned(c.H));
  add_parts_of_heads<<<blocks, threads, 0, stream.handle>>>(c.dbias, c.dbias_prior, c.bias_parts,
                                                            c.B, c.H, tiles, c.distances);
  check_launch("attention_bwd");
}

void distance_bias(Stream& stream, const DistanceBiasArgs& args) {
  expect_dtypes("distance_bias", DType::f32, args.y);
  const int H = int(args.y.shape[0]), S = int(args.y.shape[1]);
  by_dtype("distance_bias", args.w, [&]<class T>(T*) {
    spread_table<T><<<blocks_of(int64_t(H) * S), threads, 0, on(stream).handle>>>(
        args.y.as<float>(), as<T>(args.w), args.buckets.as<const int32_t>(), H, S);
  });
  check_launch("distance_bias");
}

void distance_bias_bwd(Stream& stream, const DistanceBiasBwdArgs& args) {
  expect_dtypes("distance_bias_bwd", DType::f32, args.dw, args.dy);
  const int n = int(args.dw.shape[0]), H = int(args.dy.shape[0]), S = int(args.dy.shape[1]);
  gather_table<<<blocks_of(int64_t(n) * H), threads, 0, on(stream).handle>>>(
      args.dw.as<float>(), args.dy.as<const float>(), args.buckets.as<const int32_t>(), n, H, S,
      args.add);
  check_launch("distance_bias_bwd");
}

}  // namespace hearth::cuda
