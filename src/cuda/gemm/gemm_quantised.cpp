// Products with packed weights: few rows by the kernel that reads them as they are, more rows by
// the ordinary product, of weights that are first unpacked to the type of a.
#include "cuda/gemm/gemm_quantised.h"

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_rows16.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

// Each 16 rows of a read the weights, and each 16 rows of w read a: from the L2 cache, which has
// enough to do with more than a few of both.
int64_t most_few_rows(int64_t columns) { return columns <= 8192 ? 64 : 32; }

bool few_packed_takes(const CudaStream& s, const Tensor& c, const Tensor& a) {
  return !s.invariant && a.dtype != DType::f32 && a.rows() <= most_few_rows(c.cols()) &&
         a.cols() % 8 == 0 && reinterpret_cast<uintptr_t>(a.data) % 16 == 0 &&
         c.cols() < INT32_MAX - quant_panel;
}

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

Tensor from_column(Tensor t, int64_t column) {
  if (t) t.data += column * size_of(t.dtype);
  return t;
}

constexpr int64_t most_unpacked = int64_t(64) << 20;  // bytes at once, where it can be cut
constexpr int64_t slice_rows = 128;                   // so slices of c begin at 256 bytes

void unpack_and_multiply(CudaStream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                         GemmSpec spec) {
  const QuantLayout l = packed_layout(w, c.cols(), a.cols());
  const int64_t N = c.cols(), row_bytes = l.cols * size_of(a.dtype);
  // A slice is a product of its own only where nothing is left to do over all of c.
  const bool cuts = spec.act == Act::none && (!bias || spec.alpha == 1);
  const int64_t slices = cuts ? 1 + N * row_bytes / most_unpacked : 1;
  const int64_t each = slices > 1 ? rounded_up((N + slices - 1) / slices, slice_rows) : N;
  // The product itself may ask for scratch, and gets its beginning.
  const int64_t before = !cuts && prior ? rounded_up(c.bytes(), 256) : 0;
  std::byte* memory = static_cast<std::byte*>(s.scratch(before + each * row_bytes)) + before;
  spec.weight = false;  // a kernel has just written it
  for (int64_t first = 0; first < N; first += each) {
    const Tensor b{memory, {std::min(each, N - first), l.cols}, a.dtype};
    unpack_weights(s, b, w, l, first);
    if (slices == 1) return gemm(s, c, {}, a, b, bias, prior, spec);
    s.gemms->run(from_column(c, first), {}, a, b, from_column(bias, first),
                 from_column(prior, first), spec);
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

void gemm_rows16_quantised(CudaStream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                           const GemmSpec& spec, const FewNormed* normed) {
  const auto launch = w.dtype == DType::int8_panels   ? few_int8
                      : w.dtype == DType::int4_panels ? few_int4
                                                      : few_fp8;
  launch(s, c, a, w, bias, prior, spec, normed);
}

void gemm_quantised(Stream& s, Tensor c, Tensor a, Tensor w, Tensor bias, Tensor prior,
                    const GemmSpec& spec) {
  if (!is_float(a.dtype) || a.dtype == DType::f64) refuse_dtype("gemm_quantised", a.dtype);
  if (c.dtype != DType::f32) agree("gemm_quantised", a.dtype, c);
  agree("gemm_quantised bias", a.dtype, bias);
  agree("gemm_quantised prior", c.dtype, prior);
  if (few_packed_takes(on(s), c, a))
    return gemm_rows16_quantised(on(s), c, a, w, bias, prior, spec);
  unpack_and_multiply(on(s), c, a, w, bias, prior, spec);
}

}  // namespace hearth::cuda
