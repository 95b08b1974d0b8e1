// Weighted sums of up to three values, in columns of their rows. Memory bound: one pass.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

template <class T>
HEARTH_INLINE float weight_of(const Tensor& w) {
  return w ? load_partial(w.as<const T>(), 1)[0] : 1.0f;
}

// The columns of row r, or null if the tensor is absent.
template <class T>
HEARTH_INLINE T* columns_at(const Tensor& t, const Columns& c, int64_t r) {
  return t ? t.as<T>() + r * c.row + c.begin : nullptr;
}

template <class T>
void mix_row(const MixArgs& args, const float* weight, int64_t r) {
  const MixSpec& spec = args.spec;
  const T *a = columns_at<const T>(args.x[0], spec.x[0], r),
          *b = columns_at<const T>(args.x[1], spec.x[1], r),
          *c = columns_at<const T>(args.x[2], spec.x[2], r);
  T* out = columns_at<T>(args.y, spec.y, r);
  vectors(spec.width, [&](int64_t i, auto w) {
    vf total = w.get(a + i) * weight[0];
    if (b) total = fma(w.get(b + i), broadcast(weight[1]), total);
    if (c) total = fma(w.get(c + i), broadcast(weight[2]), total);
    w.put(out + i, total);
  });
}

// The gradient of one row; adds the row's share of dw to `totals`.
template <class T>
void mix_bwd_row(double* totals, const MixBwdArgs& args, const float* weight, int64_t r) {
  const MixSpec& spec = args.spec;
  const T* d = columns_at<const T>(args.dy, spec.y, r);
  T* dx[most_mixed];
  const T *x[most_mixed], *prior[most_mixed];
  for (int k = 0; k < most_mixed; ++k) {
    dx[k] = columns_at<T>(args.dx[k], spec.x[k], r);
    prior[k] = columns_at<const T>(args.prior[k], spec.x[k], r);
    x[k] = args.dw[k] ? columns_at<const T>(args.x[k], spec.x[k], r) : nullptr;
  }
  vf sums[most_mixed] = {};
  vectors(spec.width, [&](int64_t i, auto w) {
    const vf e = w.get(d + i);  // before the stores, which may overwrite it
    for (int k = 0; k < most_mixed; ++k) {
      if (x[k]) sums[k] = fma(e, w.get(x[k] + i), sums[k]);
      if (!dx[k]) continue;
      const vf v = e * weight[k];
      w.put(dx[k] + i, prior[k] ? w.get(prior[k] + i) + v : v);
    }
  });
  for (int k = 0; k < most_mixed; ++k)
    if (x[k]) totals[k] += double(sum(sums[k]));
}

}  // namespace

void mix(Stream& s, const MixArgs& args) {
  expect_dtypes("mix", args.y.dtype, args.x[0], args.x[1], args.x[2]);
  expect_dtypes("mix", args.y.dtype, args.w[0], args.w[1], args.w[2]);
  by_dtype("mix", args.y, [&]<class T>(T*) {
    float weight[most_mixed];
    for (int k = 0; k < most_mixed; ++k) weight[k] = weight_of<T>(args.w[k]);
    over_rows(s, count(args.y) / args.spec.y.row, args.spec.width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) mix_row<T>(args, weight, r);
    });
  });
}

void mix_bwd(Stream& s, const MixBwdArgs& args) {
  expect_dtypes("mix_bwd", args.dy.dtype, args.dx[0], args.dx[1], args.dx[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.x[0], args.x[1], args.x[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.w[0], args.w[1], args.w[2]);
  expect_dtypes("mix_bwd", args.dy.dtype, args.prior[0], args.prior[1], args.prior[2]);
  expect_dtypes("mix_bwd", DType::f32, args.dw[0], args.dw[1], args.dw[2], args.parts);
  const int64_t rows = count(args.dy) / args.spec.y.row;
  float* parts = args.parts.as<float>();
  by_dtype("mix_bwd", args.dy, [&]<class T>(T*) {
    float weight[most_mixed];
    for (int k = 0; k < most_mixed; ++k) weight[k] = weight_of<T>(args.w[k]);
    parallel(cpu_stream(s).threads, row_parts, [&](int64_t part, int) {
      double totals[most_mixed] = {};
      for (int64_t r = part_begin(rows, part); r < part_begin(rows, part + 1); ++r)
        mix_bwd_row<T>(totals, args, weight, r);
      for (int k = 0; parts && k < most_mixed; ++k) parts[part * most_mixed + k] = float(totals[k]);
    });
  });
  for (int k = 0; k < most_mixed; ++k) {
    if (!args.dw[k]) continue;
    double total = 0;
    for (int64_t p = 0; p < row_parts; ++p) total += double(parts[p * most_mixed + k]);
    float* out = args.dw[k].as<float>();
    *out = float(args.spec.add[k] ? double(*out) + total : total);
  }
}

}  // namespace hearth::HEARTH_ISA
