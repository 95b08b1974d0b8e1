// Causal attention, forward: one tile of query rows at a time against blocks of keys, with online
// softmax. 2 * B * H * (D + V) * (visible pairs) FLOP. A row's bits depend only on its own query
// and the keys it sees, so prefill, chunked prefill and decode agree with training.
#include "core/cache_layout.h"
#include "cpu/isa/attention_row.h"
#include "cpu/isa/attention_tile.h"
#include "cpu/isa/kernels.h"

namespace hearth::HEARTH_ISA {
namespace {

constexpr float hidden = -__builtin_inff();

// One worker's memory.
struct Work {
  float *q, *qt;  // (row_tile, ld), (ld, row_tile)
  float* k;       // (key_block, ld)
  float* v;       // (key_block, lv)
  float* p;       // (key_block, row_tile): scores, then probabilities
  float* keep;    // same
  float* y;       // (row_tile, lv)

  static int64_t floats(const AttnShape& s) {
    return (2 * row_tile + key_block) * s.ld + (row_tile + key_block) * s.lv +
           2 * key_block * row_tile;
  }
  Work(float* at, const AttnShape& s) {
    q = at;
    qt = q + row_tile * s.ld;
    k = qt + row_tile * s.ld;
    v = k + key_block * s.ld;
    y = v + key_block * s.lv;
    p = y + row_tile * s.lv;
    keep = p + key_block * row_tile;
  }
};

// Running softmax of the rows of a tile.
struct Online {
  float max[row_tile], sum[row_tile];
  float fade[row_tile];  // factor that the latest block applies to earlier sums
};

// Turns the scores of one vector of rows over keys [begin, end) into probabilities.
HEARTH_INLINE void softmax_vector(float* p, Online& on, const TileRows& rows, int64_t v,
                                  int64_t begin, int64_t end, const Scoring& scoring) {
  const int64_t seen = smaller(end, int64_t(rows.vec_max[v]) + 1) - begin;
  float* column = p + v * lanes;
  const vf before = load(on.max + v * lanes);
  vf top = before;
  if (scoring.plain(rows, v, begin, end)) {
    for (int64_t j = 0; j < seen; ++j) {
      const vf x = load(column + j * row_tile);
      top = select(x > top, x, top);
    }
  } else {
    const RowVector row(rows, v);
    for (int64_t j = 0; j < seen; ++j) {
      vf t;
      vf x = row.score(scoring, begin + j, load(column + j * row_tile), t);
      x = select(row.sees(scoring, begin + j), x, broadcast(hidden));
      store(column + j * row_tile, x);
      top = select(x > top, x, top);
    }
  }
  const vf base = select(top == broadcast(hidden), zero(), top);
  const vf fade = exp_down(before - base);
  vf total = zero();
  for (int64_t j = 0; j < seen; ++j) {
    const vf x = exp_down(load(column + j * row_tile) - base);
    total += x;
    store(column + j * row_tile, x);
  }
  for (int64_t j = larger(seen, 0); j < end - begin; ++j) store(column + j * row_tile, zero());
  store(on.max + v * lanes, top);
  store(on.fade + v * lanes, fade);
  store(on.sum + v * lanes, fma(load(on.sum + v * lanes), fade, total));
}

// y += probabilities of keys [begin, end) times their values.
void take_block(const Work& w, Online& on, const TileRows& rows, const AttnShape& s, int64_t begin,
                int64_t end, const Scoring& scoring, const Scalars* scalars, const AttnSpec& spec) {
  product(
      w.p, row_tile, {w.k, s.ld, 1}, w.qt, row_tile, end - begin, nullptr, false,
      [&](int64_t j, int64_t) {
        return Span{first_row(rows, begin + j), rows.padded};
      },
      [&](int64_t, int64_t) {
        return Span{0, s.D};
      });
  for (int64_t v = 0; v < rows.padded / lanes; ++v)
    softmax_vector(w.p, on, rows, v, begin, end, scoring);
  if (spec.dropout > 0) {
    fill_keep(w.keep, rows, s, begin, end, *scalars, spec);
    for (int64_t j = 0; j < end - begin; ++j)
      for (int64_t i = j * row_tile; i < j * row_tile + rows.padded; i += lanes)
        store(w.p + i, load(w.p + i) * load(w.keep + i));
  }
  product(
      w.y, s.lv, {w.p, 1, row_tile}, w.v, s.lv, rows.n, on.fade, true,
      [&](int64_t, int64_t) {
        return Span{0, s.lv};
      },
      [&](int64_t i, int64_t e) {
        return Span{0, smaller(end, last_key(rows, i, e)) - begin};
      });
}

// The tokens in `rows` count from the first token of q and y.
template <class T, class K>
void attend(const Work& w, T* y, float* lse, const HeadView& q, const Keys<K>& keys,
            const TileRows& rows, const AttnShape& s, const ByDistance& further,
            const Scalars* scalars, const AttnSpec& spec) {
  load_rows(w.q, s.ld, rows, s.D, spec.scale,
            [&](int64_t i) { return q.at<const T>(rows.token[i], rows.head[i]); });
  transpose(w.qt, row_tile, w.q, s.ld, rows.padded, s.ld);
  for (int64_t i = 0; i < rows.padded * s.lv; i += lanes) store(w.y + i, zero());
  Online on;
  for (int64_t i = 0; i < row_tile; ++i) {
    on.max[i] = hidden;
    on.sum[i] = 0;
  }
  const Scoring scoring(spec, keys, further);
  over_blocks(w.k, w.v, keys, rows, s, spec, [&](int64_t begin, int64_t end) {
    take_block(w, on, rows, s, begin, end, scoring, scalars, spec);
  });
  for (int64_t i = 0; i < rows.n; ++i) {
    const float total = on.sum[i];
    store_row(y + s.y(rows.token[i], rows.head[i]), w.y + i * s.lv, s.V,
              rows.position[i] < 0 ? 0 : 1 / total);
    if (lse) lse[rows.lse[i]] = on.max[i] + log(broadcast(total))[0];
  }
}

// body(rows, work, b, g) for every tile of every group of heads.
template <class Body>
void over_tiles(Stream& stream, const AttnShape& s, const int32_t* documents,
                const ByDistance& further, Body&& body) {
  const int64_t floats = Work::floats(s), tiles = s.tiles();
  float* memory = reinterpret_cast<float*>(
      cpu_stream(stream).scratch.get(floats * 4 * thread_count(cpu_stream(stream).threads)));
  parallel(cpu_stream(stream).threads, s.B * s.G * tiles, [&](int64_t piece, int worker) {
    const int64_t tile = piece % tiles, g = piece / tiles % s.G, b = piece / (tiles * s.G);
    TileRows rows;
    fill_rows(rows, s, b, g, tile * row_tile, nullptr, documents ? documents + b * s.T : nullptr,
              further);
    body(rows, Work(memory + worker * floats, s), b, g);
  });
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  const AttnSpec& spec = args.spec;
  expect_dtypes("attention", args.y.dtype, args.q.tensor, args.k.tensor, args.v.tensor);
  expect_dtypes("attention", DType::f32, args.lse, args.slopes, args.bias);
  const AttnShape s(args.y, args.q.layout, args.k.layout, args.v.layout);
  const ByDistance further(args);
  const int32_t* docs = args.documents.as<const int32_t>();
  by_dtype("attention", args.y, [&]<class T>(T*) {
    over_tiles(stream, s, docs, further,
               [&](const TileRows& rows, const Work& w, int64_t b, int64_t g) {
                 const Keys<T> keys = keys_of_head<T>(args.k, args.v, docs, s, b, g);
                 attend(w, args.y.as<T>(), args.lse.as<float>(), args.q, keys, rows, s, further,
                        args.scalars.as<const Scalars>(), spec);
               });
  });
}

namespace {

// A tile of the rows [row, row + count) of one sequence.
struct CachedTile {
  int64_t row, count, first;
};

// Divides each run of rows of one sequence into tiles; returns the number of tiles.
int64_t cut_tiles(CachedTile* tiles, const int32_t* sequences, const int32_t* positions, int64_t N,
                  int64_t R) {
  int64_t n = 0;
  for (int64_t row = 0, end = 0; row < N; row = end) {
    const bool pads = positions[row] < 0;
    for (end = row + 1; end < N && sequences[end] == sequences[row]; ++end)
      if ((positions[end] < 0) != pads) break;
    for (int64_t first = 0; first < (end - row) * R; first += row_tile)
      tiles[n++] = {row, end - row, first};
  }
  return n;
}

// Stores one head's key or value of one token at its place in a panel of the cache.
template <class T>
void store_key(T* panel, const T* from, int64_t at, int64_t D) {
  std::memcpy(static_cast<void*>(panel + at * D), from, size_t(D) * sizeof(T));
}

template <class T>
void store_key(e4m3* panel, const T* from, int64_t at, int64_t D) {
  vi top{};
  vectors(D, [&](int64_t i, auto w) {
    const vi b = (vi)bits(abs(w.get(from + i)));
    top = b > top ? b : top;
  });
  int32_t largest = 0;
  for (int i = 0; i < lanes; ++i) largest = top[i] > largest ? top[i] : largest;
  const uint8_t exponent = cache_exponent(uint32_t(largest));
  const float inverse = power_of_two(uint8_t(254 - exponent));
  if (exponent == 255)
    std::memset(static_cast<void*>(panel + at * D), 0, size_t(D));
  else
    vectors(D, [&](int64_t i, auto w) { w.put(panel + at * D + i, w.get(from + i) * inverse); });
  panel[key_block * D + at].bits = exponent;
}

// K is the element type of the cache; a panel holds one head's keys or values of one block.
template <class T, class K>
void store_keys(Stream& stream, const AttentionCachedArgs& args, const CacheLayout& cache,
                const AttnShape& s) {
  const Tensor tables = args.tables;
  over_rows(stream, s.T, s.G * (s.D + s.V), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t at = args.positions.as<const int32_t>()[n];
      if (at < 0) continue;
      const int32_t sequence = args.sequences.as<const int32_t>()[n];
      const int64_t block = tables.as<const int32_t>()[sequence * tables.shape[1] + at / key_block];
      K* const keys = args.cache.as<K>() + block * cache.block();
      K* const values = keys + s.G * cache.k_panel();
      for (int64_t g = 0; g < s.G; ++g) {
        store_key(keys + g * cache.k_panel(), args.k.at<const T>(n, g), at % key_block, s.D);
        store_key(values + g * cache.v_panel(), args.v.at<const T>(n, g), at % key_block, s.V);
      }
    }
  });
}

// Calls f(static_cast<K*>(nullptr)) with the element type of a cache for activations of type T.
template <class T, class F>
void by_cache(const Tensor& cache, F&& f) {
  if (cache.dtype == DType::u8) return f(static_cast<e4m3*>(nullptr));
  expect_dtypes("attention_cached", dtype_of<T>(), cache);
  f(static_cast<T*>(nullptr));
}

}  // namespace

void attention_cached(Stream& stream, const AttentionCachedArgs& args) {
  AttnSpec spec = args.spec;
  spec.dropout = 0;  // dropout is for training only
  expect_dtypes("attention_cached", args.y.dtype, args.q.tensor, args.k.tensor, args.v.tensor);
  expect_dtypes("attention_cached", DType::f32, args.slopes, args.bias);
  const AttnShape all(args.y, args.q.layout, args.k.layout, args.v.layout);
  const CacheLayout cache = cache_layout(args.k.layout, args.v.layout, args.cache.dtype);
  const ByDistance further(args);
  const int32_t *at = args.positions.as<const int32_t>(), *of = args.sequences.as<const int32_t>();
  const int64_t floats = Work::floats(all), most = all.T * round_up(all.R, row_tile) / row_tile;
  const int64_t work_bytes = floats * 4 * thread_count(cpu_stream(stream).threads);
  std::byte* memory =
      cpu_stream(stream).scratch.get(work_bytes + most * int64_t(sizeof(CachedTile)));
  auto* tiles = reinterpret_cast<CachedTile*>(memory + work_bytes);
  const int64_t count = cut_tiles(tiles, of, at, all.T, all.R);
  const auto run = [&]<class T, class K>(T*, K*) {
    store_keys<T, K>(stream, args, cache, all);
    parallel(cpu_stream(stream).threads, count * all.G, [&](int64_t piece, int worker) {
      const CachedTile tile = tiles[piece / all.G];
      const int64_t g = piece % all.G;
      AttnShape s = all;
      s.T = tile.count;
      TileRows rows;
      fill_rows(rows, s, 0, g, tile.first, at + tile.row, nullptr, further);
      const K* k = args.cache.as<const K>();
      const Keys<K> keys{k + g * cache.k_panel(),
                         k + s.G * cache.k_panel() + g * cache.v_panel(),
                         s.D,
                         s.V,
                         nullptr,
                         args.tables.as<const int32_t>() + of[tile.row] * args.tables.shape[1],
                         cache.block()};
      HeadView q = args.q;
      q.layout.offset = q.layout.at(tile.row, 0);
      T* const y = args.y.as<T>() + s.y(tile.row, 0);
      const Work work(reinterpret_cast<float*>(memory) + worker * floats, s);
      if (suits_single_rows(rows, spec, bool(further), nullptr)) {
        return attend_few(
            {work.q, work.y, work.k, work.v}, keys, rows.position, rows.n, s, spec,
            [&](int64_t i) { return q.at<const T>(rows.token[i], rows.head[i]); },
            [&](int64_t i) { return y + s.y(rows.token[i], rows.head[i]); });
      }
      attend(work, y, static_cast<float*>(nullptr), q, keys, rows, s, further,
             static_cast<const Scalars*>(nullptr), spec);
    });
  };
  by_dtype("attention_cached", args.y,
           [&]<class T>(T* t) { by_cache<T>(args.cache, [&]<class K>(K* k) { run(t, k); }); });
}

}  // namespace hearth::HEARTH_ISA
