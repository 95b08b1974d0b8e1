// The parts of attention: a tile of query rows against a block of keys, both in fp32 scratch.
// Scores are transposed, (keys, rows): a vector holds one key's score for `lanes` rows, so softmax
// needs no horizontal operation, and a row is computed by the same operations wherever it lies in
// its tile.
#pragma once

#include "cpu/isa/random.h"
#include "cpu/isa/rows.h"
#include "cpu/isa/transpose.h"

namespace hearth::HEARTH_ISA {

constexpr int64_t key_block =
    cache_block;                  // block k holds keys [64 k, 64 k + 64) for any query position
constexpr int64_t row_tile = 64;  // query rows per tile: tokens x the heads that share a KV head

struct Span {
  int64_t begin, end;
};

// Rows and vectors of c held in registers by `small_product`.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int held_rows = 6, held_vectors = 4;
#else
constexpr int held_rows = 6, held_vectors = 2;
#endif

// An operand read one element at a time: a(m, k) = p[m * row + k * step].
struct Operand {
  const float* p;
  int64_t row, step;
};

using SmallProduct = void (*)(float* c, int64_t ldc, Operand a, const float* b, int64_t ldb, Span k,
                              const float* scale, bool add);

// c (M, N vectors) = [scale(m) * c +] sum over k of a(m, k) b(k), in the order of k.
template <int M, int N>
void small_product(float* c, int64_t ldc, Operand a, const float* b, int64_t ldb, Span k,
                   const float* scale, bool add) {
  vf t[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      t[m][n] = add ? load(c + m * ldc + n * lanes) : zero();
      if (scale) t[m][n] *= scale[m];
    }
  for (int64_t i = k.begin; i < k.end; ++i) {
    vf v[N];
    for (int n = 0; n < N; ++n) v[n] = load(b + i * ldb + n * lanes);
    for (int m = 0; m < M; ++m) {
      const vf x = broadcast(a.p[m * a.row + i * a.step]);
      for (int n = 0; n < N; ++n) t[m][n] = fma(x, v[n], t[m][n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(c + m * ldc + n * lanes, t[m][n]);
}

template <int M>
inline SmallProduct small_product_of(int64_t vectors) {
  if constexpr (held_vectors == 4) {
    if (vectors == 4) return small_product<M, 4>;
    if (vectors == 3) return small_product<M, 3>;
  }
  return vectors == 2 ? small_product<M, 2> : small_product<M, 1>;
}

inline SmallProduct small_product_of(int64_t rows, int64_t vectors) {
  switch (rows) {
    case 1:
      return small_product_of<1>(vectors);
    case 2:
      return small_product_of<2>(vectors);
    case 3:
      return small_product_of<3>(vectors);
    case 4:
      return small_product_of<4>(vectors);
    case 5:
      return small_product_of<5>(vectors);
    default:
      return small_product_of<6>(vectors);
  }
}

// c (rows, N) = [scale(m) * c +] a b. columns(m0, m1) and depth(m0, m1) bound N (whole vectors) and
// k for those rows of c, to skip what the mask hides.
template <class Columns, class Depth>
inline void product(float* c, int64_t ldc, Operand a, const float* b, int64_t ldb, int64_t rows,
                    const float* scale, bool add, Columns columns, Depth depth) {
  for (int64_t m = 0; m < rows; m += held_rows) {
    const int64_t M = smaller(held_rows, rows - m);
    const Span n = columns(m, m + M), k = depth(m, m + M);
    if (k.begin >= k.end && add) continue;
    const Operand am{a.p + m * a.row, a.row, a.step};
    for (int64_t at = n.begin; at < n.end;) {
      const int64_t left = (n.end - at) / lanes;
      // Two halves instead of a full strip and a thin one.
      const int64_t take = left <= held_vectors      ? left
                           : left < 2 * held_vectors ? (left + 1) / 2
                                                     : held_vectors;
      small_product_of(M, take)(c + m * ldc + at, ldc, am, b + at, ldb, k,
                                scale ? scale + m : nullptr, add);
      at += take * lanes;
    }
  }
}

// out (cols, ldo) = in (rows, ldi) transposed; rows and cols are whole vectors.
inline void transpose(float* out, int64_t ldo, const float* in, int64_t ldi, int64_t rows,
                      int64_t cols) {
  for (int64_t r = 0; r < rows; r += lanes)
    for (int64_t c = 0; c < cols; c += lanes) {
      vf square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = load(in + (r + i) * ldi + c);
      transpose(square);
      for (int i = 0; i < lanes; ++i) store(out + (c + i) * ldo + r, square[i]);
    }
}

// out (ld) = scale * x (D), zeros up to ld.
template <class T>
HEARTH_INLINE void load_row(float* out, int64_t ld, const T* x, int64_t D, float scale) {
  vectors(D, [&](int64_t i, auto w) { store(out + i, w.get(x + i) * scale); });
  for (int64_t i = round_up(D, lanes); i < ld; i += lanes) store(out + i, zero());
}

template <class T>
HEARTH_INLINE void store_row(T* y, const float* x, int64_t D, float scale) {
  // Adding 0 turns -0 into 0: whether a sum of zero included masked zeros must not show.
  vectors(D, [&](int64_t i, auto w) { w.put(y + i, w.get(x + i) * scale + 0.0f); });
}

struct AttnShape {
  int64_t B, T, H, G;
  int64_t D, V;    // width of a head of q and k, and of v
  int64_t R;       // query heads per KV head
  int64_t ld, lv;  // D and V rounded up to whole vectors
  AttnShape(const Tensor& y, const HeadLayout& q, const HeadLayout& k, const HeadLayout& v)
      : B(y.shape[0]),
        T(y.shape[1]),
        H(q.heads),
        G(k.heads),
        D(q.width),
        V(v.width),
        R(q.heads / k.heads),
        ld(round_up(q.width, lanes)),
        lv(round_up(v.width, lanes)) {}
  // Index of the first element of head h of token n in y.
  int64_t y(int64_t n, int64_t h) const { return (n * H + h) * V; }
  int64_t tiles() const { return (T * R + row_tile - 1) / row_tile; }
};

// Where keys and values are: key j of a head is k[j * k_stride], its value v[j * v_stride]. In a
// paged cache those of key block i start at k[table[i] * block] and v[table[i] * block]. The
// exponents of e4m3 keys follow the last key of their block.
template <class T>
struct Keys {
  const T *k, *v;
  int64_t k_stride, v_stride;
  const int32_t* documents;  // (T) of this sequence, or null
  const int32_t* table = nullptr;
  int64_t block = 0;

  HEARTH_INLINE const T* keys_of(int64_t i) const {
    return k + (table ? table[i] * block : i * key_block * k_stride);
  }
  HEARTH_INLINE const T* values_of(int64_t i) const {
    return v + (table ? table[i] * block : i * key_block * v_stride);
  }
};

// 2^(exponent - 127); infinity for exponent 255.
HEARTH_INLINE float power_of_two(uint8_t exponent) {
  const uint32_t u = uint32_t(exponent) << 23;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

// out (ld) = row j of a block of keys or values.
template <class T>
HEARTH_INLINE void load_key(float* out, int64_t ld, const T* block, int64_t stride, int64_t j,
                            int64_t D) {
  if constexpr (std::is_same_v<T, e4m3>)
    load_row(out, ld, block + j * stride, D, power_of_two(block[key_block * stride + j].bits));
  else
    load_row(out, ld, block + j * stride, D, 1);
}

// What is added to scores by distance: ALiBi, or a learned bias whose last entry also holds for
// larger distances.
struct ByDistance {
  const float* slopes;  // (H), or null
  const float* bias;    // (H, S), or null
  int64_t S;

  template <class Args>
  HEARTH_INLINE explicit ByDistance(const Args& a)
      : slopes(a.slopes.template as<const float>()),
        bias(a.bias.template as<const float>()),
        S(a.bias ? a.bias.cols() : 0) {}
  explicit operator bool() const { return slopes || bias; }
};

// The query rows of one tile. Lanes from n on have position -1 and see no key.
struct TileRows {
  int64_t n, padded;  // padded: n rounded up to whole vectors
  int32_t position[row_tile], document[row_tile];
  float slope[row_tile];
  const float* bias[row_tile];              // by distance, of the row's head; or null
  int64_t token[row_tile], head[row_tile];  // token over all sequences; head of q
  int64_t lse[row_tile];                    // element offset
  int32_t vec_min[row_tile / lanes], vec_max[row_tile / lanes];    // positions of each vector
  int32_t min_position, max_position, min_document, max_document;  // of rows that see any key
};

// Rows [first, first + 64) of the query heads that share KV head g: row = token * R + head.
// `positions` (T) and `documents` (T) belong to this sequence; without positions a token's position
// is its index.
inline void fill_rows(TileRows& rows, const AttnShape& s, int64_t b, int64_t g, int64_t first,
                      const int32_t* positions, const int32_t* documents,
                      const ByDistance& further) {
  rows.n = smaller(row_tile, s.T * s.R - first);
  rows.padded = round_up(rows.n, lanes);
  rows.min_position = rows.min_document = INT32_MAX;
  rows.max_position = -1;
  rows.max_document = INT32_MIN;
  for (int64_t i = 0; i < row_tile; ++i) {
    const bool real = i < rows.n;
    const int64_t t = real ? (first + i) / s.R : 0, h = g * s.R + (real ? (first + i) % s.R : 0);
    rows.position[i] = !real ? -1 : positions ? positions[t] : int32_t(t);
    rows.document[i] = documents ? documents[t] : 0;
    rows.slope[i] = further.slopes ? further.slopes[h] : 0;
    rows.bias[i] = further.bias ? further.bias + h * further.S : nullptr;
    rows.token[i] = b * s.T + t;
    rows.head[i] = h;
    rows.lse[i] = (b * s.H + h) * s.T + t;
    const int32_t p = rows.position[i];
    if (p >= 0) {
      if (p < rows.min_position) rows.min_position = p;
      if (p > rows.max_position) rows.max_position = p;
      if (rows.document[i] < rows.min_document) rows.min_document = rows.document[i];
      if (rows.document[i] > rows.max_document) rows.max_document = rows.document[i];
    }
    const int64_t v = i / lanes;
    if (i % lanes == 0) rows.vec_min[v] = rows.vec_max[v] = p;
    if (p < rows.vec_min[v]) rows.vec_min[v] = p;
    if (p > rows.vec_max[v]) rows.vec_max[v] = p;
  }
}

// The first row that may see key j or a later one, rounded down to a whole vector.
HEARTH_INLINE int64_t first_row(const TileRows& rows, int64_t j) {
  int64_t v = 0;
  while (v * lanes < rows.padded && rows.vec_max[v] < j) ++v;
  return v * lanes;
}

// One more than the last key that a row of [begin, end) may see.
HEARTH_INLINE int64_t last_key(const TileRows& rows, int64_t begin, int64_t end) {
  int64_t last = 0;
  for (int64_t i = begin; i < end; ++i) last = larger(last, int64_t(rows.position[i]) + 1);
  return last;
}

// The key blocks with a key that some row sees, documents ignored.
inline Span blocks_seen(const TileRows& rows, const AttnSpec& spec) {
  if (rows.max_position < 0) return {0, 0};
  const int64_t first = spec.window ? larger(0, rows.min_position - spec.window + 1) : 0;
  return {first / key_block, rows.max_position / key_block + 1};
}

// [begin, end) without the keys at either end whose document matches no row. A hidden key would add
// only zeros to a row, so leaving it out changes no bits.
inline Span keys_met(const TileRows& rows, const int32_t* documents, int64_t begin, int64_t end) {
  const auto apart = [&](int64_t j) {
    return documents[j] < rows.min_document || documents[j] > rows.max_document;
  };
  if (!documents) return {begin, end};
  while (begin < end && apart(begin)) ++begin;
  while (begin < end && apart(end - 1)) --end;
  return {begin, end};
}

// out (padded rows, ld) = scale * the rows of heads of width D, zeros after the last one; at(i)
// points to row i.
template <class At>
inline void load_rows(float* out, int64_t ld, const TileRows& rows, int64_t D, float scale, At at) {
  for (int64_t i = 0; i < rows.n; ++i) load_row(out + i * ld, ld, at(i), D, scale);
  for (int64_t i = rows.n * ld; i < rows.padded * ld; i += lanes) store(out + i, zero());
}

// Keys and values of head g of sequence b; `documents` (B, T) or null.
template <class T>
inline Keys<T> keys_of_head(const HeadView& k, const HeadView& v, const int32_t* documents,
                            const AttnShape& s, int64_t b, int64_t g) {
  return {k.at<const T>(b * s.T, g), v.at<const T>(b * s.T, g), k.layout.token, v.layout.token,
          documents ? documents + b * s.T : nullptr};
}

// Calls take(begin, end) for each block with a key that a row may see, with its keys in k
// (key_block, ld) and values in v (key_block, lv). Prefetches the next block, because a decode step
// waits for little else.
template <class T, class Take>
inline void over_blocks(float* k, float* v, const Keys<T>& keys, const TileRows& rows,
                        const AttnShape& s, const AttnSpec& spec, Take&& take) {
  constexpr int64_t line = 64 / sizeof(T);
  const int64_t last = int64_t(rows.max_position) + 1;
  const Span blocks = blocks_seen(rows, spec);
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t first = block * key_block, after = block + 1 < blocks.end ? block + 1 : block;
    const T *ks = keys.keys_of(block), *vs = keys.values_of(block);
    const T *next_k = keys.keys_of(after), *next_v = keys.values_of(after);
    const auto [begin, end] =
        keys_met(rows, keys.documents, first, smaller(first + key_block, last));
    for (int64_t j = begin; j < end; ++j) {
      const bool more = j + key_block < last;
      for (int64_t i = 0; i < s.D && more; i += line)
        __builtin_prefetch(next_k + (j - first) * keys.k_stride + i, 0, 2);
      for (int64_t i = 0; i < s.V && more; i += line)
        __builtin_prefetch(next_v + (j - first) * keys.v_stride + i, 0, 2);
      load_key(k + (j - begin) * s.ld, s.ld, ks, keys.k_stride, j - first, s.D);
      load_key(v + (j - begin) * s.lv, s.lv, vs, keys.v_stride, j - first, s.V);
    }
    if (begin < end) take(begin, end);
  }
}

// What modifies a score q . k * scale, and whether all of a vector's rows see all of a block.
struct Scoring {
  float cap, inverse_cap;  // cap 0: off
  bool alibi;
  int32_t last;  // distance from which on the bias is the same; -1: no bias
  const int32_t* documents;
  int32_t window;

  template <class T>
  Scoring(const AttnSpec& s, const Keys<T>& keys, const ByDistance& further)
      : cap(s.softcap),
        inverse_cap(s.softcap > 0 ? 1 / s.softcap : 0),
        alibi(further.slopes),
        last(int32_t(further.S) - 1),
        documents(keys.documents),
        window(s.window ? int32_t(s.window) : INT32_MAX) {}

  bool plain(const TileRows& rows, int64_t v, int64_t begin, int64_t end) const {
    return !(cap > 0) && !alibi && last < 0 && !documents && rows.vec_min[v] >= end - 1 &&
           rows.vec_max[v] - begin < window;
  }
};

// One vector of rows, ready for masking.
struct RowVector {
  vi position, document;
  vf slope;
  int32_t least;             // smallest position
  const float* const* bias;  // of each row
  RowVector(const TileRows& rows, int64_t v)
      : position(load_raw<vi>(rows.position + v * lanes)),
        document(load_raw<vi>(rows.document + v * lanes)),
        slope(load(rows.slope + v * lanes)),
        least(rows.vec_min[v]),
        bias(rows.bias + v * lanes) {}

  vi sees(const Scoring& s, int64_t j) const {
    const vi distance = position - int32_t(j);
    vi seen = (distance >= 0) & (distance < s.window);
    if (s.documents) seen &= document == s.documents[j];
    return seen & (position >= 0);
  }
  // Whether all rows are so far from key j that their bias is its last entry.
  HEARTH_INLINE bool far(const Scoring& s, int64_t j) const { return least - j >= s.last; }
  // The index of the bias of row i and key j. A key that the row cannot see has the first one.
  HEARTH_INLINE int32_t distance(const Scoring& s, int64_t j, int i) const {
    return int32_t(smaller(larger(position[i] - j, 0), s.last));
  }
  HEARTH_INLINE vf bias_of(const Scoring& s, int64_t j) const {
    vf x;
    for (int i = 0; i < lanes; ++i) x[i] = bias[i][far(s, j) ? s.last : distance(s, j, i)];
    return x;
  }
  // Softcap, ALiBi and bias; `t` receives the tanh of the softcap.
  HEARTH_INLINE vf score(const Scoring& s, int64_t j, vf x, vf& t) const {
    if (s.cap > 0) {
      t = tanh(x * s.inverse_cap);
      x = t * s.cap;
    }
    if (s.alibi) x -= slope * to_float(position - int32_t(j));
    if (s.last >= 0) x += bias_of(s, j);
    return x;
  }
};

// keep (keys, row_tile): the factor by which dropout multiplies each probability.
inline void fill_keep(float* keep, const TileRows& rows, const AttnShape& s, int64_t begin,
                      int64_t end, const Scalars& scalars, const AttnSpec& spec) {
  const uint32_t limit = threshold_of(spec.dropout);
  const float kept = 1 / (1 - spec.dropout);
  uint32_t words[key_block];
  for (int64_t i = 0; i < rows.padded; ++i) {
    random_row(words, scalars, spec.salt, uint64_t(rows.lse[i] * s.T + begin), end - begin);
    for (int64_t j = 0; j < end - begin; ++j) keep[j * row_tile + i] = words[j] < limit ? 0 : kept;
  }
}

}  // namespace hearth::HEARTH_ISA
