// Products of few rows with int4 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {

void few_int4(CudaStream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
              const GemmSpec& spec, const FewNormed* normed) {
  few_packed_launch<FewHalfBytes>(s, c, a, w, bias, prior, spec, normed);
}

}  // namespace hearth::cuda
