// Elementwise kernels: activations, GLUs, the output gate, dropout, addition, conversion. Memory
// bound: one pass.
#include "cpu/isa/act.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/random.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

template <Act A, class T>
void act_rows(Stream& s, const ActivationArgs& args) {
  if constexpr (is_glu(A)) {
    const int64_t N = args.y.cols();
    over_rows(s, row_count(args.y), N, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *gate = args.x.as<const T>() + row * 2 * N, *up = gate + N;
        T* out = args.y.as<T>() + row * N;
        vectors(N, [&](int64_t i, auto w) {
          w.put(out + i, act_value<A>(w.get(gate + i)) * w.get(up + i));
        });
      }
    });
  } else {
    over_elements(s, count(args.y), [&](int64_t begin, int64_t end) {
      const T* in = args.x.as<const T>() + begin;
      T* out = args.y.as<T>() + begin;
      vectors(end - begin, [&](int64_t i, auto w) { w.put(out + i, act_value<A>(w.get(in + i))); });
    });
  }
}

template <Act A, class T>
void act_bwd_rows(Stream& s, const ActivationBwdArgs& args) {
  if constexpr (is_glu(A)) {
    const int64_t N = args.dy.cols();
    over_rows(s, row_count(args.dy), N, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *gate = args.x.as<const T>() + row * 2 * N, *up = gate + N;
        const T* d = args.dy.as<const T>() + row * N;
        T *dgate = args.dx.as<T>() + row * 2 * N, *dup = dgate + N;
        vectors(N, [&](int64_t i, auto w) {
          const VSlope a = act_slope<A>(w.get(gate + i));
          const vf u = w.get(up + i), g = w.get(d + i);
          w.put(dgate + i, g * u * a.dy);
          w.put(dup + i, g * a.y);
        });
      }
    });
  } else {
    over_elements(s, count(args.dy), [&](int64_t begin, int64_t end) {
      const T *in = args.x.as<const T>() + begin, *d = args.dy.as<const T>() + begin;
      T* out = args.dx.as<T>() + begin;
      vectors(end - begin, [&](int64_t i, auto w) {
        w.put(out + i, w.get(d + i) * act_slope<A>(w.get(in + i)).dy);
      });
    });
  }
}

}  // namespace

void activation(Stream& s, const ActivationArgs& args) {
  expect_dtypes("activation", args.x.dtype, args.y);
  by_dtype("activation", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) { act_rows<A, T>(s, args); });
  });
}

void activation_bwd(Stream& s, const ActivationBwdArgs& args) {
  expect_dtypes("activation_bwd", args.x.dtype, args.dx, args.dy);
  by_dtype("activation_bwd", args.x, [&]<class T>(T*) {
    by_act(args.act, [&]<Act A>(ActTag<A>) { act_bwd_rows<A, T>(s, args); });
  });
}

namespace {

// g has one gate per head if it has fewer elements than x.
HEARTH_INLINE bool per_head(const Tensor& x, const Tensor& g) { return count(g) != count(x); }

template <class T>
float element(const T* p) {
  return load_partial(p, 1)[0];
}

}  // namespace

void output_gate(Stream& s, const OutputGateArgs& args) {
  expect_dtypes("output_gate", args.x.dtype, args.y, args.g);
  const int64_t D = args.x.cols();
  by_dtype("output_gate", args.x, [&]<class T>(T*) {
    over_rows(s, row_count(args.x), D, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *in = args.x.as<const T>() + row * D, *gate = args.g.as<const T>();
        T* out = args.y.as<T>() + row * D;
        if (per_head(args.x, args.g)) {
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

void output_gate_bwd(Stream& s, const OutputGateBwdArgs& args) {
  expect_dtypes("output_gate_bwd", args.x.dtype, args.dx, args.dg, args.dy, args.g);
  const int64_t D = args.x.cols();
  by_dtype("output_gate_bwd", args.x, [&]<class T>(T*) {
    over_rows(s, row_count(args.x), D, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *in = args.x.as<const T>() + row * D, *d = args.dy.as<const T>() + row * D;
        const T* gate = args.g.as<const T>();
        T *out = args.dx.as<T>() + row * D, *dgate = args.dg.as<T>();
        if (per_head(args.x, args.g)) {
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

void dropout(Stream& s, const DropoutArgs& args) {
  expect_dtypes("dropout", args.x.dtype, args.y);
  const Scalars& sc = scalars_of(args.scalars);
  const uint32_t limit = threshold_of(args.p);
  const float kept = 1 / (1 - args.p);
  by_dtype("dropout", args.x, [&]<class T>(T*) {
    over_elements(s, count(args.x), [&](int64_t begin, int64_t end) {
      uint32_t words[random_span];
      for (int64_t at = begin; at < end; at += random_span) {
        random_words(words, sc, args.salt, uint64_t(at) / 4);  // pieces start at multiples of 4
        vectors(smaller(random_span, end - at), [&](int64_t i, auto w) {
          const vu word = load_raw<vu>(words + i);
          w.put(args.y.as<T>() + at + i,
                select((vi)(word < limit), zero(), w.get(args.x.as<const T>() + at + i) * kept));
        });
      }
    });
  });
}

void add(Stream& s, const AddArgs& args) {
  expect_dtypes("add", args.b.dtype, args.y, args.a);
  by_dtype("add", args.b, [&]<class T>(T*) {
    over_elements(s, count(args.y), [&](int64_t begin, int64_t end) {
      const T *first = args.a ? args.a.as<const T>() + begin : nullptr,
              *second = args.b.as<const T>() + begin;
      T* out = args.y.as<T>() + begin;
      const vf scale = broadcast(args.scale);
      // Fused explicitly: whether the compiler does it could depend on the place of an element.
      if (first)
        vectors(end - begin, [&](int64_t i, auto w) {
          w.put(out + i, fma(w.get(second + i), scale, w.get(first + i)));
        });
      else
        vectors(end - begin, [&](int64_t i, auto w) { w.put(out + i, w.get(second + i) * scale); });
    });
  });
}

void copy(Stream& s, const CopyArgs& args) {
  by_dtype("copy", args.y, [&]<class To>(To*) {
    by_dtype("copy", args.x, [&]<class From>(From*) {
      over_elements(s, count(args.y), [&](int64_t begin, int64_t end) {
        const From* in = args.x.as<const From>() + begin;
        To* out = args.y.as<To>() + begin;
        vectors(end - begin, [&](int64_t i, auto w) { w.put(out + i, w.get(in + i)); });
      });
    });
  });
}

}  // namespace hearth::HEARTH_ISA
