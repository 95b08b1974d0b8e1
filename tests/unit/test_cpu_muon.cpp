// What Muon needs of the fast CPU kernels beside products, against the reference, for every usable
// instruction set and dtype: matrices of norm 1, factors per neuron, updates of pieces of buffers.
#include "core/math.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

constexpr std::pair<int64_t, int64_t> matrix_shapes[] = {{1, 1},  {1, 9},   {9, 1},   {3, 37},
                                                         {41, 4}, {16, 16}, {5, 300}, {129, 70}};

TEST(CpuKernels, UnitMatrix) {
  for (const DType d : dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const int64_t n : {1, 3}) {
        const Array x = random({n, R, C}, d, 5), squares = random({n, row_parts}, DType::f32, 3);
        for (float* v = Tensor(squares).as<float>();
             v < Tensor(squares).as<float>() + n * row_parts; ++v)
          *v = std::abs(*v);
        check(fmt::format("unit_matrix {} of {}x{}", n, R, C), d,
              [&, R = R, C = C](const Runner& r) {
                Array y = r.out({n, R, C}), same = r.in_place(x);
                r.k.unit_matrix(r.s, {.y = y, .x = x, .squares = squares});
                r.k.unit_matrix(r.s, {.y = same, .x = same, .squares = squares});
                return outputs(std::move(y), std::move(same));
              });
      }
}

TEST(CpuKernels, NeuronFactors) {
  for (const DType d : dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const float skip : {0.0f, 1.0f}) {
        const int64_t n = 3, neurons = std::max(R, C);
        // In another order than the matrices, with gaps.
        const int64_t begin[] = {neurons + 2, 2 * neurons + 7, 1};
        const Array x = random({n, R, C}, d, 0.1), gate = Array::of(UpdateState{.skip = skip});
        const Array moment = [&] {
          Array m = Array::random({3 * neurons + 9});
          for (double& v : m) v = 0.5 + std::abs(v);
          return m.as(DType::f32);
        }();
        check(fmt::format("neuron_factors {}x{} skip {}", R, C, skip), d, [&](const Runner& r) {
          Array factors = r.sums({n, neurons}), kept = r.in_place_acc(moment);
          r.k.neuron_factors(r.s, {.factors = factors,
                                   .moment = kept,
                                   .x = x,
                                   .gate = gate,
                                   .pieces = {begin, n, neurons}});
          return outputs(std::move(factors), std::move(kept));
        });
      }
}

double total_of(const Array& a, int64_t begin, int64_t n) {
  double total = 0;
  for (int64_t i = begin; i < begin + n; ++i) total += double(Tensor(a).as<float>()[i]);
  return total;
}

// The sums of squares of the new matrices, which backends divide into parts as they like.
TEST(CpuKernels, NesterovSumsSquares) {
  const int64_t n = 3;
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.momentum = 0.9f});
  for (const DType d : dtypes)
    for (const auto& [R, C] : matrix_shapes) {
      const int64_t size = R * C, begin[] = {size + 2, 2 * size + 7, 1};
      const Array grad = random({3 * size + 9}, DType::f32);
      for (const Isa isa : usable_isas())
        for (const int threads : {1, 3}) {
          const Runner r = runner_of(isa, threads, d);
          Array out = r.out({n, R, C}), momentum = r.in_place_acc(grad);
          Array squares = r.sums({n, row_parts});
          r.k.update_weights(r.s, UpdateArgs{.weight = out,
                                             .squares = squares,
                                             .slots = {momentum},
                                             .grad = grad,
                                             .gate = gate,
                                             .scalars = scalars,
                                             .spec = {.rule = UpdateRule::nesterov},
                                             .pieces = {begin, n, size}});
          const Array stored = out.as(DType::f64);
          for (int64_t i = 0; i < n; ++i) {
            double want = 0;
            for (int64_t k = 0; k < size; ++k) want += std::pow(stored[i * size + k], 2);
            EXPECT_NEAR(total_of(squares, i * row_parts, row_parts), want, 1e-5 * want)
                << R << "x" << C << " matrix " << i;
          }
        }
    }
}

// An update of pieces changes those and nothing else.
TEST(CpuKernels, UpdateOfPieces) {
  const int64_t size = 77, n = 3, all = 400;
  const int64_t begin[] = {200, 3, 100};
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.lr = 0.1f, .momentum = 0.9f});
  for (const DType d : dtypes) {
    const Array grad = random({all}, DType::f32), momentum = random({all}, DType::f32);
    check("nesterov", d, [&](const Runner& r) {
      Array out = r.out({n, size}), kept = r.in_place_acc(momentum), g = r.in_place_acc(grad);
      r.k.update_weights(r.s, UpdateArgs{.weight = out,
                                         .slots = {kept},
                                         .grad = g,
                                         .gate = gate,
                                         .scalars = scalars,
                                         .spec = {.rule = UpdateRule::nesterov},
                                         .pieces = {begin, n, size}});
      return outputs(std::move(out), std::move(kept));
    });
    const Array update = random({n, size}, d), weight = random({all}, d);
    const Array master = random({all}, DType::f32);
    check("descent", d, [&](const Runner& r) {
      Array w = r.in_place(weight), m = r.in_place_acc(master);
      const UpdateArgs args{
          .weight = w,
          .master = m,
          .grad = update,
          .gate = gate,
          .scalars = scalars,
          .spec = {.rule = UpdateRule::descent, .decay = 0.3f, .scale = 2, .cautious = true},
          .pieces = {begin, n, size}};
      r.k.update_weights(r.s, args);
      return outputs(std::move(w), std::move(m));
    });
  }
}

// A factor for each row of the update, for each column of a wide one.
TEST(CpuKernels, DescentWithFactors) {
  const int64_t n = 3;
  const Array gate = Array::of(UpdateState{.grad_scale = 0.5f, .good_steps = 1});
  const Array scalars = Array::of(Scalars{.lr = 0.1f});
  for (const DType d : dtypes)
    for (const auto& [R, C] : matrix_shapes)
      for (const bool has_master : {false, true}) {
        const int64_t size = R * C, all = n * size + 9;
        const int64_t begin[] = {size + 2, 2 * size + 7, 1};
        const Array update = random({n, R, C}, d), weight = random({all}, d);
        const Array factors = random({n, std::max(R, C)}, DType::f32, 2);
        const Array master = random({all}, DType::f32);
        check(fmt::format("descent {}x{} master {}", R, C, has_master), d, [&](const Runner& r) {
          Array w = r.in_place(weight), m = r.in_place_acc(master);
          const UpdateArgs args{
              .weight = w,
              .master = has_master ? Tensor(m) : Tensor{},
              .grad = update,
              .factors = factors,
              .gate = gate,
              .scalars = scalars,
              .spec = {.rule = UpdateRule::descent, .decay = 0.3f, .scale = 2, .cautious = true},
              .pieces = {begin, n, size}};
          r.k.update_weights(r.s, args);
          return outputs(std::move(w), std::move(m));
        });
      }
}

}  // namespace
}  // namespace hearth::cpu_test
