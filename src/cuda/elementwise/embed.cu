// Token and position embeddings, one warp per row. Memory bound: reads and writes each row once.
#include "cuda/device/dependent_launch.cuh"
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(256)
    embed_rows(T* y, const int32_t* ids, const T* w, const int32_t* positions, const T* pos_w,
               int64_t rows, int width) {
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  let_next_start();
  wait_for_previous();
  if (row >= rows) return;
  const int64_t id = ids[row];
  const T* token = w + id * width;
  // Padding has a negative position; its result is never used.
  const T* place = pos_w ? pos_w + int64_t(max(positions[row], 0)) * width : nullptr;
#pragma unroll 4
  for (int i = int(threadIdx.x) % 32 * N; i < width; i += 32 * N) {
    Pack<T, N> v = id < 0 ? Pack<T, N>{} : load<N>(token + i);
    if (place && id >= 0) {
      const Pack<T, N> p = load<N>(place + i);
      float total[N];
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] = get(v, k) + get(p, k);
      round_to(v, total);
    }
    store(y + row * width + i, v);
  }
}

}  // namespace

void embed(Stream& stream, const EmbedArgs& args) {
  expect_dtypes("embed", args.w.dtype, args.y, args.pos_w);
  const int64_t rows = args.ids.numel(), C = args.w.cols();
  if (rows == 0) return;
  by_dtype("embed", args.w, [&]<class T>(T*) {
    by_width<T>(packs_fit(C, args.y, args.w, args.pos_w), [&]<int N>(Number<N>) {
      launch_dependent(on(stream), embed_rows<T, N>, unsigned(ceil_div(rows, 8)), 256,
                       as<T>(args.y), as<int32_t>(args.ids), as<T>(args.w),
                       as<int32_t>(args.positions), as<T>(args.pos_w), rows, int(C));
    });
  });
  check_launch("embed");
}

}  // namespace hearth::cuda
