// Products of up to 16 rows with plain weights.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_rows16.cuh"
#include "cuda/gemm/gemm_rows16.h"
#include "cuda/gemm/gemm_stream.h"

namespace hearth::cuda {

bool gemm_rows16_takes(const GemmArgs& args) {
  const GemmSpec& spec = args.spec;
  const bool sixteen = args.a.dtype == DType::bf16 || args.a.dtype == DType::f16;
  return sixteen && !spec.ta && spec.tb && !spec.act_slope && args.a.rows() <= 16 &&
         is_float(args.c.dtype) && packs_fit(args.a.cols(), args.a, args.b) &&
         args.c.cols() <= INT32_MAX - few::tile;
}

namespace {

// Where whole tiles would leave multiprocessors idle, blocks have half a tile each.
template <class T>
using Halved = FewPlain<T, few::tile / 2>;
bool halves_tiles(const Card& card, int64_t N) { return ceil_div(N, few::tile) < card.processors; }

template <bool Normed, class T, class Out>
void launch(CudaStream& s, const FewArgs<T, Out>& few) {
  if (halves_tiles(s.card, few.N))
    few_launch<Halved<T>, Normed, Out>(s, few);
  else
    few_launch<FewPlain<T>, Normed, Out>(s, few);
}

bool streams(const CudaStream& s, const Tensor& c, const Tensor& a, bool normed) {
  using Any = __nv_bfloat16;
  const bool fill = halves_tiles(s.card, c.cols())
                        ? few_fill<Halved<Any>>(s.card, c.cols(), a.cols())
                        : few_fill<FewPlain<Any>>(s.card, c.cols(), a.cols());
  return !fill && gemm_stream_takes(s, a.rows(), a.cols(), a.dtype, normed);
}

}  // namespace

void gemm_rows16(CudaStream& s, const GemmArgs& args) {
  if (streams(s, args.c, args.a, false)) return gemm_stream(s, args);
  few_types(args.a, args.c,
            [&]<class T, class Out>(T*, Out*) { launch<false>(s, few_args<T, Out>(args)); });
  check_launch("gemm");
}

// Not in f16, where weights times a gain could overflow. The 16th row reads the weights again.
bool norm_gemm_rows16_takes(int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return dtype == DType::bf16 && rows <= 16 && width % 8 == 0 && (rows <= 15 || columns <= 8192);
}

void norm_gemm_rows16(CudaStream& s, const NormGemmArgs& args) {
  const FewNormed normed{args.gain, args.shift, args.norm};
  if (streams(s, args.c, args.x, true)) return gemm_stream(s, product_of(args), &normed);
  few_types(args.x, args.c, [&]<class T, class Out>(T*, Out*) {
    if constexpr (few_norms<T>) {
      FewArgs<T, Out> few = few_args<T, Out>(product_of(args));
      few_norm(few, normed);
      launch<true>(s, few);
    }
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda
