// Products of up to 16 rows with plain weights that stream through shared memory.
#include "cuda/gemm/gemm_stream.h"

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_stream.cuh"

namespace hearth::cuda {

// Decided for as many rows as a group has, so that all steps of up to 8 rows, and all of up to 16,
// use one kernel.
bool gemm_stream_takes(const CudaStream& s, int64_t rows, int64_t width, DType dtype, bool normed) {
  const bool sixteen = dtype == DType::bf16 || (dtype == DType::f16 && !normed);
  const int most = rows <= 8 ? 8 : normed ? 15 : 16;
  if (!s.hopper_kernels || !s.card.hopper() || !sixteen || rows > most || width % 8 ||
      width > INT32_MAX / 64)
    return false;
  using Widest = streamed::Plain<__nv_bfloat16>;  // its slots are the largest
  const auto l = streamed::layout_of<Widest>(most, int(width), normed, s.card.shared_bytes, 2);
  return l.slots >= 2 && l.end <= s.card.shared_bytes;
}

void gemm_stream(CudaStream& s, const GemmArgs& args, const FewNormed* normed) {
  few_types(args.a, args.c, [&]<class T, class Out>(T*, Out*) {
    FewArgs<T, Out> few = few_args<T, Out>(args);
    if (!normed) return streamed::launch_streamed<streamed::Plain<T>, false, Out>(s, few);
    if constexpr (few_norms<T>) {
      few_norm(few, *normed);
      streamed::launch_streamed<streamed::Plain<T>, true, Out>(s, few);
    }
  });
  check_launch("gemm");
}

}  // namespace hearth::cuda
