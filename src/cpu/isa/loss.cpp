// Cross entropy over rows of logits, with the gradient written over them, and log-probabilities at
// a temperature. Memory bound: the first pass keeps a running maximum and sum over stretches of a
// row, the second (with grad) finds the row in L2.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

constexpr int32_t masked = -100;
constexpr int64_t stretch = 1024;

// The effective logit: after the softcap and the temperature.
struct Level {
  float scale;    // (softcap or 1) / temperature
  float inverse;  // 1 / softcap, or 0

  Level(float cap, float temperature)
      : scale((cap > 0 ? cap : 1) / temperature), inverse(cap > 0 ? 1 / cap : 0) {}
  bool capped() const { return inverse > 0; }
  HEARTH_INLINE vf of(vf x) const { return (capped() ? tanh(x * inverse) : x) * scale; }
};

struct Row {
  float max, sum;  // sum of exp(x - max)
};

// Maximum and sum of exp over a row, stretch by stretch.
template <class T>
Row row_sums(const T* x, int64_t V, const Level& level) {
  const float low = -__builtin_inff();
  Row row{low, 0};
  for (int64_t at = 0; at < V; at += stretch) {
    const T* p = x + at;
    const int64_t n = smaller(stretch, V - at);
    vf top = broadcast(low);
    vectors(n, [&](int64_t i, auto w) { top = max(w.only(w.get(p + i), low), top); });
    // The level increases with its argument, so the maximum is at the largest logit.
    const float best = level.of(broadcast(max_lane(top)))[0];
    const float base = best > row.max || best != best ? best : row.max;
    vf total = zero();
    vectors(
        n, [&](int64_t i, auto w) { total += w.only(exp_down(level.of(w.get(p + i)) - base), 0); });
    const float fade = row.sum > 0 ? exp_down(broadcast(row.max - base))[0] : 0;
    row = {base, row.sum * fade + sum(total)};
  }
  return row;
}

float row_lse(Row row) { return row.max + log(broadcast(row.sum))[0]; }

template <class T>
float row_nll(const T* x, Row row, int64_t target, const Level& level) {
  const float hit = level.of(load_partial(x + target, 1))[0];
  return log(broadcast(row.sum))[0] + (row.max - hit);
}

template <class T>
float row_entropy(const T* x, int64_t V, Row row, const Level& level) {
  vf total = zero();
  vectors(V, [&](int64_t i, auto w) {
    const vf below = level.of(w.get(x + i)) - row.max;
    total += w.only(exp_down(below) * below, 0);
  });
  return log(broadcast(row.sum))[0] - sum(total) / row.sum;
}

// Factors of the softmax and of the target's one-hot vector in a row's gradient.
struct Factors {
  float softmax, onehot;
};

// out = factors.softmax * softmax - factors.onehot * onehot, times the slope of the softcap; out
// may be x.
template <class T, class X>
void row_grad(T* out, const X* x, int64_t V, Row row, int64_t target, Factors factors,
              const Level& level) {
  const float share = factors.softmax / row.sum;
  const float hit = load_partial(x + target, 1)[0];
  vectors(V, [&](int64_t i, auto w) {
    const vf a = w.get(x + i);
    if (level.capped()) {
      const vf t = tanh(a * level.inverse);
      w.put(out + i, exp_down(t * level.scale - row.max) * share * (1.0f - t * t));
    } else {
      w.put(out + i, exp_down(a * level.scale - row.max) * share);
    }
  });
  // Recomputes the target's element with its 1 subtracted before rounding.
  vf p = exp_down(level.of(broadcast(hit)) - row.max) * share - factors.onehot;
  if (level.capped()) {
    const vf t = tanh(broadcast(hit) * level.inverse);
    p *= 1.0f - t * t;
  }
  store_partial(out + target, p, 1);
}

}  // namespace

void cross_entropy(Stream& s, const CrossEntropyArgs& args) {
  if (args.fp8) return cross_entropy_fp8(fp8_run(s, fp8_parts), args);
  const LossSpec& spec = args.spec;
  expect_dtypes("cross_entropy", DType::f32, args.nll, args.z);
  const int64_t wide = args.logits.cols(), V = spec.vocab ? spec.vocab : wide;
  // Without grad the scalars may be absent.
  const float share =
      spec.grad ? scaled_gradient(scalars_of(args.scalars), scalars_of(args.scalars).inv_targets)
                : 0;
  const float scale = share * spec.weight, z_scale = share * spec.z_loss * 2;
  const Level level(spec.softcap, 1);
  by_dtype("cross_entropy", args.logits, [&]<class T>(T*) {
    over_rows(s, row_count(args.logits), V, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = args.logits.as<T>() + row * wide;
        if (spec.grad && wide > V)
          std::memset(static_cast<void*>(x + V), 0, size_t(wide - V) * sizeof(T));
        const int32_t target = args.targets.as<int32_t>()[row];
        if (target == masked) {
          args.nll.as<float>()[row] = 0;
          if (args.z) args.z.as<float>()[row] = 0;
          if (spec.grad) std::memset(static_cast<void*>(x), 0, size_t(V) * sizeof(T));
          continue;
        }
        const Row sums = row_sums(x, V, level);
        args.nll.as<float>()[row] = row_nll(x, sums, target, level);
        const bool needs_lse = args.z || spec.z_loss > 0;
        const float lse = needs_lse ? row_lse(sums) : 0;
        if (args.z) args.z.as<float>()[row] = lse * lse;
        const float softmax = spec.z_loss > 0 ? scale + z_scale * lse : scale;
        if (spec.grad) row_grad(x, x, V, sums, target, {softmax, scale}, level);
      }
    });
  });
}

void logprob(Stream& s, const LogprobArgs& args) {
  const LogprobSpec& spec = args.spec;
  expect_dtypes("logprob", DType::f32, args.logprob, args.entropy, args.logits);
  const int64_t wide = args.logits.cols(), V = spec.vocab ? spec.vocab : wide;
  const Level level(spec.softcap, spec.temperature);
  over_rows(s, row_count(args.logits), V, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.logits.as<const float>() + row * wide;
      const int32_t target = args.targets.as<int32_t>()[row];
      const Row sums = target < 0 ? Row{0, 1} : row_sums(x, V, level);
      args.logprob.as<float>()[row] = target < 0 ? 0 : -row_nll(x, sums, target, level);
      if (args.entropy)
        args.entropy.as<float>()[row] = target < 0 ? 0 : row_entropy(x, V, sums, level);
    }
  });
}

void logprob_bwd(Stream& s, const LogprobBwdArgs& args) {
  const LogprobSpec& spec = args.spec;
  expect_dtypes("logprob_bwd", DType::f32, args.dlogprob, args.logits);
  const int64_t wide = args.logits.cols(), V = spec.vocab ? spec.vocab : wide;
  const Level level(spec.softcap, spec.temperature);
  by_dtype("logprob_bwd", args.dlogits, [&]<class T>(T*) {
    over_rows(s, row_count(args.logits), V, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* x = args.logits.as<const float>() + row * wide;
        T* out = args.dlogits.as<T>() + row * wide;
        const int32_t target = args.targets.as<int32_t>()[row];
        const int64_t used = target < 0 ? 0 : V;  // the other columns become 0
        const float g = -args.dlogprob.as<float>()[row] / spec.temperature;
        if (used) row_grad(out, x, V, row_sums(x, V, level), target, {g, g}, level);
        std::memset(static_cast<void*>(out + used), 0, size_t(wide - used) * sizeof(T));
      }
    });
  });
}

void mean_loss(Stream&, const MeanLossArgs& args) {
  expect_dtypes("mean_loss", DType::f32, args.loss, args.nll);
  double total = 0;
  for (int64_t i = 0; i < count(args.nll); ++i) total += double(args.nll.as<float>()[i]);
  const float mean = float(total * double(scalars_of(args.scalars).inv_targets));
  *args.loss.as<float>() = args.add ? *args.loss.as<float>() + mean : mean;
}

}  // namespace hearth::HEARTH_ISA
