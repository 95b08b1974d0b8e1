// Products of up to 16 rows with int8 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {
namespace {

template <class T>
using FewInt8 = FewBytes<T, Int8Code>;

}  // namespace

bool few_packed_fill(const Card& card, int64_t N, int64_t K) {
  return few_fill<FewInt8<__nv_bfloat16>>(card, N, K);  // all formats alike
}

void few_int8(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  few_packed_launch<FewInt8>(s, args, normed);
}

}  // namespace hearth::cuda
