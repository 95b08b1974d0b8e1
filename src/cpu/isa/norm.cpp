// Layer and RMS norm over rows, with the residual addition first, and column sums. Memory bound: a
// row is read once from memory and then from L1.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {

void add_parts(Stream& s, float* out, const float* parts, int64_t n, float scale, bool add) {
  over_rows(s, n, row_parts, [&](int64_t begin, int64_t end) {
    vectors(end - begin, [&](int64_t i, auto w) {
      vf total = w.get(parts + begin + i);
      for (int64_t p = 1; p < row_parts; ++p) total += w.get(parts + p * n + begin + i);
      const vf scaled = total * scale;
      w.put(out + begin + i, add ? w.get(out + begin + i) + scaled : scaled);
    });
  });
}

namespace {

template <class T>
float row_sum(const T* x, int64_t n) {
  vf total = zero();
  vectors(n, [&](int64_t i, auto w) { total += w.get(x + i); });
  return sum(total);
}

// Sum of (x - mean)^2.
template <class T>
float row_squares(const T* x, float mean, int64_t n) {
  vf total = zero();
  vectors(n, [&](int64_t i, auto w) {
    const vf d = w.only(w.get(x + i) - mean, 0);
    total = fma(d, d, total);
  });
  return sum(total);
}

struct Stat {
  float mean, inverse;
};

template <class T>
Stat row_stat(const T* x, int64_t n, const NormSpec& spec) {
  const float mean = spec.kind == Norm::layer ? row_sum(x, n) / float(n) : 0.0f;
  const float variance = row_squares(x, mean, n) / float(n);
  return {mean, 1 / __builtin_sqrtf(variance + spec.eps)};
}

template <class T>
void norm_row(T* y, const T* x, const T* gain, const T* bias, Stat stat, int64_t n) {
  vectors(n, [&](int64_t i, auto w) {
    vf v = (w.get(x + i) - stat.mean) * stat.inverse;
    if (gain) v *= w.get(gain + i);
    if (bias) v += w.get(bias + i);
    w.put(y + i, v);
  });
}

template <class T>
void norm_rows(Stream& s, const NormArgs& args) {
  const int64_t C = args.x.cols();
  over_rows(s, row_count(args.x), C, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = args.x.as<T>() + row * C;
      if (args.residual) {
        T* total = args.sum.as<T>() + row * C;
        const T* other = args.residual.as<T>() + row * C;
        vectors(C, [&](int64_t i, auto w) { w.put(total + i, w.get(in + i) + w.get(other + i)); });
        in = total;
      }
      const Stat st = row_stat(in, C, args.spec);
      if (args.stat) {
        args.stat.as<float>()[2 * row] = st.mean;
        args.stat.as<float>()[2 * row + 1] = st.inverse;
      }
      norm_row(args.y.as<T>() + row * C, in, args.gain.as<T>(), args.bias.as<T>(), st, C);
    }
  });
}

// With n = (x - mean) * inverse and e = dy * gain: dx = inverse * (e - mean(e) - n * mean(e * n)).
template <class T>
void norm_bwd_row(T* dx, float* dgain, float* dbias, const T* dy, const T* x, const T* gain,
                  Stat stat, const T* prior, int64_t C, const NormSpec& spec) {
  vf e_sum = zero(), en_sum = zero();
  vectors(C, [&](int64_t i, auto w) {
    const vf n = (w.get(x + i) - stat.mean) * stat.inverse, d = w.get(dy + i);
    const vf e = gain ? d * w.get(gain + i) : d;
    e_sum += e;
    en_sum = fma(e, n, en_sum);
    if (dgain) w.put(dgain + i, fma(d, n, w.get(dgain + i)));
    if (dbias) w.put(dbias + i, w.get(dbias + i) + d);
  });
  const float mean_e = spec.kind == Norm::layer ? sum(e_sum) / float(C) : 0.0f;
  const float mean_en = sum(en_sum) / float(C);
  vectors(C, [&](int64_t i, auto w) {
    const vf n = (w.get(x + i) - stat.mean) * stat.inverse, d = w.get(dy + i);
    const vf e = gain ? d * w.get(gain + i) : d;
    vf v = (e - mean_e - n * mean_en) * stat.inverse;
    if (prior) v += w.get(prior + i);
    w.put(dx + i, v);
  });
}

void clear(float* p, int64_t n) {
  vectors(n, [&](int64_t i, auto w) { w.put(p + i, zero()); });
}

// Partial sums for dgain and dbias go to (row_parts, C) each, if they are needed.
template <class T>
void norm_bwd_rows(Stream& s, float* dgain, float* dbias, const NormBwdArgs& args) {
  const int64_t C = args.x.cols(), rows = row_count(args.x);
  parallel(cpu_stream(s).threads, row_parts, [&](int64_t part, int) {
    float* dg = dgain ? dgain + part * C : nullptr;
    float* db = dbias ? dbias + part * C : nullptr;
    if (dg) clear(dg, C);
    if (db) clear(db, C);
    for (int64_t row = part_begin(rows, part); row < part_begin(rows, part + 1); ++row) {
      const float* st = args.stat.as<float>() + 2 * row;
      norm_bwd_row(args.dx.as<T>() + row * C, dg, db, args.dy.as<T>() + row * C,
                   args.x.as<T>() + row * C, args.gain.as<T>(), {st[0], st[1]},
                   args.prior ? args.prior.as<T>() + row * C : nullptr, C, args.spec);
    }
  });
}

}  // namespace

void norm(Stream& s, const NormArgs& args) {
  if (args.fp8) return norm_fp8(fp8_run(s, fp8_parts), args);
  expect_dtypes("norm", args.x.dtype, args.y, args.residual, args.gain, args.bias);
  if (args.residual) expect_dtypes("norm", args.x.dtype, args.sum);
  expect_dtypes("norm stat", DType::f32, args.stat);
  by_dtype("norm", args.x, [&]<class T>(T*) { norm_rows<T>(s, args); });
}

void norm_bwd(Stream& s, const NormBwdArgs& args) {
  if (args.fp8) return norm_bwd_fp8(fp8_run(s, fp8_parts), args);
  expect_dtypes("norm_bwd", args.x.dtype, args.dx, args.dy, args.gain, args.prior);
  expect_dtypes("norm_bwd", DType::f32, args.dgain, args.dbias, args.parts, args.stat);
  const int64_t C = args.x.cols();
  float* dgain_parts = args.dgain ? args.parts.as<float>() : nullptr;
  float* dbias_parts = args.dbias ? args.parts.as<float>() + row_parts * C : nullptr;
  by_dtype("norm_bwd", args.x,
           [&]<class T>(T*) { norm_bwd_rows<T>(s, dgain_parts, dbias_parts, args); });
  if (args.dgain) add_parts(s, args.dgain.as<float>(), dgain_parts, C, 1, args.spec.add);
  if (args.dbias) add_parts(s, args.dbias.as<float>(), dbias_parts, C, 1, args.spec.add);
}

void column_sum(Stream& s, const ColumnSumArgs& args) {
  expect_dtypes("column_sum", DType::f32, args.out, args.parts);
  const int64_t N = args.x.cols(), rows = row_count(args.x);
  by_dtype("column_sum", args.x, [&]<class T>(T*) {
    parallel(cpu_stream(s).threads, row_parts, [&](int64_t part, int) {
      float* total = args.parts.as<float>() + part * N;
      clear(total, N);
      for (int64_t row = part_begin(rows, part); row < part_begin(rows, part + 1); ++row) {
        const T* in = args.x.as<T>() + row * N;
        vectors(N, [&](int64_t i, auto w) { w.put(total + i, w.get(total + i) + w.get(in + i)); });
      }
    });
  });
  add_parts(s, args.out.as<float>(), args.parts.as<float>(), N, args.alpha, args.add);
}

}  // namespace hearth::HEARTH_ISA
