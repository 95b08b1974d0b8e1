// Products of few rows with plain weights.
#include "cuda/gemm/gemm_rows16.cuh"
#include "cuda/gemm/gemm_rows16.h"

namespace hearth::cuda {

bool gemm_rows16_takes(const Tensor& c, const Tensor& a, const Tensor& b, const GemmSpec& spec) {
  const bool sixteen = a.dtype == DType::bf16 || a.dtype == DType::f16;
  return sixteen && !spec.ta && spec.tb && !spec.act_slope && a.rows() <= 16 && is_float(c.dtype) &&
         packs_fit(a.cols(), a, b) && c.cols() <= INT32_MAX - few::tile;
}

void gemm_rows16(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
                 const GemmSpec& spec) {
  few_types(a, c, [&]<class T, class Out>(T*, Out*) {
    few_launch<FewPlain<T>, false, Out>(s, few_args<T, Out>(c, aux, a, b, bias, prior, spec));
  });
  check_launch("gemm");
}

// Every block norms the rows again: more blocks than the card holds at once had better not.
bool norm_gemm_rows16_takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return (dtype == DType::bf16 || dtype == DType::f16) && rows <= 16 && width % 8 == 0 &&
         width <= 16 * few::ahead * few::stretch && columns <= 8192;
}

void norm_gemm_rows16(CudaStream& s, Tensor c, Tensor x, Tensor b, Tensor bias, Tensor prior,
                      const GemmSpec& spec, const FewNormed& normed) {
  few_types(x, c, [&]<class T, class Out>(T*, Out*) {
    FewArgs<T, Out> args = few_args<T, Out>(c, {}, x, b, bias, prior, spec);
    few_norm(args, normed);
    few_launch<FewPlain<T>, true, Out>(s, args);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
