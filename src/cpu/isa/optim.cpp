// The update: gradient norm, the decision to clip or skip, AdamW as PyTorch computes it. Memory
// bound: AdamW moves 28 bytes per fp32 parameter.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

// Short stretches are summed in fp32, those sums in fp64.
template <class T>
double squares(const T* x, int64_t n) {
  constexpr int64_t stretch = 4096;
  double total = 0;
  for (int64_t at = 0; at < n; at += stretch) {
    const int64_t size = smaller(stretch, n - at);
    vf t[4] = {};
    int64_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes)
      for (int k = 0; k < 4; ++k) {
        const vf a = load(x + at + i + k * lanes);
        t[k] = fma(a, a, t[k]);
      }
    vectors(size - i, [&](int64_t j, auto w) {
      const vf a = w.get(x + at + i + j);
      t[0] = fma(a, a, t[0]);
    });
    total += double(sum((t[0] + t[1]) + (t[2] + t[3])));
  }
  return total;
}

bool finite(float x) { return __builtin_isfinite(x); }

}  // namespace

void sum_squares(Stream& s, Tensor out, Tensor parts, Tensor x) {
  expect_dtypes("sum_squares", DType::f32, out, parts);
  const int64_t n = count(x), P = count(parts);
  by_dtype("sum_squares", x, [&]<class T>(T*) {
    const int64_t size = round_up((n + P - 1) / P, 64);
    parallel(cpu(s).threads, P, [&](int64_t p, int) {
      const int64_t begin = smaller(n, p * size), end = smaller(n, begin + size);
      parts.as<float>()[p] = float(squares(x.as<const T>() + begin, end - begin));
    });
  });
  double total = 0;
  for (int64_t p = 0; p < P; ++p) total += double(parts.as<float>()[p]);
  *out.as<float>() = float(total);
}

void gate_update(Stream&, Tensor state, Tensor squares, Tensor loss, Tensor scalars) {
  expect_dtypes("gate_update", DType::f32, squares, loss);
  UpdateState& st = *state.as<UpdateState>();
  const Scalars& sc = scalars_of(scalars);
  const float norm = __builtin_sqrtf(*squares.as<float>()) / sc.loss_scale;
  st.grad_norm = norm;
  st.loss = *loss.as<float>();
  if (!finite(norm) || !finite(st.loss)) {
    st.skip = 1;
    st.streak += 1;
    st.skipped += 1;
    st.grad_scale = 0;
    return;
  }
  st.skip = 0;
  st.streak = 0;
  st.good_steps += 1;
  const float clipped = sc.clip > 0 && norm > sc.clip ? sc.clip / (norm + 1e-6f) : 1.0f;
  st.grad_scale = clipped / sc.loss_scale;
}

namespace {

struct Adam {
  float grad_scale, beta1, beta2, eps, keep, step, root;  // root: 1 / sqrt(1 - beta2^t)
};

double power(double x, int64_t n) {
  double r = 1;
  for (; n > 0; n /= 2, x *= x)
    if (n % 2) r *= x;
  return r;
}

Adam adam_of(const UpdateState& st, const Scalars& sc, const AdamSpec& spec) {
  const auto t = int64_t(st.good_steps);
  const double first = 1 - power(double(spec.beta1), t), second = 1 - power(double(spec.beta2), t);
  return {.grad_scale = st.grad_scale,
          .beta1 = spec.beta1,
          .beta2 = spec.beta2,
          .eps = spec.eps,
          .keep = float(1 - double(sc.lr) * double(spec.decay)),
          .step = float(double(sc.lr) / first),
          .root = float(1 / __builtin_sqrt(second))};
}

template <class T>
void adamw_range(T* w, float* master, float* m, float* v, const float* g, const Adam& a,
                 int64_t n) {
  vectors(n, [&](int64_t i, auto part) {
    const vf grad = part.get(g + i) * a.grad_scale;
    const vf m1 = part.get(m + i), v1 = part.get(v + i);
    const vf m2 = m1 + (grad - m1) * (1 - a.beta1);
    const vf v2 = v1 * a.beta2 + grad * grad * (1 - a.beta2);
    const vf old = master ? part.get(master + i) : part.get(w + i);
    const vf fresh = old * a.keep - a.step * m2 / (sqrt(v2) * a.root + a.eps);
    part.put(m + i, m2);
    part.put(v + i, v2);
    if (master) part.put(master + i, fresh);
    part.put(w + i, fresh);
  });
}

}  // namespace

void adamw(Stream& s, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor state,
           Tensor scalars, const AdamSpec& spec) {
  expect_dtypes("adamw", DType::f32, master, m, v, g);
  const UpdateState& st = *state.as<const UpdateState>();
  if (st.skip != 0) return;
  const Adam a = adam_of(st, scalars_of(scalars), spec);
  by_dtype("adamw", w, [&]<class T>(T*) {
    over_elements(s, count(w), [&](int64_t begin, int64_t end) {
      adamw_range(w.as<T>() + begin, master ? master.as<float>() + begin : nullptr,
                  m.as<float>() + begin, v.as<float>() + begin, g.as<const float>() + begin, a,
                  end - begin);
    });
  });
}

}  // namespace hearth::HEARTH_ISA
