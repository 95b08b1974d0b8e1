// Products of up to 16 rows with plain weights.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_rows16.cuh"
#include "cuda/gemm/gemm_rows16.h"

namespace hearth::cuda {

bool gemm_rows16_takes(const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  const bool sixteen = args.a.dtype == DType::bf16 || args.a.dtype == DType::f16;
  return sixteen && !spec.ta && spec.tb && !spec.act_slope && args.a.rows() <= 16 &&
         is_float(args.c.dtype) && packs_fit(args.a.cols(), args.a, args.b) &&
         args.c.cols() <= INT32_MAX - few::tile;
}

void gemm_rows16(CudaStream& s, const GemmArgs& args) {
  few_types(args.a, args.c, [&]<class T, class Out>(T*, Out*) {
    few_launch<FewPlain<T>, false, Out>(s, few_args<T, Out>(args));
  });
  check_launch("gemm");
}

// Every block normalises the rows again, so there should be no more blocks than run at once.
bool norm_gemm_rows16_takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return (dtype == DType::bf16 || dtype == DType::f16) && rows <= 16 && width % 8 == 0 &&
         width <= 16 * few::ahead * few::stretch && columns <= 8192;
}

void norm_gemm_rows16(CudaStream& s, const NormGemmArgs& args) {
  few_types(args.x, args.c, [&]<class T, class Out>(T*, Out*) {
    FewArgs<T, Out> few = few_args<T, Out>(product_of(args));
    few_norm(few, {args.gain, args.shift, args.norm});
    few_launch<FewPlain<T>, true, Out>(s, few);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
