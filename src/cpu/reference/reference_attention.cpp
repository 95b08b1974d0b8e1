// Reference kernels over heads: norm and rotation of q and k, partial key offset, attention row by
// row with every score of the row in memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cache_layout.h"
#include "cpu/gemm.h"
#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {
namespace {

double dot(const double* a, const double* b, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

void add_scaled(double* y, double scale, const double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

// Rotates the pairs of one head by the angles of `row` (rotary / 2, 2): cos, sin. The gradient goes
// through the transpose, which is the rotation by the negative angles.
void rotate(double* head, const double* row, const QkSpec& spec, bool reverse) {
  for (int64_t i = 0; i < spec.rotary / 2; ++i) {
    double& x1 = head[spec.interleaved ? 2 * i : i];
    double& x2 = head[spec.interleaved ? 2 * i + 1 : i + spec.rotary / 2];
    const double c = row[2 * i], s = reverse ? -row[2 * i + 1] : row[2 * i + 1];
    const double y1 = x1 * c - x2 * s, y2 = x2 * c + x1 * s;
    x1 = y1;
    x2 = y2;
  }
}

const double* rope_row(const Doubles& rope, const std::vector<int32_t>& positions, int64_t bt,
                       const QkSpec& spec) {
  // Padding has a negative position; its result is never used, so row 0 will do.
  return spec.rotary ? &rope[std::max(positions[bt], 0) * spec.rotary] : nullptr;
}

}  // namespace

void qk_norm_rope(Stream&, const QkNormRopeArgs& args) {
  const QkSpec& spec = args.spec;
  const int64_t H = spec.heads, G = spec.kv_heads, D = spec.head_dim;
  const int64_t rows = args.qkv.numel() / spec.token();
  Doubles x = load(args.qkv), statv(size_t(rows * (H + G)));
  const Doubles ropev = load(args.rope), gq = load(args.q_gain), gk = load(args.k_gain);
  const auto at = load_ints(args.positions);
  for (int64_t bt = 0; bt < rows; ++bt)
    for (int64_t h = 0; h < H + G; ++h) {
      double* head = &x[bt * spec.token() + h * D];
      const double* angles = rope_row(ropev, at, bt, spec);
      if (spec.norm != QkNorm::before_rope) rotate(head, angles, spec, spec.reverse);
      if (spec.norm != QkNorm::none) {
        const double inverse = 1 / std::sqrt(dot(head, head, D) / double(D) + spec.eps);
        for (int64_t i = 0; i < D; ++i) head[i] *= inverse * value_or(h < H ? gq : gk, i, 1);
        statv[bt * (H + G) + h] = inverse;
      }
      if (spec.norm == QkNorm::before_rope) rotate(head, angles, spec, spec.reverse);
    }
  store(args.y, x);
  if (spec.norm != QkNorm::none) store(args.stat, statv);
}

void qk_norm_rope_bwd(Stream& s, const QkNormRopeBwdArgs& args) {
  if (Scratch scratch; args.fp8)
    return qk_norm_rope_bwd_fp8({s, nullptr, scratch, fp8_parts}, args);
  const QkSpec& spec = args.spec;
  const int64_t H = spec.heads, G = spec.kv_heads, D = spec.head_dim;
  const int64_t rows = args.dy.numel() / spec.token();
  const bool normed = spec.norm != QkNorm::none;
  Doubles dx = load(args.dy), x = normed ? load(args.qkv) : Doubles();
  const Doubles statv = normed ? load(args.stat) : Doubles();
  const Doubles ropev = load(args.rope), gq = load(args.q_gain), gk = load(args.k_gain);
  const auto at = load_ints(args.positions);
  Doubles dgq = start_from(args.dq_gain, spec.add), dgk = start_from(args.dk_gain, spec.add);
  for (int64_t bt = 0; bt < rows; ++bt)
    for (int64_t h = 0; h < H + G; ++h) {
      const int64_t offset = bt * spec.token() + h * D;
      double* d = &dx[offset];
      const double* angles = rope_row(ropev, at, bt, spec);
      if (spec.norm != QkNorm::after_rope) rotate(d, angles, spec, !spec.reverse);
      if (normed) {
        double* n = &x[offset];  // becomes the normalised head
        if (spec.norm == QkNorm::after_rope) rotate(n, angles, spec, spec.reverse);
        const double inverse = statv[bt * (H + G) + h];
        Doubles& dgain = h < H ? dgq : dgk;
        for (int64_t i = 0; i < D; ++i) {
          n[i] *= inverse;
          if (!dgain.empty()) dgain[i] += d[i] * n[i];
          d[i] *= value_or(h < H ? gq : gk, i, 1);
        }
        const double mean = dot(n, d, D) / double(D);
        for (int64_t i = 0; i < D; ++i) d[i] = inverse * (d[i] - n[i] * mean);
      }
      if (spec.norm == QkNorm::after_rope) rotate(d, angles, spec, !spec.reverse);
    }
  store(args.dqkv, dx);
  store(args.dq_gain, dgq);
  store(args.dk_gain, dgk);
}

void offset_keys(Stream&, const OffsetKeysArgs& args) {
  const auto at = load_ints(args.positions), of = load_ints(args.sequences),
             tables = load_ints(args.tables);
  const int64_t size = args.size(), width = args.k.width - args.first;
  const auto place = [&](int64_t n, int64_t i) {  // in y, of element i of those that are stored
    return args.k.at(n, i / width) + args.first + i % width;
  };
  // What is stored of the token at position p of row n's sequence, which is row m.
  const auto stored = [&](int64_t n, int64_t p, int64_t m) {
    if (args.tables)
      m = tables[of[n] * args.tables.cols() + p / cache_block] * cache_block + p % cache_block;
    const DType dtype = args.kept.dtype;
    return Tensor{args.kept.data + m * size * size_of(dtype), {1, size}, dtype};
  };
  Doubles y = load(args.y), own(static_cast<size_t>(size));
  for (int64_t n = 0; n < int64_t(at.size()); ++n) {
    for (int64_t i = 0; i < size; ++i) own[i] = y[place(n, i)];
    if (!args.tables || at[n] >= 0) store(stored(n, at[n], n), own);
    for (int64_t i = 0; args.back && i < size; ++i) y[place(n, i)] = 0;
  }
  for (int64_t n = 0; n < int64_t(at.size()); ++n) {
    const bool takes = at[n] > 0 && (args.tables || n % args.positions.cols() > 0);
    if (args.back) {
      const Doubles d = load(stored(n, at[n], n));
      for (int64_t i = 0; i < size; ++i) y[place(takes ? n - 1 : n, i)] += d[i];
    } else if (takes) {
      const Doubles before = load(stored(n, at[n] - 1, n - 1));
      for (int64_t i = 0; i < size; ++i) y[place(n, i)] = before[i];
    }
  }
  store(args.y, y);
}

namespace {

// One query's softmax over keys 0 .. i. Hidden keys have probability 0.
struct Row {
  Doubles p;
  Doubles slope;  // d score / d (q . k)
  double lse;
};

// What is added to the scores of every head by distance: ALiBi, or a learned bias.
struct ByDistance {
  Doubles slopes, bias;
  int64_t S = 0;  // distances of the bias; larger ones share the last

  template <class Args>
  explicit ByDistance(const Args& a)
      : slopes(load(a.slopes)), bias(load(a.bias)), S(a.bias ? a.bias.cols() : 0) {}
  // Where the bias of a pair is, and its gradient.
  size_t at(int64_t h, int64_t distance) const { return size_t(h * S + std::min(distance, S - 1)); }
  double operator()(int64_t h, int64_t distance) const {
    return (S ? bias[at(h, distance)] : 0) - value_or(slopes, h, 0) * double(distance);
  }
};

// The row of query head h at position i. Key j is at k + j * keys.token. `documents` belong to the
// sequence, or are null.
Row softmax_row(const double* q, const double* k, const HeadLayout& keys, int64_t h, int64_t i,
                const ByDistance& further, const int32_t* documents, const AttnSpec& spec) {
  const double hidden = -std::numeric_limits<double>::infinity();
  Row row{Doubles(size_t(i + 1), hidden), Doubles(size_t(i + 1), 0.0), 0};
  for (int64_t j = 0; j <= i; ++j) {
    if (spec.window && i - j >= spec.window) continue;
    if (documents && documents[i] != documents[j]) continue;
    double s = spec.scale * dot(q, k + j * keys.token, keys.width);
    row.slope[j] = spec.scale;
    if (spec.softcap > 0) {
      const double t = std::tanh(s / spec.softcap);
      s = spec.softcap * t;
      row.slope[j] *= 1 - t * t;
    }
    row.p[j] = s + further(h, i - j);
  }
  const double top = *std::max_element(row.p.begin(), row.p.end());
  double sum = 0;
  for (double s : row.p) sum += std::exp(s - top);
  row.lse = top + std::log(sum);
  for (double& s : row.p) s = std::exp(s - row.lse);
  return row;
}

// A view of heads in double precision. `share` query heads use one head of k and v.
struct Heads {
  Doubles x;
  HeadLayout layout;
  int64_t share = 1;

  explicit Heads(const HeadView& v, int64_t share = 1)
      : x(load(v.tensor)), layout(v.layout), share(share) {}
  // The head that query head h of token n uses; n counts over all sequences.
  const double* at(int64_t n, int64_t h) const { return &x[size_t(layout.at(n, h / share))]; }
};

struct Qkv {
  Heads q, k, v;
  template <class Args>
  explicit Qkv(const Args& a)
      : q(a.q),
        k(a.k, a.q.layout.heads / a.k.layout.heads),
        v(a.v, a.q.layout.heads / a.v.layout.heads) {}
};

// Gradients of views, several of which may share a tensor.
class HeadSums {
 public:
  explicit HeadSums(std::initializer_list<HeadView> views) {
    for (const HeadView& v : views)
      if (find(v.tensor) == sums_.end())
        sums_.emplace_back(v.tensor, Doubles(size_t(v.tensor.numel())));
  }
  double* at(const HeadView& v, int64_t n, int64_t h) {
    return &find(v.tensor)->second[size_t(v.layout.at(n, h))];
  }
  void store_all() const {
    for (const auto& [tensor, sums] : sums_) store(tensor, sums);
  }

 private:
  std::vector<std::pair<Tensor, Doubles>>::iterator find(const Tensor& t) {
    return std::ranges::find(sums_, t.data, [](const auto& s) { return s.first.data; });
  }
  std::vector<std::pair<Tensor, Doubles>> sums_;
};

}  // namespace

void attention(Stream&, const AttentionArgs& args) {
  const AttnSpec& spec = args.spec;
  const Qkv in(args);
  const int64_t B = args.y.shape[0], T = args.y.shape[1], H = args.q.layout.heads;
  const int64_t V = args.v.layout.width;
  const ByDistance further(args);
  const auto doc = load_ints(args.documents);
  const Scalars s = load_scalars(args.scalars);
  Doubles yv(size_t(B * T * H * V)), lsev(size_t(B * H * T));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i) {
        const Row row = softmax_row(in.q.at(b * T + i, h), in.k.at(b * T, h), in.k.layout, h, i,
                                    further, args.documents ? &doc[b * T] : nullptr, spec);
        const int64_t line = (b * H + h) * T + i;
        for (int64_t j = 0; j <= i; ++j) {
          const double keep = keep_factor(s, spec.dropout, spec.salt, line * T + j);
          add_scaled(&yv[((b * T + i) * H + h) * V], row.p[j] * keep, in.v.at(b * T + j, h), V);
        }
        lsev[line] = row.lse;
      }
  store(args.y, yv);
  store(args.lse, lsev);
}

void attention_bwd(Stream& stream, const AttentionBwdArgs& args) {
  if (Scratch scratch; args.fp8)
    return attention_bwd_fp8({stream, nullptr, scratch, fp8_parts}, args);
  const AttnSpec& spec = args.spec;
  const Qkv in(args);
  const int64_t B = args.y.shape[0], T = args.y.shape[1], H = args.q.layout.heads;
  const int64_t D = args.q.layout.width, V = args.v.layout.width, share = in.k.share;
  const Doubles dyv = load(args.dy);
  const ByDistance further(args);
  Doubles dbias = args.dbias_prior ? load(args.dbias_prior) : start_from(args.dbias, false);
  const auto doc = load_ints(args.documents);
  const Scalars s = load_scalars(args.scalars);
  HeadSums sums{args.dq, args.dk, args.dv};
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i) {
        const double* q = in.q.at(b * T + i, h);
        const Row row = softmax_row(q, in.k.at(b * T, h), in.k.layout, h, i, further,
                                    args.documents ? &doc[b * T] : nullptr, spec);
        const double* g = &dyv[((b * T + i) * H + h) * V];
        Doubles dp(size_t(i + 1), 0.0);
        double mean_dp = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t element = ((b * H + h) * T + i) * T + j;
          const double keep = keep_factor(s, spec.dropout, spec.salt, element);
          dp[j] = keep * dot(g, in.v.at(b * T + j, h), V);
          mean_dp += row.p[j] * dp[j];
          add_scaled(sums.at(args.dv, b * T + j, h / share), row.p[j] * keep, g, V);
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double dscore = row.p[j] * (dp[j] - mean_dp), ds = dscore * row.slope[j];
          if (args.dbias) dbias[further.at(h, i - j)] += dscore;
          add_scaled(sums.at(args.dq, b * T + i, h), ds, in.k.at(b * T + j, h), D);
          add_scaled(sums.at(args.dk, b * T + j, h / share), ds, q, D);
        }
      }
  sums.store_all();
  store(args.dbias, dbias);
}

void distance_bias(Stream&, const DistanceBiasArgs& args) {
  const int64_t H = args.y.shape[0], S = args.y.shape[1];
  const Doubles w = load(args.w);
  const auto buckets = load_ints(args.buckets);
  Doubles y(size_t(H * S));
  for (int64_t i = 0; i < H * S; ++i) y[size_t(i)] = w[size_t(buckets[size_t(i % S)] * H + i / S)];
  store(args.y, y);
}

void distance_bias_bwd(Stream&, const DistanceBiasBwdArgs& args) {
  const int64_t H = args.dy.shape[0], S = args.dy.shape[1];
  const Doubles dy = load(args.dy);
  const auto buckets = load_ints(args.buckets);
  Doubles dw = start_from(args.dw, args.add);
  for (int64_t i = 0; i < H * S; ++i)
    dw[size_t(buckets[size_t(i % S)] * H + i / S)] += dy[size_t(i)];
  store(args.dw, dw);
}

namespace {

// The keys and values of tokens in the blocks of a paged cache.
struct PagedCache {
  Tensor cache;
  CacheLayout layout;
  std::vector<int32_t> tables;
  int64_t W;  // blocks in a table

  // A head's panel in the block of position p, as bytes, and the width of its rows.
  struct Panel {
    std::byte* data;
    int64_t width;
  };
  Panel keys(int64_t sequence, int64_t p, int64_t g) const {
    return {block(sequence, p) + g * layout.k_panel() * size_of(cache.dtype), layout.k_width};
  }
  Panel values(int64_t sequence, int64_t p, int64_t g) const {
    const int64_t at = layout.heads * layout.k_panel() + g * layout.v_panel();
    return {block(sequence, p) + at * size_of(cache.dtype), layout.v_width};
  }
  std::byte* block(int64_t sequence, int64_t p) const {
    const int64_t id = tables[size_t(sequence * W + p / cache_block)];
    return cache.data + id * layout.block_bytes();
  }
  Tensor row(const Panel& panel, int64_t p) const {
    return {panel.data + p % cache_block * panel.width * size_of(cache.dtype),
            {1, panel.width},
            cache.dtype};
  }
  uint8_t& exponent(const Panel& panel, int64_t p) const {
    return reinterpret_cast<uint8_t*>(panel.data)[cache_block * panel.width + p % cache_block];
  }

  void put(const Panel& at, int64_t p, const double* x) const {
    if (cache.dtype != DType::u8) return store(row(at, p), Doubles(x, x + at.width));
    const std::vector<float> numbers(x, x + at.width);
    exponent(at, p) = encode_cached(row(at, p).as<uint8_t>(), numbers.data(), at.width);
  }
  Doubles get(const Panel& at, int64_t p) const {
    if (cache.dtype != DType::u8) return load(row(at, p));
    std::vector<float> numbers(static_cast<size_t>(at.width));
    decode_cached(numbers.data(), row(at, p).as<const uint8_t>(), exponent(at, p), at.width);
    return {numbers.begin(), numbers.end()};
  }
};

}  // namespace

void attention_cached(Stream&, const AttentionCachedArgs& args) {
  const AttnSpec& spec = args.spec;
  const Qkv in(args);
  const int64_t N = args.y.shape[1], H = args.q.layout.heads, G = args.k.layout.heads;
  const int64_t D = args.q.layout.width, V = args.v.layout.width;
  const ByDistance further(args);
  const auto position = load_ints(args.positions), sequence = load_ints(args.sequences);
  const PagedCache paged{args.cache, cache_layout(args.k.layout, args.v.layout, args.cache.dtype),
                         load_ints(args.tables), args.tables.shape[1]};
  for (int64_t n = 0; n < N; ++n)
    for (int64_t g = 0; g < G && position[n] >= 0; ++g) {
      const int64_t p = position[n];
      paged.put(paged.keys(sequence[n], p, g), p, in.k.at(n, g * in.k.share));
      paged.put(paged.values(sequence[n], p, g), p, in.v.at(n, g * in.v.share));
    }

  Doubles yv(size_t(N * H * V));
  for (int64_t n = 0; n < N; ++n) {
    const int64_t i = position[n];
    for (int64_t h = 0; h < H && i >= 0; ++h) {
      const int64_t first = spec.window ? std::max<int64_t>(0, i - spec.window + 1) : 0;
      const int64_t g = h / (H / G);
      Doubles k(size_t((i + 1) * D)), v(size_t((i + 1) * V));
      for (int64_t j = first; j <= i; ++j) {
        std::ranges::copy(paged.get(paged.keys(sequence[n], j, g), j), &k[j * D]);
        std::ranges::copy(paged.get(paged.values(sequence[n], j, g), j), &v[j * V]);
      }
      const Row row = softmax_row(in.q.at(n, h), k.data(), {.width = D, .token = D}, h, i, further,
                                  nullptr, spec);
      for (int64_t j = 0; j <= i; ++j) add_scaled(&yv[(n * H + h) * V], row.p[j], &v[j * V], V);
    }
  }
  store(args.y, yv);
}

}  // namespace hearth::reference
