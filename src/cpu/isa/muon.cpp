// What Muon computes beside products and elementwise passes: a matrix of norm 1 to start from, and
// NorMuon's factors per neuron. Memory bound: each reads the matrix twice and writes it once.
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
void neuron_factors(float* sums, float* moment, int64_t n, int64_t width, float beta2, bool skip) {
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

// y = x / (1.02 |x| + 1e-6) for one matrix.
template <class T>
void unit_of(Stream& s, T* y, float* parts, const T* x, int64_t R, int64_t C) {
  parallel(cpu_stream(s).threads, row_parts, [&](int64_t p, int) {
    double total = 0;
    for (int64_t r = part_begin(R, p); r < part_begin(R, p + 1); ++r)
      total += squares(x + r * C, C);
    parts[p] = float(total);
  });
  double total = 0;
  for (int64_t p = 0; p < row_parts; ++p) total += double(parts[p]);
  const float factor = float(1 / (1.02 * __builtin_sqrt(total) + 1e-6));
  over_elements(s, R * C, [&](int64_t begin, int64_t end) {
    scaled(y + begin, x + begin, factor, end - begin);
  });
}

struct NeuronScale {
  float *moment, *sums;
  int64_t R, C;
  float beta2;
  bool skip;
};

// Scales the neurons of one matrix.
template <class T>
void scale_neurons_of(Stream& s, float* y, const T* x, const NeuronScale& a) {
  const int64_t R = a.R, C = a.C;
  const bool columns = R < C;
  float* const sums = a.sums;
  constexpr int64_t stretch = 16 * lanes;  // columns of one piece
  if (columns)
    parallel(cpu_stream(s).threads, (C + stretch - 1) / stretch, [&](int64_t p, int) {
      column_squares(sums, x, R, C, p * stretch, smaller(C, (p + 1) * stretch));
    });
  else
    over_rows(s, R, C, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) sums[r] = float(squares(x + r * C, C));
    });
  neuron_factors(sums, a.moment, columns ? C : R, columns ? R : C, a.beta2, a.skip);
  over_rows(s, R, C, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      vectors(C, [&](int64_t i, auto part) {
        const vf factor = columns ? part.get(sums + i) : broadcast(sums[r]);
        part.put(y + r * C + i, part.get(x + r * C + i) * factor);
      });
  });
}

}  // namespace

void unit_matrix(Stream& s, const UnitMatrixArgs& args) {
  expect_dtypes("unit_matrix", DType::f32, args.parts);
  const int64_t n = args.x.shape[0], R = args.x.shape[1], C = args.x.shape[2];
  by_dtype("unit_matrix", args.x, [&]<class T>(T*) {
    expect_dtypes("unit_matrix", args.x.dtype, args.y);
    for (int64_t i = 0; i < n; ++i)
      unit_of(s, args.y.as<T>() + i * R * C, args.parts.as<float>() + i * row_parts,
              args.x.as<const T>() + i * R * C, R, C);
  });
}

void scale_neurons(Stream& s, const ScaleNeuronsArgs& args) {
  expect_dtypes("scale_neurons", DType::f32, args.y, args.moment, args.sums);
  const int64_t R = args.x.shape[1], C = args.x.shape[2];
  const bool skip = args.gate.as<const UpdateState>()->skip != 0;
  by_dtype("scale_neurons", args.x, [&]<class T>(T*) {
    for (int64_t i = 0; i < args.pieces.count; ++i)
      scale_neurons_of(s, args.y.as<float>() + i * R * C, args.x.as<const T>() + i * R * C,
                       {.moment = args.moment.as<float>() + args.pieces.begin[i],
                        .sums = args.sums.as<float>() + i * larger(R, C),
                        .R = R,
                        .C = C,
                        .beta2 = args.beta2,
                        .skip = skip});
  });
}

}  // namespace hearth::HEARTH_ISA
