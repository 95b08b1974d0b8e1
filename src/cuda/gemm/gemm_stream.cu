// Products of up to 16 rows with plain weights that stream through shared memory.
#include "cuda/gemm/gemm_stream.h"

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_stream.cuh"

namespace hearth::cuda {

bool gemm_stream_takes(const CudaStream& s, int64_t rows, int64_t width, DType dtype, bool normed) {
  const bool sixteen = dtype == DType::bf16 || dtype == DType::f16;
  if (!s.hopper_kernels || !s.card.hopper() || !sixteen || rows > (normed ? 15 : 16) || width % 8 ||
      width > INT32_MAX / 64)
    return false;
  using Widest = streamed::Plain<__nv_bfloat16>;  // its slots are the largest
  const auto l = streamed::layout_of<Widest>(int(rows), int(width), normed, s.card.shared_bytes, 2);
  return l.slots >= 2 && l.end <= s.card.shared_bytes;
}

void gemm_stream(CudaStream& s, const GemmArgs& args, const FewNormed* normed) {
  few_types(args.a, args.c, [&]<class T, class Out>(T*, Out*) {
    FewArgs<T, Out> few = few_args<T, Out>(args);
    if (!normed) return streamed::launch_streamed<streamed::Plain<T>, false, Out>(s, few);
    few_norm(few, *normed);
    streamed::launch_streamed<streamed::Plain<T>, true, Out>(s, few);
  });
  check_launch("gemm");
}

}  // namespace hearth::cuda
