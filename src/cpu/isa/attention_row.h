// Attention of a few query rows, for decoding: vectors run over keys and then over the head's
// dims, because the rows are too few to fill a vector. Every sum has the same order as in a tile
// (attention.cpp), so the bits are the same.
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

// The keys or values of the block after the one at hand: n rows of D elements, none after the last
// block. Their lines are prefetched a few at a time between arithmetic, because a burst would only
// wait for the few lines that a core can have under way.
template <class K>
struct Ahead {
  static constexpr int64_t line = 64 / sizeof(K);
  const K* at = nullptr;
  int64_t stride = 0, n = 0, D = 0;

  // Rows [row, row + count), dims [d, d + width).
  HEARTH_INLINE void prefetch(int64_t row, int64_t count, int64_t d, int64_t width) const {
    const int64_t rows = smaller(row + count, n), dims = smaller(d + width, D);
    for (int64_t j = row; j < rows; ++j)
      for (int64_t i = round_up(d, line); i < dims; i += line)
        __builtin_prefetch(at + j * stride + i, 0, 2);
  }
};

// p (n, padded to whole vectors) = q . k for n keys; squares of keys are transposed in registers.
template <class T, class K>
HEARTH_INLINE void single_scores(float* p, const float* q, const T* k, int64_t stride, int64_t n,
                                 int64_t D, const Ahead<K>& next) {
  for (int64_t j = 0; j < n; j += lanes, k += lanes * stride) {
    vf c = zero();
    for (int64_t d = 0; d < D; d += lanes) {
      next.prefetch(j, lanes, d, lanes);
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

// U vectors of y = fade * y + sum of p[j] v[j], in the order of j.
template <int U, class T, class K>
HEARTH_INLINE void add_values(float* y, const float* p, const T* v, int64_t stride, int64_t n,
                              float fade, int64_t d, const Ahead<K>& next) {
  vf c[U];
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) c[u] = load(y + d + u * lanes) * fade;
  for (int64_t j = 0; j < n; ++j) {
    next.prefetch(j, 1, d, U * lanes);
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u)
      c[u] = fma(broadcast(p[j]), load(v + j * stride + d + u * lanes), c[u]);
  }
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) store(y + d + u * lanes, c[u]);
}

// y (ld) = fade * y + sum of p[j] v[j]. Several vectors at a time, so that their sums overlap.
template <class T, class K>
HEARTH_INLINE void single_values(float* y, const float* p, const T* v, int64_t stride, int64_t n,
                                 int64_t D, float fade, const Ahead<K>& next) {
  int64_t d = 0;
  for (; d + 4 * lanes <= D; d += 4 * lanes) add_values<4>(y, p, v, stride, n, fade, d, next);
  for (; d + lanes <= D; d += lanes) add_values<1>(y, p, v, stride, n, fade, d, next);
  if (d < D) {
    vf c = load(y + d) * fade;
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

// Scratch of a few rows: q (rows, ld) and y (rows, lv); k and v have key_block rows each.
struct SingleWork {
  float *q, *y;
  float *k, *v;
};

// The running softmax of a row that sees the keys [first, position].
struct SingleRow {
  float *q, *y;
  int64_t first, position;
  vf top = broadcast(-__builtin_inff()), sum = zero();

  // Adds the keys of a block that begins with key `begin`.
  template <class R, class K>
  HEARTH_INLINE void take(const R& rows, int64_t begin, const AttnShape& s, const Ahead<K>& next_k,
                          const Ahead<K>& next_v) {
    constexpr float none = -__builtin_inff();
    const int64_t n = smaller(key_block, position + 1 - begin);
    float p[key_block];
    single_scores(p, q, rows.k, rows.k_stride, n, s.D, next_k);
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
    single_values(y, p, rows.v, rows.v_stride, n, s.V, fade[0], next_v);
  }
};

// Attention of `count` <= few_query_rows rows at `positions` over the same keys: out(i), query(i)
// and positions[i] belong to row i. Every block of keys is read once for all rows.
template <class K, class Query, class Out>
inline void attend_few(const SingleWork& w, const Keys<K>& keys, const int32_t* positions,
                       int64_t count, const AttnShape& s, const AttnSpec& spec, Query&& query,
                       Out&& out) {
  SingleRow row[few_query_rows];
  int64_t begin = INT64_MAX, last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = positions[i];
    row[i].q = w.q + i * s.ld;
    row[i].y = w.y + i * s.lv;
    row[i].first = spec.window ? larger(0, at - spec.window + 1) : 0;
    row[i].position = at;
    load_row(row[i].q, s.ld, query(i), s.D, spec.scale);
    for (int64_t d = 0; d < s.lv; d += lanes) store(row[i].y + d, zero());
    if (at >= 0) begin = smaller(begin, row[i].first);
    last = larger(last, at);
  }
  for (int64_t block = last < 0 ? 0 : begin / key_block; block * key_block <= last; ++block) {
    const int64_t at = block * key_block, seen = smaller(key_block, last + 1 - at);
    const int64_t more = smaller(key_block, last + 1 - at - key_block);  // keys of the next block
    Ahead<K> next_k, next_v;
    if (more > 0) {
      next_k = {keys.keys_of(block + 1), keys.k_stride, more, s.D};
      next_v = {keys.values_of(block + 1), keys.v_stride, more, s.V};
    }
    const auto rows = rows_of_block(w.k, w.v, keys, block, seen, s);
    for (int64_t i = 0; i < count; ++i) {
      if (row[i].position < at || row[i].first >= at + key_block) continue;
      row[i].take(rows, at, s, next_k, next_v);
      next_k = next_v = {};
    }
  }
  for (int64_t i = 0; i < count; ++i)
    store_row(out(i), row[i].y, s.V, row[i].position < 0 ? 0 : 1 / row[i].sum[0]);
}

}  // namespace hearth::HEARTH_ISA
