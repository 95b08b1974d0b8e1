// Products with packed weights. Few rows: a kernel that reads the packed weights. More rows: the
// weights are unpacked to the dtype of a, and an ordinary product follows.
#include "cuda/gemm/gemm_quantised.h"

#include "core/math.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_rows16.h"
#include "cuda/gemm/gemm_stream.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

// Every 16 rows of a read all of w again, and every 16 rows of w read all of a, from the L2 cache.
// Its bandwidth limits how many of both are worth it.
int64_t most_few_rows(int64_t columns) { return columns <= 8192 ? 64 : 32; }

bool few_packed_takes(const CudaStream& s, const Tensor& c, const Tensor& a) {
  return !s.invariant && a.dtype != DType::f32 && a.rows() <= most_few_rows(c.cols()) &&
         a.cols() % 8 == 0 && reinterpret_cast<uintptr_t>(a.data) % 16 == 0 &&
         c.cols() < INT32_MAX - quant_panel;
}

Tensor from_column(Tensor t, int64_t column) {
  if (t) t.data += column * size_of(t.dtype);
  return t;
}

constexpr int64_t slice_rows = 128;  // slices of c begin at multiples of 256 bytes

void unpack_and_multiply(CudaStream& s, const GemmQuantisedArgs& args) {
  const Tensor &c = args.c, &a = args.a;
  const QuantLayout l = packed_layout(args.w, c.cols(), a.cols());
  const int64_t N = c.cols(), row_bytes = l.cols * size_of(a.dtype);
  // The product can be sliced only if no epilogue runs over all of c.
  const bool cuts = args.spec.act == Act::none && (!args.bias || args.spec.alpha == 1);
  const int64_t slices = cuts ? 1 + N * row_bytes / most_unpacked : 1;
  const int64_t each = slices > 1 ? round_up(ceil_div(N, slices), slice_rows) : N;
  // The product itself may use scratch, from its beginning.
  const int64_t before = !cuts && args.prior ? round_up(c.bytes(), 256) : 0;
  std::byte* memory = static_cast<std::byte*>(s.scratch(before + each * row_bytes)) + before;
  GemmSpec spec = args.spec;
  spec.weight = false;  // a kernel has just written b
  for (int64_t first = 0; first < N; first += each) {
    const Tensor b{memory, {std::min(each, N - first), l.cols}, a.dtype};
    unpack_weights(s, b, args.w, l, first);
    const GemmArgs slice{.c = from_column(c, first),
                         .a = a,
                         .b = b,
                         .bias = from_column(args.bias, first),
                         .prior = from_column(args.prior, first),
                         .spec = spec};
    if (slices == 1) return gemm(s, slice);
    s.gemms->run(slice);
  }
}

void agree(const char* what, DType want, const Tensor& t) {
  if (t && t.dtype != want) refuse_dtypes(what, want, t.dtype);
}

}  // namespace

QuantLayout packed_layout(const Tensor& w, int64_t rows, int64_t K) {
  const QuantLayout l = QuantLayout::of_bytes(w.bytes(), K, format_of(w.dtype));
  if (l.format == WeightFormat::plain || l.bytes() != w.bytes() || l.rows < rows)
    fail("cuda gemm_quantised", "expected packed weights of {} rows of {}, got {} bytes of {}",
         rows, K, w.bytes(), to_string(w.dtype));
  return l;
}

void gemm_rows16_quantised(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  if (!few_packed_fill(s.card, args.c.cols(), args.a.cols()) &&
      gemm_stream_takes(s, args.a.rows(), args.a.cols(), args.a.dtype, normed != nullptr))
    return gemm_stream_quantised(s, args, normed);
  const auto launch = args.w.dtype == DType::int8_panels   ? few_int8
                      : args.w.dtype == DType::int4_panels ? few_int4
                                                           : few_fp8;
  launch(s, args, normed);
}

void gemm_quantised(Stream& s, const GemmQuantisedArgs& args) {
  const DType a = args.a.dtype;
  if (!is_float(a) || a == DType::f64) refuse_dtype("gemm_quantised", a);
  if (args.c.dtype != DType::f32) agree("gemm_quantised", a, args.c);
  agree("gemm_quantised bias", a, args.bias);
  agree("gemm_quantised prior", args.c.dtype, args.prior);
  if (few_packed_takes(on(s), args.c, args.a)) return gemm_rows16_quantised(on(s), args);
  unpack_and_multiply(on(s), args);
}

}  // namespace hearth::cuda
