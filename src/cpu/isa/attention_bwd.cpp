// Causal attention, backward: probabilities are made again from the scores and lse, tile by tile
// and block by block. 10 * B * H * D * (visible pairs) FLOP. dK and dV of a key head are summed in
// fp32 over tiles in order; where there are few key heads the tiles are cut into a fixed number of
// parts, each with sums of its own, which are then added in order.
#include "cpu/isa/attention_tile.h"
#include "cpu/isa/kernels.h"

namespace hearth::HEARTH_ISA {
namespace {

// One worker's memory.
struct Work {
  float *q, *qt, *dy, *dyt, *dq;  // (row_tile, ld) or its transpose
  float *k, *v;                   // (key_block, ld)
  float *p, *ds, *keep;           // (key_block, row_tile)

  static int64_t floats(const AttnShape& s) {
    return 7 * row_tile * s.ld + 3 * key_block * row_tile;
  }
  Work(float* at, const AttnShape& s) {
    const int64_t tile = row_tile * s.ld;
    q = at;
    qt = q + tile;
    dy = qt + tile;
    dyt = dy + tile;
    dq = dyt + tile;
    k = dq + tile;
    v = k + tile;
    p = v + tile;
    ds = p + key_block * row_tile;
    keep = ds + key_block * row_tile;
  }
};

// Sums of dK and dV, (T, ld) each.
struct Sums {
  float *dk, *dv;
};

struct RowSums {
  float lse[row_tile], delta[row_tile];  // delta: dy . y
};

// From scores (in p) and dy . v (in ds) of one vector of rows: the probabilities after dropout and
// the gradient of q . k * scale. tanh' is 1 - t^2.
HEARTH_INLINE void slope_vector(const Work& w, const TileRows& rows, const RowSums& sums, int64_t v,
                                int64_t begin, int64_t end, const Scoring& scoring, bool dropped) {
  const int64_t seen = smaller(end, int64_t(rows.vec_max[v]) + 1) - begin;
  const vf lse = load(sums.lse + v * lanes), delta = load(sums.delta + v * lanes);
  const bool plain = scoring.plain(rows, v, begin, end);
  const RowVector row(rows, v);
  for (int64_t j = 0; j < seen; ++j) {
    const int64_t at = j * row_tile + v * lanes;
    vf x = load(w.p + at), dp = load(w.ds + at), t = zero();
    if (!plain) x = row.score(scoring, begin + j, x, t);
    vf p = exp_down(x - lse);
    const vi sees = row.sees(scoring, begin + j);
    if (!plain) p = select(sees, p, zero());
    vf after = p;
    if (dropped) {
      const vf keep = load(w.keep + at);
      after *= keep;
      dp *= keep;
    }
    vf ds = p * (dp - delta);
    if (!plain) {
      ds *= 1.0f - t * t;
      ds = select(sees, ds, zero());  // a hidden key gives nothing, not even 0 * inf
    }
    store(w.p + at, after);
    store(w.ds + at, ds);
  }
  for (int64_t j = larger(seen, 0); j < end - begin; ++j) {
    store(w.p + j * row_tile + v * lanes, zero());
    store(w.ds + j * row_tile + v * lanes, zero());
  }
}

// Adds what keys [begin, end) and the rows of a tile give each other.
void take_block(const Work& w, const Sums& out, const TileRows& rows, const RowSums& sums,
                const AttnShape& s, int64_t begin, int64_t end, const Scoring& scoring,
                const Scalars* scalars, const AttnSpec& spec) {
  const int64_t keys = end - begin;
  const auto seeing = [&](int64_t j, int64_t) {
    return Span{first_row(rows, begin + j), rows.padded};
  };
  const auto whole = [&](int64_t, int64_t) { return Span{0, s.ld}; };
  const auto head = [&](int64_t, int64_t) { return Span{0, s.D}; };
  product(w.p, row_tile, {w.k, s.ld, 1}, w.qt, row_tile, keys, nullptr, false, seeing, head);
  product(w.ds, row_tile, {w.v, s.ld, 1}, w.dyt, row_tile, keys, nullptr, false, seeing, head);
  if (spec.dropout > 0) fill_keep(w.keep, rows, s, begin, end, *scalars, spec);
  for (int64_t v = 0; v < rows.padded / lanes; ++v)
    slope_vector(w, rows, sums, v, begin, end, scoring, spec.dropout > 0);
  const auto from_seeing = [&](int64_t j, int64_t) {
    return Span{first_row(rows, begin + j), rows.n};
  };
  product(out.dv + begin * s.ld, s.ld, {w.p, row_tile, 1}, w.dy, s.ld, keys, nullptr, true, whole,
          from_seeing);
  product(out.dk + begin * s.ld, s.ld, {w.ds, row_tile, 1}, w.q, s.ld, keys, nullptr, true, whole,
          from_seeing);
  product(w.dq, s.ld, {w.ds, 1, row_tile}, w.k, s.ld, rows.n, nullptr, true, whole,
          [&](int64_t i, int64_t e) {
            return Span{0, smaller(end, last_key(rows, i, e)) - begin};
          });
}

template <class T>
float dot(const T* a, const T* b, int64_t n) {
  vf total = zero();
  vectors(n, [&](int64_t i, auto w) { total = fma(w.get(a + i), w.get(b + i), total); });
  return sum(total);
}

template <class T>
void load_tile(const Work& w, RowSums& sums, const AttentionBwdArgs& args, const TileRows& rows,
               const AttnShape& s) {
  const T* dy = args.dy.as<const T>();
  load_rows(w.q, rows, s, args.qkv.as<const T>(), rows.q, args.spec.scale);
  load_rows(w.dy, rows, s, dy, rows.y, 1);
  for (int64_t i = 0; i < rows.padded * s.ld; i += lanes) store(w.dq + i, zero());
  for (int64_t i = 0; i < rows.padded; ++i) {
    const bool real = i < rows.n;
    sums.lse[i] = real ? args.lse.as<const float>()[rows.lse[i]] : 0;
    sums.delta[i] = real ? dot(dy + rows.y[i], args.y.as<const T>() + rows.y[i], s.D) : 0;
  }
  transpose(w.qt, row_tile, w.q, s.ld, rows.padded, s.ld);
  transpose(w.dyt, row_tile, w.dy, s.ld, rows.padded, s.ld);
}

template <class T>
void tile_bwd(const Work& w, const Sums& out, const AttentionBwdArgs& args, const Keys<T>& keys,
              const TileRows& rows, const AttnShape& s) {
  RowSums sums;
  load_tile<T>(w, sums, args, rows, s);
  const Scoring scoring(args.spec, keys, bool(args.slopes));
  over_blocks(w.k, w.v, keys, rows, s, args.spec, [&](int64_t begin, int64_t end) {
    take_block(w, out, rows, sums, s, begin, end, scoring, args.scalars.as<const Scalars>(),
               args.spec);
  });
  for (int64_t i = 0; i < rows.n; ++i)
    store_row(args.dqkv.as<T>() + rows.q[i], w.dq + i * s.ld, s.D, args.spec.scale);
}

// dk, dv of keys [begin, end) of head (b, g) = the sums of all parts, in order.
template <class T>
void store_keys(Tensor dqkv, const float* sums, int64_t parts, const AttnShape& s, int64_t b,
                int64_t g, int64_t begin, int64_t end) {
  const int64_t size = s.T * s.ld;
  for (int64_t j = begin; j < end; ++j) {
    T* dk = dqkv.as<T>() + (b * s.T + j) * s.token() + (s.H + g) * s.D;
    T* out[2] = {dk, dk + s.G * s.D};
    for (int64_t which = 0; which < 2; ++which)
      vectors(s.D, [&](int64_t i, auto w) {
        vf total = load(sums + which * size + j * s.ld + i);
        for (int64_t p = 1; p < parts; ++p)
          total += load(sums + (2 * p + which) * size + j * s.ld + i);
        w.put(out[which] + i, total);
      });
  }
}

// Parts the tiles of a key head are cut into, by shape: one where the heads alone fill a machine.
int64_t part_count(const AttnShape& s) { return larger(1, smaller(s.tiles(), 16 / (s.B * s.G))); }

template <class T>
void all_bwd(Stream& stream, const AttentionBwdArgs& args) {
  const AttnShape s(args.qkv, args.spec);
  const int32_t* docs = args.documents.as<const int32_t>();
  const int64_t parts = part_count(s), tiles = s.tiles(), heads = s.B * s.G;
  const int64_t work = Work::floats(s), sums = 2 * s.T * s.ld;
  const int64_t workers = thread_count(cpu(stream).threads);
  // With one part a worker's sums are stored as soon as its piece is done.
  const int64_t areas = parts == 1 ? workers : heads * parts;
  float* memory =
      reinterpret_cast<float*>(cpu(stream).scratch.get((workers * work + areas * sums) * 4));
  float* all_sums = memory + workers * work;
  parallel(cpu(stream).threads, heads * parts, [&](int64_t piece, int worker) {
    const int64_t part = piece % parts, g = piece / parts % s.G, b = piece / (parts * s.G);
    float* area = all_sums + (parts == 1 ? int64_t(worker) : piece) * sums;
    for (int64_t i = 0; i < sums; i += lanes) store(area + i, zero());
    const Keys<T> keys = packed_keys(args.qkv.as<const T>(), docs, s, b, g);
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
      TileRows rows;
      fill_rows(rows, s, b, g, tile * row_tile, nullptr, keys.documents,
                args.slopes.as<const float>());
      tile_bwd(Work(memory + worker * work, s), {area, area + s.T * s.ld}, args, keys, rows, s);
    }
    if (parts == 1) store_keys<T>(args.dqkv, area, 1, s, b, g, 0, s.T);
  });
  if (parts == 1) return;
  const int64_t blocks = (s.T + key_block - 1) / key_block;
  parallel(cpu(stream).threads, heads * blocks, [&](int64_t piece, int) {
    const int64_t head = piece / blocks, begin = piece % blocks * key_block;
    store_keys<T>(args.dqkv, all_sums + head * parts * sums, parts, s, head / s.G, head % s.G,
                  begin, smaller(s.T, begin + key_block));
  });
}

}  // namespace

void attention_bwd(Stream& stream, const AttentionBwdArgs& args) {
  expect_dtypes("attention_bwd", args.qkv.dtype, args.dqkv, args.dy, args.y);
  expect_dtypes("attention_bwd", DType::f32, args.lse, args.slopes);
  by_dtype("attention_bwd", args.qkv, [&]<class T>(T*) { all_bwd<T>(stream, args); });
}

}  // namespace hearth::HEARTH_ISA
