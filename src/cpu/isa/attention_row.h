// Attention of a single query row, for decoding: vectors run over keys and then over the head's
// dims, because there is only one row. Every sum has the same order as in a tile (attention.cpp),
// so the bits are the same.
#pragma once

#include "cpu/isa/attention_tile.h"

namespace hearth::HEARTH_ISA {

constexpr int64_t few_query_rows = 4;  // up to this many rows are computed one by one

// Whether scores are plain products, the only case that the single-row code handles.
inline bool suits_single_rows(const TileRows& rows, const AttnSpec& spec, bool by_distance,
                              const int32_t* documents) {
  return rows.n <= few_query_rows && !by_distance && !documents && spec.softcap == 0 &&
         spec.dropout == 0;
}

// `lanes` elements of a row of D, starting at i; zeros past its end.
template <class T>
HEARTH_INLINE vf load_dims(const T* x, int64_t i, int64_t D) {
  return i + lanes <= D ? load(x + i) : load_partial(x + i, D - i);
}

// p (n, padded to whole vectors) = q . k for n keys; squares of keys are transposed in registers.
template <class T>
HEARTH_INLINE void single_scores(float* p, const float* q, const T* k, int64_t stride, int64_t n,
                                 int64_t D) {
  for (int64_t j = 0; j < n; j += lanes, k += lanes * stride) {
    vf c = zero();
    for (int64_t d = 0; d < D; d += lanes) {
      vf m[lanes];
      if (n - j >= lanes && D - d >= lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) m[i] = load(k + i * stride + d);
      } else {
        for (int i = 0; i < lanes; ++i) m[i] = j + i < n ? load_dims(k + i * stride, d, D) : zero();
      }
      transpose(m);
      if (D - d >= lanes) {
#pragma GCC unroll 16
        for (int t = 0; t < lanes; ++t) c = fma(m[t], broadcast(q[d + t]), c);
      } else {
        float square[lanes * lanes];
        for (int t = 0; t < lanes; ++t) store(square + t * lanes, m[t]);
        for (int64_t t = 0; t < D - d; ++t) c = fma(load(square + t * lanes), q[d + t], c);
      }
    }
    store(p + j, c);
  }
}

// y (ld) = fade * y + sum of p[j] v[j], in the order of j.
template <class T>
HEARTH_INLINE void single_values(float* y, const float* p, const T* v, int64_t stride, int64_t n,
                                 int64_t D, float fade) {
  for (int64_t d = 0; d < D; d += lanes) {
    vf c = load(y + d) * fade;
    if (D - d >= lanes)
      for (int64_t j = 0; j < n; ++j) c = fma(broadcast(p[j]), load(v + j * stride + d), c);
    else
      for (int64_t j = 0; j < n; ++j) c = fma(broadcast(p[j]), load_dims(v + j * stride, d, D), c);
    store(y + d, c);
  }
}

// The first n keys and values of a block in the form that products read: in place, or, for e4m3,
// converted into the scratch k and v (key_block, ld).
template <class K>
struct BlockRows {
  const K *k, *v;
  int64_t k_stride, v_stride;
};
template <class K>
HEARTH_INLINE auto rows_of_block(float* k, float* v, const Keys<K>& keys, int64_t block, int64_t n,
                                 const AttnShape& s) {
  const K *from_k = keys.keys_of(block), *from_v = keys.values_of(block);
  if constexpr (std::is_same_v<K, e4m3>) {
    for (int64_t j = 0; j < n; ++j) {
      load_key(k + j * s.ld, s.ld, from_k, keys.k_stride, j, s.D);
      load_key(v + j * s.lv, s.lv, from_v, keys.v_stride, j, s.V);
    }
    return BlockRows<float>{k, v, s.ld, s.lv};
  } else {
    return BlockRows<K>{from_k, from_v, keys.k_stride, keys.v_stride};
  }
}

// Scratch of one row: q has ld elements, y has lv, and k and v have key_block rows each.
struct SingleWork {
  float *q, *y;
  float *k, *v;
};

template <class T, class K>
inline void attend_single(const SingleWork& w, T* out, const T* query, const Keys<K>& keys,
                          int64_t position, const AttnShape& s, const AttnSpec& spec) {
  constexpr float none = -__builtin_inff();
  constexpr int64_t line = 64 / sizeof(K);
  float *q = w.q, *y = w.y;
  const int64_t first = spec.window ? larger(0, position - spec.window + 1) : 0;
  load_row(q, s.ld, query, s.D, spec.scale);
  for (int64_t i = 0; i < s.lv; i += lanes) store(y + i, zero());
  vf top = broadcast(none), sum = zero();
  float p[key_block];
  for (int64_t block = first / key_block; block * key_block <= position; ++block) {
    const int64_t begin = block * key_block;
    const int64_t n = smaller(key_block, position + 1 - begin);
    if (begin + key_block <= position) {  // prefetch the next block
      const K *next_k = keys.keys_of(block + 1), *next_v = keys.values_of(block + 1);
      const int64_t count = smaller(key_block, position + 1 - begin - key_block);
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = 0; i < s.D; i += line)
          __builtin_prefetch(next_k + j * keys.k_stride + i, 0, 2);
        for (int64_t i = 0; i < s.V; i += line)
          __builtin_prefetch(next_v + j * keys.v_stride + i, 0, 2);
      }
    }
    const auto rows = rows_of_block(w.k, w.v, keys, block, n, s);
    single_scores(p, q, rows.k, rows.k_stride, n, s.D);
    for (int64_t j = 0; begin + j < first; ++j) p[j] = none;
    for (int64_t j = n; j % lanes; ++j) p[j] = none;
    vf most = top;
    for (int64_t j = 0; j < n; j += lanes) {
      const vf x = load(p + j);
      most = select(x > most, x, most);
    }
    float largest = most[0];
    for (int i = 1; i < lanes; ++i) largest = most[i] > largest ? most[i] : largest;
    const vf base = broadcast(largest == none ? 0 : largest), fade = exp_down(top - base);
    for (int64_t j = 0; j < n; j += lanes) store(p + j, exp_down(load(p + j) - base));
    float total = 0;
    for (int64_t j = 0; j < n; ++j) total += p[j];
    sum = fma(sum, fade, broadcast(total));
    top = broadcast(largest);
    single_values(y, p, rows.v, rows.v_stride, n, s.V, fade[0]);
  }
  store_row(out, y, s.V, position < 0 ? 0 : 1 / sum[0]);
}

}  // namespace hearth::HEARTH_ISA
