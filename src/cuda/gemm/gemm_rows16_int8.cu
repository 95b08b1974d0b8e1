// Products of few rows with int8 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {
namespace {

template <class T>
using FewInt8 = FewBytes<T, Int8Code>;

}  // namespace

void few_int8(CudaStream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
              const GemmSpec& spec, const FewNormed* normed) {
  few_packed_launch<FewInt8>(s, c, a, w, bias, prior, spec, normed);
}

}  // namespace hearth::cuda
