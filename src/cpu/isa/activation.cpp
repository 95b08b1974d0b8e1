// Elementwise kernels: activations, GLUs, the output gate, dropout, addition, conversion. Memory
// bound: one pass.
#include "cpu/isa/act.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/random.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

template <Act A, class T>
void act_rows(Stream& s, Tensor y, Tensor x) {
  if constexpr (is_glu(A)) {
    const int64_t N = y.cols();
    over_rows(s, row_count(y), N, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *gate = x.as<const T>() + row * 2 * N, *up = gate + N;
        T* out = y.as<T>() + row * N;
        vectors(N, [&](int64_t i, auto w) {
          w.put(out + i, act_value<A>(w.get(gate + i)) * w.get(up + i));
        });
      }
    });
  } else {
    over_elements(s, count(y), [&](int64_t begin, int64_t end) {
      const T* in = x.as<const T>() + begin;
      T* out = y.as<T>() + begin;
      vectors(end - begin, [&](int64_t i, auto w) { w.put(out + i, act_value<A>(w.get(in + i))); });
    });
  }
}

template <Act A, class T>
void act_bwd_rows(Stream& s, Tensor dx, Tensor dy, Tensor x) {
  if constexpr (is_glu(A)) {
    const int64_t N = dy.cols();
    over_rows(s, row_count(dy), N, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *gate = x.as<const T>() + row * 2 * N, *up = gate + N;
        const T* d = dy.as<const T>() + row * N;
        T *dgate = dx.as<T>() + row * 2 * N, *dup = dgate + N;
        vectors(N, [&](int64_t i, auto w) {
          const VSlope a = act_slope<A>(w.get(gate + i));
          const vf u = w.get(up + i), g = w.get(d + i);
          w.put(dgate + i, g * u * a.dy);
          w.put(dup + i, g * a.y);
        });
      }
    });
  } else {
    over_elements(s, count(dy), [&](int64_t begin, int64_t end) {
      const T *in = x.as<const T>() + begin, *d = dy.as<const T>() + begin;
      T* out = dx.as<T>() + begin;
      vectors(end - begin, [&](int64_t i, auto w) {
        w.put(out + i, w.get(d + i) * act_slope<A>(w.get(in + i)).dy);
      });
    });
  }
}

}  // namespace

void activation(Stream& s, Tensor y, Tensor x, Act act) {
  expect_dtypes("activation", x.dtype, y);
  by_dtype("activation", x,
           [&]<class T>(T*) { by_act(act, [&]<Act A>(ActTag<A>) { act_rows<A, T>(s, y, x); }); });
}

void activation_bwd(Stream& s, Tensor dx, Tensor dy, Tensor x, Act act) {
  expect_dtypes("activation_bwd", x.dtype, dx, dy);
  by_dtype("activation_bwd", x, [&]<class T>(T*) {
    by_act(act, [&]<Act A>(ActTag<A>) { act_bwd_rows<A, T>(s, dx, dy, x); });
  });
}

namespace {

// A gate of one number per head when g has fewer elements than x.
HEARTH_INLINE bool per_head(const Tensor& x, const Tensor& g) { return count(g) != count(x); }

template <class T>
float element(const T* p) {
  return load_partial(p, 1)[0];
}

}  // namespace

void output_gate(Stream& s, Tensor y, Tensor x, Tensor g) {
  expect_dtypes("output_gate", x.dtype, y, g);
  const int64_t D = x.cols();
  by_dtype("output_gate", x, [&]<class T>(T*) {
    over_rows(s, row_count(x), D, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *in = x.as<const T>() + row * D, *gate = g.as<const T>();
        T* out = y.as<T>() + row * D;
        if (per_head(x, g)) {
          const vf open = sigmoid(broadcast(element(gate + row)));
          vectors(D, [&](int64_t i, auto w) { w.put(out + i, w.get(in + i) * open); });
        } else {
          vectors(D, [&](int64_t i, auto w) {
            w.put(out + i, w.get(in + i) * sigmoid(w.get(gate + row * D + i)));
          });
        }
      }
    });
  });
}

void output_gate_bwd(Stream& s, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g) {
  expect_dtypes("output_gate_bwd", x.dtype, dx, dg, dy, g);
  const int64_t D = x.cols();
  by_dtype("output_gate_bwd", x, [&]<class T>(T*) {
    over_rows(s, row_count(x), D, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *in = x.as<const T>() + row * D, *d = dy.as<const T>() + row * D;
        const T* gate = g.as<const T>();
        T *out = dx.as<T>() + row * D, *dgate = dg.as<T>();
        if (per_head(x, g)) {
          const vf open = sigmoid(broadcast(element(gate + row)));
          vf total = zero();
          vectors(D, [&](int64_t i, auto w) {
            const vf e = w.get(d + i);
            total = fma(e, w.get(in + i), total);
            w.put(out + i, e * open);
          });
          store_partial(dgate + row, open * (1.0f - open) * sum(total), 1);
        } else {
          vectors(D, [&](int64_t i, auto w) {
            const vf open = sigmoid(w.get(gate + row * D + i)), e = w.get(d + i);
            const vf v = w.get(in + i);
            w.put(out + i, e * open);
            w.put(dgate + row * D + i, e * v * open * (1.0f - open));
          });
        }
      }
    });
  });
}

void dropout(Stream& s, Tensor y, Tensor x, Tensor scalars, float p, uint32_t salt) {
  expect_dtypes("dropout", x.dtype, y);
  const Scalars& sc = scalars_of(scalars);
  const uint32_t limit = threshold_of(p);
  const float kept = 1 / (1 - p);
  by_dtype("dropout", x, [&]<class T>(T*) {
    over_elements(s, count(x), [&](int64_t begin, int64_t end) {
      uint32_t words[random_span];
      for (int64_t at = begin; at < end; at += random_span) {
        random_words(words, sc, salt, uint64_t(at) / 4);  // pieces begin at multiples of 4
        vectors(smaller(random_span, end - at), [&](int64_t i, auto w) {
          const vu word = load_raw<vu>(words + i);
          w.put(y.as<T>() + at + i,
                select((vi)(word < limit), zero(), w.get(x.as<const T>() + at + i) * kept));
        });
      }
    });
  });
}

void add(Stream& s, Tensor y, Tensor a, Tensor b, float scale) {
  expect_dtypes("add", b.dtype, y, a);
  by_dtype("add", b, [&]<class T>(T*) {
    over_elements(s, count(y), [&](int64_t begin, int64_t end) {
      const T *first = a ? a.as<const T>() + begin : nullptr, *second = b.as<const T>() + begin;
      T* out = y.as<T>() + begin;
      vectors(end - begin, [&](int64_t i, auto w) {
        const vf v = w.get(second + i) * scale;
        w.put(out + i, first ? w.get(first + i) + v : v);
      });
    });
  });
}

void copy(Stream& s, Tensor y, Tensor x) {
  by_dtype("copy", y, [&]<class To>(To*) {
    by_dtype("copy", x, [&]<class From>(From*) {
      over_elements(s, count(y), [&](int64_t begin, int64_t end) {
        const From* in = x.as<const From>() + begin;
        To* out = y.as<To>() + begin;
        vectors(end - begin, [&](int64_t i, auto w) { w.put(out + i, w.get(in + i)); });
      });
    });
  });
}

}  // namespace hearth::HEARTH_ISA
