// Products of few rows with fp8 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {
namespace {

template <class T>
using FewFp8 = FewBytes<T, Fp8Code>;

}  // namespace

void few_fp8(CudaStream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
             const GemmSpec& spec, const FewNormed* normed) {
  few_packed_launch<FewFp8>(s, c, a, w, bias, prior, spec, normed);
}

}  // namespace hearth::cuda
