// Cross entropy over rows of logits, with the gradient written over them. Memory bound: the first
// pass keeps a running maximum and sum over stretches of a row, the second (with grad) finds the
// row in the second-level cache.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

constexpr int32_t masked = -100;
constexpr int64_t stretch = 1024;

HEARTH_INLINE vf capped(vf x, float cap, float inverse) {
  return cap > 0 ? cap * tanh(x * inverse) : x;
}

struct Row {
  float max, sum;  // of exp(x - max)
};

// max and sum of exp over a row, each stretch folded into what came before.
template <class T>
Row row_sums(const T* x, int64_t V, float cap) {
  const float inverse = cap > 0 ? 1 / cap : 0, low = -__builtin_inff();
  Row row{low, 0};
  for (int64_t at = 0; at < V; at += stretch) {
    const T* p = x + at;
    const int64_t n = smaller(stretch, V - at);
    vf top = broadcast(low);
    vectors(n, [&](int64_t i, auto w) { top = max(w.only(w.get(p + i), low), top); });
    // The softcap rises with its argument: it may be applied to the maximum alone.
    const float best = capped(broadcast(max_lane(top)), cap, inverse)[0];
    const float base = best > row.max || best != best ? best : row.max;
    vf total = zero();
    vectors(n, [&](int64_t i, auto w) {
      total += w.only(exp_down(capped(w.get(p + i), cap, inverse) - base), 0);
    });
    const float fade = row.sum > 0 ? exp_down(broadcast(row.max - base))[0] : 0;
    row = {base, row.sum * fade + sum(total)};
  }
  return row;
}

template <class T>
void row_grad(T* x, int64_t V, Row row, int64_t target, float scale, float cap) {
  const float inverse = cap > 0 ? 1 / cap : 0, share = scale / row.sum;
  const float hit = load_partial(x + target, 1)[0];
  vectors(V, [&](int64_t i, auto w) {
    const vf a = w.get(x + i);
    if (cap > 0) {
      const vf t = tanh(a * inverse);
      w.put(x + i, exp_down(t * cap - row.max) * share * (1.0f - t * t));
    } else {
      w.put(x + i, exp_down(a - row.max) * share);
    }
  });
  // The target's element again, with its 1 subtracted before rounding.
  vf p = exp_down(capped(broadcast(hit), cap, inverse) - row.max) * share - scale;
  if (cap > 0) {
    const vf t = tanh(broadcast(hit) * inverse);
    p *= 1.0f - t * t;
  }
  store_partial(x + target, p, 1);
}

}  // namespace

void cross_entropy(Stream& s, Tensor nll, Tensor logits, Tensor targets, Tensor scalars,
                   const LossSpec& spec) {
  expect_dtypes("cross_entropy", DType::f32, nll);
  const int64_t wide = logits.cols(), V = spec.vocab ? spec.vocab : wide;
  // Without grad there may be no scalars to read.
  const float scale =
      spec.grad ? scalars_of(scalars).inv_targets * scalars_of(scalars).loss_scale : 0;
  const float cap = spec.softcap;
  by_dtype("cross_entropy", logits, [&]<class T>(T*) {
    over_rows(s, row_count(logits), V, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = logits.as<T>() + row * wide;
        if (spec.grad && wide > V)
          std::memset(static_cast<void*>(x + V), 0, size_t(wide - V) * sizeof(T));
        const int32_t target = targets.as<int32_t>()[row];
        if (target == masked) {
          nll.as<float>()[row] = 0;
          if (spec.grad) std::memset(static_cast<void*>(x), 0, size_t(V) * sizeof(T));
          continue;
        }
        const Row sums = row_sums(x, V, cap);
        const float hit = capped(load_partial(x + target, 1), cap, cap > 0 ? 1 / cap : 0)[0];
        nll.as<float>()[row] = log(broadcast(sums.sum))[0] + (sums.max - hit);
        if (spec.grad) row_grad(x, V, sums, target, scale, cap);
      }
    });
  });
}

void mean_loss(Stream&, Tensor loss, Tensor nll, Tensor scalars, bool add) {
  expect_dtypes("mean_loss", DType::f32, loss, nll);
  double total = 0;
  for (int64_t i = 0; i < count(nll); ++i) total += double(nll.as<float>()[i]);
  const float mean = float(total * double(scalars_of(scalars).inv_targets));
  *loss.as<float>() = add ? *loss.as<float>() + mean : mean;
}

}  // namespace hearth::HEARTH_ISA
