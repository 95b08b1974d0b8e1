// Products of up to 16 rows with fp8 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {
namespace {

template <class T>
using FewFp8 = FewBytes<T, Fp8Code>;

}  // namespace

void few_fp8(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  few_packed_launch<FewFp8>(s, args, normed);
}

}  // namespace hearth::cuda
