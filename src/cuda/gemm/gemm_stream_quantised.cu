// Products of up to 16 rows with packed weights that stream through shared memory.
#include "cuda/gemm/gemm_stream.cuh"
#include "cuda/gemm/gemm_stream.h"

namespace hearth::cuda {
namespace {

template <class T>
using Int8 = streamed::Bytes<T, Int8Code>;
template <class T>
using Fp8 = streamed::Bytes<T, Fp8Code>;

template <template <class> class W>
void launch(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  by_dtype("gemm_quantised", args.a, [&]<class T>(T*) {
    if constexpr (sizeof(T) == 2) {
      FewArgs<T, T> few = few_packed_args<T>(args);
      if (!normed) return streamed::launch_streamed<W<T>, false, T>(s, few);
      if constexpr (few_norms<T>) {
        few_norm(few, *normed);
        streamed::launch_streamed<W<T>, true, T>(s, few);
      }
    }
  });
  check_launch("gemm_quantised");
}

}  // namespace

void gemm_stream_quantised(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  if (args.w.dtype == DType::int8_panels)
    launch<Int8>(s, args, normed);
  else if (args.w.dtype == DType::int4_panels)
    launch<streamed::HalfBytes>(s, args, normed);
  else
    launch<Fp8>(s, args, normed);
}

}  // namespace hearth::cuda
