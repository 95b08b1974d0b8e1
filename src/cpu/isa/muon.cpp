// What Muon computes beside products and elementwise passes: a matrix of norm 1 to start from, and
// NorMuon's factors per neuron. Memory bound: each reads the matrix once, and the first writes it.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

template <class T>
void scaled(T* y, const T* x, float factor, int64_t n) {
  vectors(n, [&](int64_t i, auto part) { part.put(y + i, part.get(x + i) * factor); });
}

// Sums of squares by column, for the columns [begin, end).
template <class T>
void column_squares(float* sums, const T* x, int64_t R, int64_t C, int64_t begin, int64_t end) {
  vectors(end - begin, [&](int64_t i, auto part) {
    vf total = zero();
    for (int64_t r = 0; r < R; ++r) {
      const vf a = part.get(x + r * C + begin + i);
      total = fma(a, a, total);
    }
    part.put(sums + begin + i, total);
  });
}

// Turns the sums of squares into factors. `width` elements enter each sum.
void factors_of(float* sums, float* moment, int64_t n, int64_t width, float beta2, bool skip) {
  double before = 0, after = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float mean = sums[i] / float(width);
    float running = moment[i];
    if (!skip) moment[i] = running = running + (mean - running) * (1 - beta2);
    const float factor = 1 / __builtin_sqrtf(running > 1e-10f ? running : 1e-10f);
    before += double(sums[i]), after += double(sums[i]) * double(factor) * double(factor);
    sums[i] = factor;
  }
  const float rescale = after > 0 ? float(__builtin_sqrt(before / after)) : 1.0f;
  for (int64_t i = 0; i < n; ++i) sums[i] *= rescale;
}

// y = x / (1.02 |x| + 1e-6) for one matrix of n elements.
template <class T>
void unit_of(Stream& s, T* y, const T* x, const float* squares, int64_t n) {
  double total = 0;
  for (int64_t p = 0; p < row_parts; ++p) total += double(squares[p]);
  const float factor = float(1 / (1.02 * __builtin_sqrt(total) + 1e-6));
  over_elements(
      s, n, [&](int64_t begin, int64_t end) { scaled(y + begin, x + begin, factor, end - begin); });
}

struct NeuronMatrix {
  float *moment, *factors;
  int64_t R, C;
  float beta2;
  bool skip;
};

// The factors of the neurons of one matrix, first their sums of squares.
template <class T>
void neuron_factors_of(Stream& s, const T* x, const NeuronMatrix& a) {
  const int64_t R = a.R, C = a.C;
  const bool columns = R < C;
  float* const sums = a.factors;
  constexpr int64_t stretch = 16 * lanes;  // columns of one piece
  if (columns)
    parallel(cpu_stream(s).threads, (C + stretch - 1) / stretch, [&](int64_t p, int) {
      column_squares(sums, x, R, C, p * stretch, smaller(C, (p + 1) * stretch));
    });
  else
    over_rows(s, R, C, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) sums[r] = float(squares(x + r * C, C));
    });
  factors_of(sums, a.moment, columns ? C : R, columns ? R : C, a.beta2, a.skip);
}

}  // namespace

void unit_matrix(Stream& s, const UnitMatrixArgs& args) {
  expect_dtypes("unit_matrix", DType::f32, args.squares);
  const int64_t n = args.x.shape[0], size = args.x.shape[1] * args.x.shape[2];
  by_dtype("unit_matrix", args.x, [&]<class T>(T*) {
    expect_dtypes("unit_matrix", args.x.dtype, args.y);
    for (int64_t i = 0; i < n; ++i)
      unit_of(s, args.y.as<T>() + i * size, args.x.as<const T>() + i * size,
              args.squares.as<const float>() + i * row_parts, size);
  });
}

void neuron_factors(Stream& s, const NeuronFactorsArgs& args) {
  expect_dtypes("neuron_factors", DType::f32, args.factors, args.moment);
  const int64_t R = args.x.shape[1], C = args.x.shape[2];
  const bool skip = args.gate.as<const UpdateState>()->skip != 0;
  by_dtype("neuron_factors", args.x, [&]<class T>(T*) {
    for (int64_t i = 0; i < args.pieces.count; ++i)
      neuron_factors_of(s, args.x.as<const T>() + i * R * C,
                        {.moment = args.moment.as<float>() + args.pieces.begin[i],
                         .factors = args.factors.as<float>() + i * larger(R, C),
                         .R = R,
                         .C = C,
                         .beta2 = args.beta2,
                         .skip = skip});
  });
}

}  // namespace hearth::HEARTH_ISA
