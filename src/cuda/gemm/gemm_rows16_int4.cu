// Products of up to 16 rows with int4 weights.
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda {

void few_int4(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  few_packed_launch<FewHalfBytes>(s, args, normed);
}

}  // namespace hearth::cuda
