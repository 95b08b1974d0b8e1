// Replaces the Hopper kernels in a build for other GPUs: supports no call.
#include "cuda/attention/attention.h"
#include "cuda/gemm/gemm_grouped.h"
#include "cuda/gemm/gemm_hopper.h"
#include "cuda/gemm/gemm_rows64.h"
#include "cuda/gemm/gemm_stream.h"
#include "sys/error.h"

namespace hearth::cuda {

bool flash_hopper_takes(const AttnCall&) { return false; }
bool flash_hopper_bwd_takes(const AttnCall&) { return false; }
bool flash_hopper_bwd_takes_fp8(const AttnCall&, const Fp8Output&) { return false; }
void flash_hopper(const AttnCall&, CudaStream&) {
  fail("cuda", "expected no call of flash_hopper");
}
void flash_hopper_bwd(AttnCall&, CudaStream&) {
  fail("cuda", "expected no call of flash_hopper_bwd");
}

bool gemm_glu(Stream&, const GemmGluArgs&) { return false; }
int gemm_hopper_takes(const CudaStream&, const GemmArgs&) { return 0; }
void gemm_hopper(CudaStream&, const GemmArgs&, int, const ColumnSumArgs*) {
  fail("cuda", "expected no call of gemm_hopper");
}

bool gemm_grouped_hopper_takes(const CudaStream&, const GroupedCall&) { return false; }
void gemm_grouped_hopper(CudaStream&, const GroupedCall&) {
  fail("cuda", "expected no call of gemm_grouped_hopper");
}

bool gemm_stream_takes(const CudaStream&, int64_t, int64_t, DType, bool) { return false; }
void gemm_stream(CudaStream&, const GemmArgs&, const FewNormed*) {
  fail("cuda", "expected no call of gemm_stream");
}
void gemm_stream_quantised(CudaStream&, const GemmQuantisedArgs&, const FewNormed*) {
  fail("cuda", "expected no call of gemm_stream_quantised");
}

bool gemm_rows64_takes(const CudaStream&, const GemmArgs&) { return false; }
void gemm_rows64(CudaStream&, const GemmArgs&) { fail("cuda", "expected no call of gemm_rows64"); }
bool norm_gemm_rows64_takes(const CudaStream&, int64_t, int64_t, int64_t, DType) { return false; }
void norm_gemm_rows64(CudaStream&, const NormGemmArgs&) {
  fail("cuda", "expected no call of norm_gemm_rows64");
}

}  // namespace hearth::cuda
