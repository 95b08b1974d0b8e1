// Latent attention around its products: rotation of some dims of heads, packing of heads, and
// latents in and out of the paged cache. Memory bound: one pass each.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

constexpr int64_t rope_chunk = 64;

// Rotates `rotary` dims by the angles (rotary / 2, 2): cos, sin. y may be x.
template <class T>
void rotate_dims(T* y, const T* x, const float* angles, int64_t rotary, bool interleaved,
                 float sign) {
  const int64_t half = rotary / 2;
  float a[rope_chunk], b[rope_chunk];
  if (interleaved) {
    for (int64_t i = 0; i < rotary; i += rope_chunk) {
      const int64_t n = smaller(rope_chunk, rotary - i);
      vectors(n, [&](int64_t k, auto w) { w.put(a + k, w.get(x + i + k)); });
      for (int64_t k = 0; k < n; k += 2) {
        const float c = angles[i + k], s = sign * angles[i + k + 1];
        b[k] = a[k] * c - a[k + 1] * s;
        b[k + 1] = a[k + 1] * c + a[k] * s;
      }
      vectors(n, [&](int64_t k, auto w) { w.put(y + i + k, w.get(b + k)); });
    }
    return;
  }
  for (int64_t i = 0; i < half; i += rope_chunk) {
    const int64_t n = smaller(rope_chunk, half - i);
    vectors(n, [&](int64_t k, auto w) { w.put(a + k, w.get(x + i + k)); });
    vectors(n, [&](int64_t k, auto w) { w.put(b + k, w.get(x + half + i + k)); });
    for (int64_t k = 0; k < n; ++k) {
      const float c = angles[2 * (i + k)], s = sign * angles[2 * (i + k) + 1], u = a[k];
      a[k] = u * c - b[k] * s;
      b[k] = b[k] * c + u * s;
    }
    vectors(n, [&](int64_t k, auto w) { w.put(y + i + k, w.get(a + k)); });
    vectors(n, [&](int64_t k, auto w) { w.put(y + half + i + k, w.get(b + k)); });
  }
}

template <class T>
HEARTH_INLINE void copy_dims(T* y, const T* x, int64_t n) {
  std::memcpy(static_cast<void*>(y), x, size_t(n) * sizeof(T));
}

// The place in a paged cache of latents, with rows of `width` elements, of position p of a table.
template <class T>
HEARTH_INLINE T* latent_place(const Tensor& cache, const int32_t* table, int64_t p, int64_t width) {
  return cache.as<T>() + (table[p / cache_block] * cache_block + p % cache_block) * width;
}

template <class T>
void store_latents(Stream& stream, const LatentCachedArgs& args) {
  const int64_t L = args.latent.cols(), R = args.k_rope.cols(), W = args.tables.cols();
  over_rows(stream, count(args.positions), L + R, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t at = args.positions.as<const int32_t>()[n];
      if (at < 0) continue;
      const int32_t* table =
          args.tables.as<const int32_t>() + args.sequences.as<const int32_t>()[n] * W;
      T* to = latent_place<T>(args.cache, table, at, L + R);
      copy_dims(to, args.latent.as<const T>() + n * L, L);
      copy_dims(to + L, args.k_rope.as<const T>() + n * R, R);
    }
  });
}

template <class T>
void read_latents(Stream& stream, const LatentCachedArgs& args) {
  const int64_t L = args.latent.cols(), R = args.k_rope.cols(), W = args.tables.cols();
  over_rows(stream, args.sequences_read * args.blocks, cache_block * (L + R),
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int32_t* table = args.tables.as<const int32_t>() + i / args.blocks * W;
                if (table[i % args.blocks] < 0) continue;
                for (int64_t k = 0; k < cache_block; ++k) {
                  const T* from =
                      latent_place<T>(args.cache, table, i % args.blocks * cache_block + k, L + R);
                  const int64_t row = i * cache_block + k;
                  copy_dims(args.latents.as<T>() + row * L, from, L);
                  copy_dims(args.rope_keys.as<T>() + row * R, from + L, R);
                }
              }
            });
}

// The gradient of one token of packed q | k | v.
template <class T>
void unpack_token(const UnpackLatentArgs& args, int64_t n) {
  const LatentSpec& s = args.spec;
  const T* dq = args.dy.as<const T>() + n * s.packed();
  const T *dk = dq + s.q_size(), *dv = dk + s.q_size();
  if (args.dq) copy_dims(args.dq.as<T>() + n * s.q_size(), dq, s.q_size());
  for (int64_t h = 0; args.dkv && h < s.heads; ++h) {
    T* to = args.dkv.as<T>() + n * s.kv_size() + h * (s.nope + s.v);
    copy_dims(to, dk + h * s.qk(), s.nope);
    copy_dims(to + s.nope, dv + h * s.v, s.v);
  }
  if (!args.dk_rope) return;
  vectors(s.rope, [&](int64_t i, auto w) {
    vf total = w.get(dk + s.nope + i);
    for (int64_t h = 1; h < s.heads; ++h) total += w.get(dk + h * s.qk() + s.nope + i);
    w.put(args.dk_rope.as<T>() + n * s.rope + i, total);
  });
}

}  // namespace

void rope_heads(Stream& stream, const RopeHeadsArgs& args) {
  const RopeHeadsSpec& s = args.spec;
  expect_dtypes("rope_heads", args.x.dtype, args.y);
  expect_dtypes("rope_heads", DType::f32, args.rope);
  by_dtype("rope_heads", args.x, [&]<class T>(T*) {
    over_rows(stream, count(args.x) / s.token(), s.token(), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* x = args.x.as<const T>() + n * s.token();
        T* y = args.y.as<T>() + n * s.token();
        if (y != x) copy_dims(y, x, s.token());
        const int64_t at = larger(0, args.positions.as<const int32_t>()[n]);
        const float* angles = args.rope.as<const float>() + at * s.rotary;
        for (int64_t h = 0; h < s.heads; ++h)
          rotate_dims(y + h * s.width + s.first, x + h * s.width + s.first, angles, s.rotary,
                      s.interleaved, s.reverse ? -1.0f : 1.0f);
      }
    });
  });
}

void pack_latent(Stream& stream, const PackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("pack_latent", args.y.dtype, args.q, args.kv, args.k_rope);
  by_dtype("pack_latent", args.y, [&]<class T>(T*) {
    over_rows(stream, count(args.y) / s.packed(), s.packed(), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* q = args.y.as<T>() + n * s.packed();
        T *k = q + s.q_size(), *v = k + s.q_size();
        copy_dims(q, args.q.as<const T>() + n * s.q_size(), s.q_size());
        for (int64_t h = 0; h < s.heads; ++h) {
          const T* kv = args.kv.as<const T>() + n * s.kv_size() + h * (s.nope + s.v);
          copy_dims(k + h * s.qk(), kv, s.nope);
          copy_dims(k + h * s.qk() + s.nope, args.k_rope.as<const T>() + n * s.rope, s.rope);
          copy_dims(v + h * s.v, kv + s.nope, s.v);
        }
      }
    });
  });
}

void unpack_latent(Stream& stream, const UnpackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("unpack_latent", args.dy.dtype, args.dq, args.dkv, args.dk_rope);
  by_dtype("unpack_latent", args.dy, [&]<class T>(T*) {
    over_rows(stream, count(args.dy) / s.packed(), s.packed(), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) unpack_token<T>(args, n);
    });
  });
}

void latent_cached(Stream& stream, const LatentCachedArgs& args) {
  expect_dtypes("latent_cached", args.cache.dtype, args.latent, args.k_rope, args.latents,
                args.rope_keys);
  by_dtype("latent_cached", args.cache, [&]<class T>(T*) {
    store_latents<T>(stream, args);
    if (args.latents) read_latents<T>(stream, args);
  });
}

void latent_panels(Stream& stream, const LatentPanelsArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("latent_panels", args.panels.dtype, args.kv, args.rope_keys);
  const int64_t keys = s.heads * cache_block * s.qk(), block = keys + s.heads * cache_block * s.v;
  by_dtype("latent_panels", args.panels, [&]<class T>(T*) {
    over_rows(stream, count(args.panels) / block, block, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * cache_block; i < end * cache_block; ++i) {
        T* to = args.panels.as<T>() + i / cache_block * block;
        for (int64_t h = 0; h < s.heads; ++h) {
          const T* kv = args.kv.as<const T>() + i * s.kv_size() + h * (s.nope + s.v);
          T* k = to + (h * cache_block + i % cache_block) * s.qk();
          copy_dims(k, kv, s.nope);
          copy_dims(k + s.nope, args.rope_keys.as<const T>() + i * s.rope, s.rope);
          copy_dims(to + keys + (h * cache_block + i % cache_block) * s.v, kv + s.nope, s.v);
        }
      }
    });
  });
}

}  // namespace hearth::HEARTH_ISA
