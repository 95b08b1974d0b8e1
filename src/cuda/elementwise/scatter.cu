// Adds rows to distinct rows of a larger table. Memory bound: the table is written once (and read
// once if prior is a different tensor), and each target row is read and written again.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(256)
    add_rows(T* dx, const T* dy, const int32_t* ids, int64_t rows, int width) {
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= rows || ids[row] < 0) return;
  T* to = dx + int64_t(ids[row]) * width;
  for (int i = int(threadIdx.x) % 32 * N; i < width; i += 32 * N) {
    const Pack<T, N> a = load<N>(to + i), b = load<N>(dy + row * width + i);
    float total[N];
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] = get(a, k) + get(b, k);
    store_rounded(to + i, total);
  }
}

}  // namespace

void scatter_rows(Stream& stream, const ScatterRowsArgs& args) {
  expect_dtypes("scatter_rows", args.dx.dtype, args.dy, args.prior);
  const int64_t rows = args.ids.numel(), C = args.dx.cols();
  const cudaStream_t s = on(stream).handle;
  if (!args.prior)
    check(cudaMemsetAsync(args.dx.data, 0, size_t(args.dx.bytes()), s), "clearing a gradient");
  else if (args.prior.data != args.dx.data)
    check(cudaMemcpyAsync(args.dx.data, args.prior.data, size_t(args.dx.bytes()),
                          cudaMemcpyDeviceToDevice, s),
          "copying a gradient");
  if (rows == 0) return;
  by_dtype("scatter_rows", args.dx, [&]<class T>(T*) {
    by_width<T>(packs_fit(C, args.dx, args.dy), [&]<int N>(Number<N>) {
      add_rows<T, N><<<unsigned(ceil_div(rows, 8)), 256, 0, s>>>(
          as<T>(args.dx), as<T>(args.dy), as<int32_t>(args.ids), rows, int(C));
    });
  });
  check_launch("scatter_rows");
}

}  // namespace hearth::cuda
