// Reference kernels over heads: norm and rotation of q and k, attention row by row with every score
// of the row in memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/fp8.h"
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

// Turns the pairs of one head by the angles of `row` (rotary / 2, 2): cos, sin. The gradient goes
// through the transpose, which is the turn the other way.
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
  // Padding has a negative position; what it yields is never used, row 0 will do.
  return spec.rotary ? &rope[std::max(positions[bt], 0) * spec.rotary] : nullptr;
}

}  // namespace

void qk_norm_rope(Stream&, const QkNormRopeArgs& args) {
  const QkSpec& spec = args.spec;
  const int64_t H = spec.heads, G = spec.kv_heads, D = spec.head_dim;
  const int64_t rows = args.qkv.numel() / ((H + 2 * G) * D);
  Doubles x = load(args.qkv), statv(size_t(rows * (H + G)));
  const Doubles ropev = load(args.rope), gq = load(args.q_gain), gk = load(args.k_gain);
  const auto at = load_ints(args.positions);
  for (int64_t bt = 0; bt < rows; ++bt)
    for (int64_t h = 0; h < H + G; ++h) {
      double* head = &x[(bt * (H + 2 * G) + h) * D];
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

void qk_norm_rope_bwd(Stream&, const QkNormRopeBwdArgs& args) {
  const QkSpec& spec = args.spec;
  const int64_t H = spec.heads, G = spec.kv_heads, D = spec.head_dim;
  const int64_t rows = args.dy.numel() / ((H + 2 * G) * D);
  const bool normed = spec.norm != QkNorm::none;
  Doubles dx = load(args.dy), x = normed ? load(args.qkv) : Doubles();
  const Doubles statv = normed ? load(args.stat) : Doubles();
  const Doubles ropev = load(args.rope), gq = load(args.q_gain), gk = load(args.k_gain);
  const auto at = load_ints(args.positions);
  Doubles dgq = start_from(args.dq_gain, spec.add), dgk = start_from(args.dk_gain, spec.add);
  for (int64_t bt = 0; bt < rows; ++bt)
    for (int64_t h = 0; h < H + G; ++h) {
      const int64_t offset = (bt * (H + 2 * G) + h) * D;
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

namespace {

// One query's softmax over keys 0 .. i. Keys it may not see have probability 0.
struct Row {
  Doubles p;
  Doubles slope;  // d score / d (q . k)
  double lse;
};

// Key j lies at k + j * stride. `documents` are those of the sequence, or null.
Row softmax_row(const double* q, const double* k, int64_t stride, int64_t i, double alibi,
                const int32_t* documents, const AttnSpec& spec) {
  const double hidden = -std::numeric_limits<double>::infinity();
  Row row{Doubles(size_t(i + 1), hidden), Doubles(size_t(i + 1), 0.0), 0};
  for (int64_t j = 0; j <= i; ++j) {
    if (spec.window && i - j >= spec.window) continue;
    if (documents && documents[i] != documents[j]) continue;
    double s = spec.scale * dot(q, k + j * stride, spec.head_dim);
    row.slope[j] = spec.scale;
    if (spec.softcap > 0) {
      const double t = std::tanh(s / spec.softcap);
      s = spec.softcap * t;
      row.slope[j] *= 1 - t * t;
    }
    row.p[j] = s - alibi * double(i - j);
  }
  const double top = *std::max_element(row.p.begin(), row.p.end());
  double sum = 0;
  for (double s : row.p) sum += std::exp(s - top);
  row.lse = top + std::log(sum);
  for (double& s : row.p) s = std::exp(s - row.lse);
  return row;
}

// Where each head of packed (B, T, H + 2G, D) lies, and which key head serves a query head.
struct Packed {
  int64_t B, T, H, G, D;
  Packed(Tensor qkv, const AttnSpec& s)
      : B(qkv.shape[0]), T(qkv.shape[1]), H(s.heads), G(s.kv_heads), D(s.head_dim) {}
  int64_t stride() const { return (H + 2 * G) * D; }  // from one token to the next
  int64_t q(int64_t b, int64_t t, int64_t h) const { return (b * T + t) * stride() + h * D; }
  int64_t k(int64_t b, int64_t t, int64_t h) const { return q(b, t, H + h / (H / G)); }
  int64_t v(int64_t b, int64_t t, int64_t h) const { return q(b, t, H + G + h / (H / G)); }
};

}  // namespace

void attention(Stream&, const AttentionArgs& args) {
  const AttnSpec& spec = args.spec;
  const Packed at(args.qkv, spec);
  const auto [B, T, H, G, D] = at;
  const Doubles x = load(args.qkv), alibi = load(args.slopes);
  const auto doc = load_ints(args.documents);
  const Scalars s = load_scalars(args.scalars);
  Doubles yv(size_t(B * T * H * D)), lsev(size_t(B * H * T));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i) {
        const Row row =
            softmax_row(&x[at.q(b, i, h)], &x[at.k(b, 0, h)], at.stride(), i, value_or(alibi, h, 0),
                        args.documents ? &doc[b * T] : nullptr, spec);
        const int64_t line = (b * H + h) * T + i;
        for (int64_t j = 0; j <= i; ++j) {
          const double keep = keep_factor(s, spec.dropout, spec.salt, line * T + j);
          add_scaled(&yv[((b * T + i) * H + h) * D], row.p[j] * keep, &x[at.v(b, j, h)], D);
        }
        lsev[line] = row.lse;
      }
  store(args.y, yv);
  store(args.lse, lsev);
}

void attention_bwd(Stream&, const AttentionBwdArgs& args) {
  const AttnSpec& spec = args.spec;
  const Packed at(args.qkv, spec);
  const auto [B, T, H, G, D] = at;
  const Doubles x = load(args.qkv), dyv = load(args.dy), alibi = load(args.slopes);
  const auto doc = load_ints(args.documents);
  const Scalars s = load_scalars(args.scalars);
  Doubles dx(x.size());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i) {
        const Row row =
            softmax_row(&x[at.q(b, i, h)], &x[at.k(b, 0, h)], at.stride(), i, value_or(alibi, h, 0),
                        args.documents ? &doc[b * T] : nullptr, spec);
        const double* g = &dyv[((b * T + i) * H + h) * D];
        Doubles dp(size_t(i + 1), 0.0);
        double mean_dp = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t element = ((b * H + h) * T + i) * T + j;
          const double keep = keep_factor(s, spec.dropout, spec.salt, element);
          dp[j] = keep * dot(g, &x[at.v(b, j, h)], D);
          mean_dp += row.p[j] * dp[j];
          add_scaled(&dx[at.v(b, j, h)], row.p[j] * keep, g, D);
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double ds = row.p[j] * (dp[j] - mean_dp) * row.slope[j];
          add_scaled(&dx[at.q(b, i, h)], ds, &x[at.k(b, j, h)], D);
          add_scaled(&dx[at.k(b, j, h)], ds, &x[at.q(b, i, h)], D);
        }
      }
  store(args.dqkv, dx);
}

namespace {

// The k and v heads of tokens in the blocks of a paged cache.
struct PagedCache {
  Tensor cache;
  std::vector<int32_t> tables;
  int64_t W;  // blocks of a table
  int64_t D;

  // Of head h of 2G at position p of a sequence: its panel, and its place there.
  std::byte* panel(int64_t sequence, int64_t p, int64_t h) const {
    const int64_t block = tables[size_t(sequence * W + p / cache_block)];
    const int64_t bytes = cache_block * cache.shape[3] * size_of(cache.dtype);
    return cache.data + (block * cache.shape[1] + h) * bytes;
  }
  Tensor row(std::byte* panel, int64_t p) const {
    return {panel + p % cache_block * D * size_of(cache.dtype), {1, D}, cache.dtype};
  }
  uint8_t& exponent(std::byte* panel, int64_t p) const {
    return reinterpret_cast<uint8_t*>(panel)[cache_block * D + p % cache_block];
  }

  void put(int64_t sequence, int64_t p, int64_t h, const Doubles& x) const {
    std::byte* const at = panel(sequence, p, h);
    if (cache.dtype != DType::u8) return store(row(at, p), x);
    const std::vector<float> numbers(x.begin(), x.end());
    exponent(at, p) = encode_cached(row(at, p).as<uint8_t>(), numbers.data(), D);
  }
  Doubles get(int64_t sequence, int64_t p, int64_t h) const {
    std::byte* const at = panel(sequence, p, h);
    if (cache.dtype != DType::u8) return load(row(at, p));
    std::vector<float> numbers(static_cast<size_t>(D));
    decode_cached(numbers.data(), row(at, p).as<const uint8_t>(), exponent(at, p), D);
    return {numbers.begin(), numbers.end()};
  }
};

}  // namespace

void attention_cached(Stream&, const AttentionCachedArgs& args) {
  const AttnSpec& spec = args.spec;
  const Packed at(args.qkv, spec);
  const auto [B, N, H, G, D] = at;
  const Doubles x = load(args.qkv), alibi = load(args.slopes);
  const auto position = load_ints(args.positions), sequence = load_ints(args.sequences);
  const PagedCache paged{args.cache, load_ints(args.tables), args.tables.shape[1], D};
  for (int64_t n = 0; n < N; ++n)
    for (int64_t h = 0; h < 2 * G && position[n] >= 0; ++h) {
      const double* from = &x[at.q(0, n, H + h)];
      paged.put(sequence[n], position[n], h, Doubles(from, from + D));
    }

  Doubles yv(size_t(N * H * D));
  for (int64_t n = 0; n < N; ++n) {
    const int64_t i = position[n];
    for (int64_t h = 0; h < H && i >= 0; ++h) {
      const int64_t first = spec.window ? std::max<int64_t>(0, i - spec.window + 1) : 0;
      Doubles k(size_t((i + 1) * D)), v(k);
      for (int64_t j = first; j <= i; ++j) {
        std::ranges::copy(paged.get(sequence[n], j, h / (H / G)), &k[j * D]);
        std::ranges::copy(paged.get(sequence[n], j, G + h / (H / G)), &v[j * D]);
      }
      const Row row =
          softmax_row(&x[at.q(0, n, h)], k.data(), D, i, value_or(alibi, h, 0), nullptr, spec);
      for (int64_t j = 0; j <= i; ++j) add_scaled(&yv[(n * H + h) * D], row.p[j], &v[j * D], D);
    }
  }
  store(args.y, yv);
}

}  // namespace hearth::reference
