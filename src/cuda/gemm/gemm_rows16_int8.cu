// Products of up to 16 rows with int8 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {
namespace {

template <class T>
using FewInt8 = FewBytes<T, Int8Code>;

}  // namespace

void few_int8(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  few_packed_launch<FewInt8>(s, args, normed);
}

}  // namespace hearth::cuda
