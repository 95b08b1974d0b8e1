// Causal attention, backward: recomputes the probabilities from the scores and lse, tile by tile
// and block by block. 2 * B * H * (3 D + 2 V) * (visible pairs) FLOP. dK and dV of a KV head are
// summed in fp32 over tiles in order; if there are few KV heads, the tiles are divided into a fixed
// number of parts with separate sums, which are then added in order.
#include "cpu/isa/attention_tile.h"
#include "cpu/isa/kernels.h"

namespace hearth::HEARTH_ISA {
namespace {

// One worker's memory.
struct Work {
  float *q, *qt, *dq;    // (row_tile, ld) or its transpose
  float *dy, *dyt;       // (row_tile, lv) or its transpose
  float *k, *v;          // (key_block, ld), (key_block, lv)
  float *p, *ds, *keep;  // (key_block, row_tile)

  static int64_t floats(const AttnShape& s) {
    return (3 * row_tile + key_block) * s.ld + (2 * row_tile + key_block) * s.lv +
           3 * key_block * row_tile;
  }
  Work(float* at, const AttnShape& s) {
    q = at;
    qt = q + row_tile * s.ld;
    dq = qt + row_tile * s.ld;
    k = dq + row_tile * s.ld;
    dy = k + key_block * s.ld;
    dyt = dy + row_tile * s.lv;
    v = dyt + row_tile * s.lv;
    p = v + key_block * s.lv;
    ds = p + key_block * row_tile;
    keep = ds + key_block * row_tile;
  }
};

// Sums of dK (T, ld) and dV (T, lv), and of the bias of the heads from `first_head` on (R, S).
struct Sums {
  float *dk, *dv;
  float* dbias;  // or null
  int64_t first_head;
};

// Sums of the gradients of the scores of one vector of rows, by distance. Lanes are added in order.
struct BiasSums {
  const RowVector& row;
  const Scoring& scoring;
  float* sums[lanes] = {};  // of the head of each row
  vf far = zero();          // sums of the distances that share the last entry

  BiasSums(const Sums& out, const RowVector& row, const Scoring& scoring, const TileRows& rows,
           int64_t v)
      : row(row), scoring(scoring) {
    for (int i = 0; out.dbias && i < lanes; ++i)
      sums[i] = out.dbias + (rows.head[v * lanes + i] - out.first_head) * (scoring.last + 1);
  }
  HEARTH_INLINE void add(int64_t j, vf ds) {
    if (row.far(scoring, j))
      far += ds;
    else
      for (int i = 0; i < lanes; ++i) sums[i][row.distance(scoring, j, i)] += ds[i];
  }
  void finish() const {
    for (int i = 0; i < lanes; ++i) sums[i][scoring.last] += far[i];
  }
};

struct RowSums {
  float lse[row_tile], delta[row_tile];  // delta: dy . y
};

// Turns scores (in p) and dy . v (in ds) of one vector of rows into the probabilities after dropout
// and the gradient of q . k * scale. tanh' is 1 - t^2.
HEARTH_INLINE void slope_vector(const Work& w, const Sums& out, const TileRows& rows,
                                const RowSums& sums, int64_t v, int64_t begin, int64_t end,
                                const Scoring& scoring, bool dropped) {
  const int64_t seen = smaller(end, int64_t(rows.vec_max[v]) + 1) - begin;
  const vf lse = load(sums.lse + v * lanes), delta = load(sums.delta + v * lanes);
  const bool plain = scoring.plain(rows, v, begin, end);
  const RowVector row(rows, v);
  BiasSums bias(out, row, scoring, rows, v);
  for (int64_t j = 0; j < seen; ++j) {
    const int64_t at = j * row_tile + v * lanes;
    const vf dp = load(w.ds + at);
    vf x = load(w.p + at), t = zero();
    if (!plain) x = row.score(scoring, begin + j, x, t);
    vf p = exp_down(x - lse);
    const vi sees = row.sees(scoring, begin + j);
    if (!plain) p = select(sees, p, zero());
    vf after = p, less = dp - delta;
    if (dropped) {
      const vf keep = load(w.keep + at);
      after *= keep;
      less = dp * keep - delta;  // one expression, so that compilers always fuse it, or never
    }
    vf ds = p * less;
    if (out.dbias) bias.add(begin + j, select(sees, ds, zero()));
    if (!plain) {
      ds *= 1.0f - t * t;
      ds = select(sees, ds, zero());  // a hidden key contributes nothing, not even 0 * inf
    }
    store(w.p + at, after);
    store(w.ds + at, ds);
  }
  if (out.dbias) bias.finish();
  for (int64_t j = larger(seen, 0); j < end - begin; ++j) {
    store(w.p + j * row_tile + v * lanes, zero());
    store(w.ds + j * row_tile + v * lanes, zero());
  }
}

// Adds the contributions of keys [begin, end) and the rows of a tile to each other's gradients.
void take_block(const Work& w, const Sums& out, const TileRows& rows, const RowSums& sums,
                const AttnShape& s, int64_t begin, int64_t end, const Scoring& scoring,
                const Scalars* scalars, const AttnSpec& spec) {
  const int64_t keys = end - begin;
  const auto seeing = [&](int64_t j, int64_t) {
    return Span{first_row(rows, begin + j), rows.padded};
  };
  const auto first = [](int64_t n) { return [n](int64_t, int64_t) { return Span{0, n}; }; };
  product(w.p, row_tile, {w.k, s.ld, 1}, w.qt, row_tile, keys, nullptr, false, seeing, first(s.D));
  product(w.ds, row_tile, {w.v, s.lv, 1}, w.dyt, row_tile, keys, nullptr, false, seeing,
          first(s.V));
  if (spec.dropout > 0) fill_keep(w.keep, rows, s, begin, end, *scalars, spec);
  for (int64_t v = 0; v < rows.padded / lanes; ++v)
    slope_vector(w, out, rows, sums, v, begin, end, scoring, spec.dropout > 0);
  const auto from_seeing = [&](int64_t j, int64_t) {
    return Span{first_row(rows, begin + j), rows.n};
  };
  product(out.dv + begin * s.lv, s.lv, {w.p, row_tile, 1}, w.dy, s.lv, keys, nullptr, true,
          first(s.lv), from_seeing);
  product(out.dk + begin * s.ld, s.ld, {w.ds, row_tile, 1}, w.q, s.ld, keys, nullptr, true,
          first(s.ld), from_seeing);
  product(w.dq, s.ld, {w.ds, 1, row_tile}, w.k, s.ld, rows.n, nullptr, true, first(s.ld),
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
  const auto y_of = [&](const Tensor& y, int64_t i) {
    return y.as<const T>() + s.y(rows.token[i], rows.head[i]);
  };
  load_rows(w.q, s.ld, rows, s.D, args.spec.scale,
            [&](int64_t i) { return args.q.at<const T>(rows.token[i], rows.head[i]); });
  load_rows(w.dy, s.lv, rows, s.V, 1, [&](int64_t i) { return y_of(args.dy, i); });
  for (int64_t i = 0; i < rows.padded * s.ld; i += lanes) store(w.dq + i, zero());
  for (int64_t i = 0; i < rows.padded; ++i) {
    const bool real = i < rows.n;
    sums.lse[i] = real ? args.lse.as<const float>()[rows.lse[i]] : 0;
    sums.delta[i] = real ? dot(y_of(args.dy, i), y_of(args.y, i), s.V) : 0;
  }
  transpose(w.qt, row_tile, w.q, s.ld, rows.padded, s.ld);
  transpose(w.dyt, row_tile, w.dy, s.lv, rows.padded, s.lv);
}

template <class T>
void tile_bwd(const Work& w, const Sums& out, const AttentionBwdArgs& args, const Keys<T>& keys,
              const TileRows& rows, const AttnShape& s) {
  RowSums sums;
  load_tile<T>(w, sums, args, rows, s);
  const Scoring scoring(args.spec, keys, ByDistance(args));
  over_blocks(w.k, w.v, keys, rows, s, args.spec, [&](int64_t begin, int64_t end) {
    take_block(w, out, rows, sums, s, begin, end, scoring, args.scalars.as<const Scalars>(),
               args.spec);
  });
  for (int64_t i = 0; i < rows.n; ++i)
    store_row(args.dq.at<T>(rows.token[i], rows.head[i]), w.dq + i * s.ld, s.D, args.spec.scale);
}

// The gradient of a key or a value: the sums of all parts in order, `step` elements apart.
template <class T>
void store_key(T* out, const float* sums, int64_t parts, int64_t step, int64_t width) {
  vectors(width, [&](int64_t i, auto w) {
    vf total = load(sums + i);
    for (int64_t p = 1; p < parts; ++p) total += load(sums + p * step + i);
    w.put(out + i, total);
  });
}

// Stores dk and dv of keys [begin, end) of head (b, g).
template <class T>
void store_keys(const AttentionBwdArgs& args, const float* sums, int64_t parts, const AttnShape& s,
                int64_t b, int64_t g, int64_t begin, int64_t end) {
  const int64_t step = s.T * (s.ld + s.lv);
  for (int64_t j = begin; j < end; ++j) {
    store_key(args.dk.at<T>(b * s.T + j, g), sums + j * s.ld, parts, step, s.D);
    store_key(args.dv.at<T>(b * s.T + j, g), sums + s.T * s.ld + j * s.lv, parts, step, s.V);
  }
}

// Parts that the tiles of a KV head are divided into, by shape: one if there are enough heads.
int64_t part_count(const AttnShape& s) { return larger(1, smaller(s.tiles(), 16 / (s.B * s.G))); }

// dbias (H, S) = prior + the sums (B, G, parts, R, S) of all pieces, in order.
void store_bias(Stream& stream, const AttentionBwdArgs& args, const float* sums, int64_t parts,
                const AttnShape& s) {
  const int64_t S = args.dbias.cols();
  parallel(cpu_stream(stream).threads, s.H, [&](int64_t h, int) {
    const int64_t g = h / s.R, r = h % s.R;
    for (int64_t d = 0; d < S; ++d) {
      float total = args.dbias_prior ? args.dbias_prior.as<const float>()[h * S + d] : 0;
      for (int64_t b = 0; b < s.B; ++b)
        for (int64_t p = 0; p < parts; ++p)
          total += sums[(((b * s.G + g) * parts + p) * s.R + r) * S + d];
      args.dbias.as<float>()[h * S + d] = total;
    }
  });
}

template <class T>
void all_bwd(Stream& stream, const AttentionBwdArgs& args) {
  const AttnShape s(args.y, args.q.layout, args.k.layout, args.v.layout);
  const int32_t* docs = args.documents.as<const int32_t>();
  const int64_t parts = part_count(s), tiles = s.tiles(), heads = s.B * s.G;
  const int64_t work = Work::floats(s), sums = s.T * (s.ld + s.lv);
  const ByDistance further(args);
  const int64_t bias_sums = args.dbias ? s.R * further.S : 0;
  const int64_t workers = thread_count(cpu_stream(stream).threads);
  // With one part, a worker's sums are stored as soon as its piece is done.
  const int64_t areas = parts == 1 ? workers : heads * parts;
  const int64_t floats = workers * work + areas * sums + heads * parts * bias_sums;
  float* memory = reinterpret_cast<float*>(cpu_stream(stream).scratch.get(floats * 4));
  float* all_sums = memory + workers * work;
  float* all_bias = all_sums + areas * sums;
  parallel(cpu_stream(stream).threads, heads * parts, [&](int64_t piece, int worker) {
    const int64_t part = piece % parts, g = piece / parts % s.G, b = piece / (parts * s.G);
    float* area = all_sums + (parts == 1 ? int64_t(worker) : piece) * sums;
    for (int64_t i = 0; i < sums; i += lanes) store(area + i, zero());
    float* bias = bias_sums ? all_bias + piece * bias_sums : nullptr;
    for (int64_t i = 0; i < bias_sums; ++i) bias[i] = 0;
    const Keys<T> keys = keys_of_head<T>(args.k, args.v, docs, s, b, g);
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
      TileRows rows;
      fill_rows(rows, s, b, g, tile * row_tile, nullptr, keys.documents, further);
      tile_bwd(Work(memory + worker * work, s), {area, area + s.T * s.ld, bias, g * s.R}, args,
               keys, rows, s);
    }
    if (parts == 1) store_keys<T>(args, area, 1, s, b, g, 0, s.T);
  });
  if (args.dbias) store_bias(stream, args, all_bias, parts, s);
  if (parts == 1) return;
  const int64_t blocks = (s.T + key_block - 1) / key_block;
  parallel(cpu_stream(stream).threads, heads * blocks, [&](int64_t piece, int) {
    const int64_t head = piece / blocks, begin = piece % blocks * key_block;
    store_keys<T>(args, all_sums + head * parts * sums, parts, s, head / s.G, head % s.G, begin,
                  smaller(s.T, begin + key_block));
  });
}

}  // namespace

void attention_bwd(Stream& stream, const AttentionBwdArgs& args) {
  if (args.fp8) return attention_bwd_fp8(fp8_run(stream, fp8_parts), args);
  expect_dtypes("attention_bwd", args.y.dtype, args.dy, args.q.tensor, args.k.tensor, args.v.tensor,
                args.dq.tensor, args.dk.tensor, args.dv.tensor);
  expect_dtypes("attention_bwd", DType::f32, args.lse, args.slopes, args.bias, args.dbias,
                args.dbias_prior);
  by_dtype("attention_bwd", args.y, [&]<class T>(T*) { all_bwd<T>(stream, args); });
}

}  // namespace hearth::HEARTH_ISA
