// RMS norm and rotation of the heads of q and k in packed qkv. Memory bound: one pass.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

// One worker's memory: the angles of a token and two heads in fp32.
struct Work {
  float *cos, *sin, *x, *d;
  static int64_t floats(const QkSpec& s) { return 4 * round_up(s.head_dim, lanes); }
  Work(float* at, const QkSpec& s) {
    const int64_t size = round_up(s.head_dim, lanes);
    cos = at;
    sin = cos + size;
    x = sin + size;
    d = x + size;
  }
};

// The angles of a token. Padding has a negative position, and its result is never used.
void load_angles(const Work& w, const float* rope, int32_t position, const QkSpec& s) {
  const float* row = rope + (position < 0 ? 0 : int64_t(position)) * s.rotary;
  for (int64_t i = 0; i < s.rotary / 2; ++i) {
    w.cos[i] = row[2 * i];
    w.sin[i] = row[2 * i + 1];
  }
}

// Rotates a head by the loaded angles, or by their negatives.
void rotate(float* x, const Work& w, const QkSpec& s, bool reverse) {
  const int64_t half = s.rotary / 2;
  const float sign = reverse ? -1.0f : 1.0f;
  if (s.interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1], sine = sign * w.sin[i];
      x[2 * i] = a * w.cos[i] - b * sine;
      x[2 * i + 1] = b * w.cos[i] + a * sine;
    }
    return;
  }
  vectors(half, [&](int64_t i, auto v) {
    const vf a = v.get(x + i), b = v.get(x + half + i), c = v.get(w.cos + i);
    const vf sine = v.get(w.sin + i) * sign;
    v.put(x + i, a * c - b * sine);
    v.put(x + half + i, b * c + a * sine);
  });
}

template <class T>
void load_head(float* out, const T* x, int64_t D) {
  vectors(D, [&](int64_t i, auto v) { store(out + i, v.get(x + i)); });
}

template <class T>
void store_head(T* y, const float* x, int64_t D) {
  vectors(D, [&](int64_t i, auto v) { v.put(y + i, v.get(x + i)); });
}

float inverse_rms(const float* x, const QkSpec& s) {
  vf total = zero();
  vectors(s.head_dim, [&](int64_t i, auto v) {
    const vf a = v.get(x + i);
    total = fma(a, a, total);
  });
  return 1 / __builtin_sqrtf(sum(total) / float(s.head_dim) + s.eps);
}

template <class T>
void scale_head(float* x, float inverse, const T* gain, int64_t D) {
  vectors(D, [&](int64_t i, auto v) {
    const vf a = v.get(x + i) * inverse;
    v.put(x + i, gain ? a * v.get(gain + i) : a);
  });
}

template <class T>
void head_forward(const Work& w, T* y, float* stat, const T* x, const T* gain, const QkSpec& s) {
  load_head(w.x, x, s.head_dim);
  if (s.norm != QkNorm::before_rope) rotate(w.x, w, s, s.reverse);
  if (s.norm != QkNorm::none) {
    const float inverse = inverse_rms(w.x, s);
    scale_head(w.x, inverse, gain, s.head_dim);
    if (stat) *stat = inverse;
  }
  if (s.norm == QkNorm::before_rope) rotate(w.x, w, s, s.reverse);
  store_head(y, w.x, s.head_dim);
}

// d becomes the gradient of the head before its norm; n is the input of the norm.
template <class T>
void norm_head_bwd(float* d, float* n, float* dgain, float inverse, const T* gain, int64_t D) {
  vf total = zero();
  vectors(D, [&](int64_t i, auto v) {
    const vf a = v.get(n + i) * inverse, e = v.get(d + i);
    if (dgain) v.put(dgain + i, fma(e, a, v.get(dgain + i)));
    const vf g = gain ? e * v.get(gain + i) : e;
    total = fma(g, a, total);
    v.put(n + i, a);
    v.put(d + i, g);
  });
  const float mean = sum(total) / float(D);
  vectors(D,
          [&](int64_t i, auto v) { v.put(d + i, (v.get(d + i) - v.get(n + i) * mean) * inverse); });
}

template <class T>
void head_backward(const Work& w, T* dx, float* dgain, const T* dy, const T* x, const float* stat,
                   const T* gain, const QkSpec& s) {
  load_head(w.d, dy, s.head_dim);
  if (s.norm != QkNorm::after_rope) rotate(w.d, w, s, !s.reverse);
  if (s.norm != QkNorm::none) {
    load_head(w.x, x, s.head_dim);
    if (s.norm == QkNorm::after_rope) rotate(w.x, w, s, s.reverse);
    norm_head_bwd(w.d, w.x, dgain, *stat, gain, s.head_dim);
  }
  if (s.norm == QkNorm::after_rope) rotate(w.d, w, s, !s.reverse);
  store_head(dx, w.d, s.head_dim);
}

float* work_memory(Stream& stream, const QkSpec& s) {
  const int64_t bytes = Work::floats(s) * 4 * thread_count(cpu_stream(stream).threads);
  return reinterpret_cast<float*>(cpu_stream(stream).scratch.get(bytes));
}

template <class T>
void copy_values(T* y, const T* x, const QkSpec& s) {
  if (y == x) return;
  const int64_t at = (s.heads + s.kv_heads) * s.head_dim;
  std::memcpy(static_cast<void*>(y + at), x + at, size_t(s.v_size()) * sizeof(T));
}

}  // namespace

void qk_norm_rope(Stream& stream, const QkNormRopeArgs& args) {
  const QkSpec& s = args.spec;
  expect_dtypes("qk_norm_rope", args.qkv.dtype, args.y, args.q_gain, args.k_gain);
  expect_dtypes("qk_norm_rope", DType::f32, args.stat, args.rope);
  const int64_t H = s.heads, G = s.kv_heads, D = s.head_dim, token = s.token();
  const int64_t rows = count(args.qkv) / token, grain = larger(1, 32768 / token);
  float* memory = work_memory(stream, s);
  by_dtype("qk_norm_rope", args.qkv, [&]<class T>(T*) {
    parallel(cpu_stream(stream).threads, (rows + grain - 1) / grain,
             [&](int64_t piece, int worker) {
               const Work w(memory + worker * Work::floats(s), s);
               for (int64_t bt = piece * grain; bt < smaller(rows, (piece + 1) * grain); ++bt) {
                 if (s.rotary)
                   load_angles(w, args.rope.as<float>(), args.positions.as<int32_t>()[bt], s);
                 const T* x = args.qkv.as<const T>() + bt * token;
                 T* out = args.y.as<T>() + bt * token;
                 for (int64_t h = 0; h < H + G; ++h)
                   head_forward(w, out + h * D,
                                args.stat ? args.stat.as<float>() + bt * (H + G) + h : nullptr,
                                x + h * D, (h < H ? args.q_gain : args.k_gain).as<const T>(), s);
                 copy_values(out, x, s);
               }
             });
  });
}

void qk_norm_rope_bwd(Stream& stream, const QkNormRopeBwdArgs& args) {
  if (args.fp8) return qk_norm_rope_bwd_fp8(fp8_run(stream, fp8_parts), args);
  const QkSpec& s = args.spec;
  expect_dtypes("qk_norm_rope_bwd", args.dy.dtype, args.dqkv, args.q_gain, args.k_gain);
  if (s.norm != QkNorm::none) expect_dtypes("qk_norm_rope_bwd", args.dy.dtype, args.qkv);
  expect_dtypes("qk_norm_rope_bwd", DType::f32, args.dq_gain, args.dk_gain, args.parts, args.stat,
                args.rope);
  const int64_t H = s.heads, G = s.kv_heads, D = s.head_dim, token = s.token();
  const int64_t rows = count(args.dy) / token;
  float* memory = work_memory(stream, s);
  float* q_parts = args.dq_gain ? args.parts.as<float>() : nullptr;
  float* k_parts = args.dk_gain ? args.parts.as<float>() + row_parts * D : nullptr;
  by_dtype("qk_norm_rope_bwd", args.dy, [&]<class T>(T*) {
    parallel(cpu_stream(stream).threads, row_parts, [&](int64_t part, int worker) {
      const Work w(memory + worker * Work::floats(s), s);
      float* dq = q_parts ? q_parts + part * D : nullptr;
      float* dk = k_parts ? k_parts + part * D : nullptr;
      for (int64_t i = 0; dq && i < D; ++i) dq[i] = 0;
      for (int64_t i = 0; dk && i < D; ++i) dk[i] = 0;
      for (int64_t bt = part_begin(rows, part); bt < part_begin(rows, part + 1); ++bt) {
        if (s.rotary) load_angles(w, args.rope.as<float>(), args.positions.as<int32_t>()[bt], s);
        const T* d = args.dy.as<const T>() + bt * token;
        const T* x = s.norm == QkNorm::none ? nullptr : args.qkv.as<const T>() + bt * token;
        const float* st = s.norm == QkNorm::none ? nullptr : args.stat.as<float>() + bt * (H + G);
        T* out = args.dqkv.as<T>() + bt * token;
        for (int64_t h = 0; h < H + G; ++h)
          head_backward(w, out + h * D, h < H ? dq : dk, d + h * D, x ? x + h * D : nullptr,
                        st ? st + h : nullptr, (h < H ? args.q_gain : args.k_gain).as<const T>(),
                        s);
        copy_values(out, d, s);
      }
    });
  });
  if (args.dq_gain) add_parts(stream, args.dq_gain.as<float>(), q_parts, D, 1, s.add);
  if (args.dk_gain) add_parts(stream, args.dk_gain.as<float>(), k_parts, D, 1, s.add);
}

}  // namespace hearth::HEARTH_ISA
