// The fast attention kernels against the reference, and what they promise beyond values: a row's
// bits depend on nothing it may not see, and the cached kernel gives the bits of the plain one.
#include "core/math.h"
#include "head_views.h"
#include "unit/cpu_case.h"

namespace hearth::cpu_test {
namespace {

struct Variant {
  const char* name;
  int64_t window = 0;
  float softcap = 0;
  bool alibi = false;
  bool documents = false;
  float dropout = 0;
  int64_t distances = 0;  // of a bias; 0: none
};

const Variant variants[] = {
    {.name = "plain"},
    {.name = "window 1", .window = 1},
    {.name = "window 40", .window = 40},
    {.name = "softcap", .softcap = 2},
    {.name = "alibi", .alibi = true},
    {.name = "documents", .documents = true},
    {.name = "dropout", .dropout = 0.25f},
    {.name = "all", .window = 70, .softcap = 5, .alibi = true, .documents = true, .dropout = 0.1f},
    {.name = "bias", .distances = 33},
    {.name = "bias and masks", .window = 70, .softcap = 5, .documents = true, .distances = 9}};

struct Heads {
  int64_t H, G;
};
const Heads head_counts[] = {{1, 1}, {4, 4}, {4, 2}, {6, 1}};

// One problem: its inputs in the dtype under test.
struct Problem {
  int64_t B, T, H, G, D, V;  // V: width of a head of v
  DType d;
  QkvLayout layout;
  AttnSpec spec;
  Array qkv, slopes, bias, documents, scalars;

  Problem(int64_t B_, int64_t T_, Heads heads, int64_t D_, int64_t V_, DType d_, const Variant& v)
      : B(B_), T(T_), H(heads.H), G(heads.G), D(D_), V(V_), d(d_), layout(packed_qkv(H, G, D, V)) {
    spec = {.window = v.window,
            .scale = float(1 / std::sqrt(double(D))),
            .softcap = v.softcap,
            .dropout = v.dropout,
            .salt = 11};
    qkv = random({B, T, 1, token()}, d, 2);
    scalars = Array::of(Scalars{.seed_lo = 3, .seed_hi = 4, .step = 5, .micro = 1});
    if (v.alibi) {
      Array s({H});
      for (int64_t h = 0; h < H; ++h) s[h] = std::exp2(-double(h + 1));
      slopes = s.as(DType::f32);
    }
    if (v.distances) bias = random({H, v.distances}, DType::f32, 2);
    if (v.documents) {
      std::vector<int32_t> of;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t t = 0; t < T; ++t) of.push_back(int32_t(t / (17 + 30 * b)));
      documents = Array::ints({B, T}, of);
    }
  }
  int64_t token() const { return layout.q.token; }  // elements
  QkvViews views(const Tensor& x) const { return packed_views(x, layout); }
  Array forward(const Runner& r) const {
    Array y = r.out({B, T, H, V}), lse = r.sums({B, H, T});
    const QkvViews x = views(qkv);
    r.k.attention(r.s, {.y = y,
                        .lse = lse,
                        .q = x.q,
                        .k = x.k,
                        .v = x.v,
                        .slopes = slopes,
                        .bias = bias,
                        .documents = documents,
                        .scalars = scalars,
                        .spec = spec});
    return y;
  }
};

void check_values(const Problem& p, const char* name) {
  const Array y = random({p.B, p.T, p.H, p.V}, p.d), dy = random({p.B, p.T, p.H, p.V}, p.d);
  Array lse({p.B, p.H, p.T}), exact({p.B, p.T, p.H, p.V});
  const QkvViews x = p.views(p.qkv);
  reference_kernels().attention(Array::stream(), {.y = exact,
                                                  .lse = lse,
                                                  .q = x.q,
                                                  .k = x.k,
                                                  .v = x.v,
                                                  .slopes = p.slopes,
                                                  .bias = p.bias,
                                                  .documents = p.documents,
                                                  .scalars = p.scalars,
                                                  .spec = p.spec});
  const Array saved = lse.as(DType::f32), seen = exact.as(p.d);
  const Tensor bias = p.bias;
  const Array prior = bias ? random(bias.shape, DType::f32) : Array();
  check(fmt::format("attention {} T {} H {} G {} D {} V {}", name, p.T, p.H, p.G, p.D, p.V), p.d,
        [&](const Runner& r) {
          Array out = r.out({p.B, p.T, p.H, p.V}), l = r.sums({p.B, p.H, p.T});
          Array dqkv = r.out({p.B, p.T, 1, p.token()}), delta = r.sums({p.B, p.H, p.T});
          Array dbias = bias ? r.sums(bias.shape) : Array();
          const QkvViews dx = p.views(dqkv);
          r.k.attention(r.s, {.y = out,
                              .lse = l,
                              .q = x.q,
                              .k = x.k,
                              .v = x.v,
                              .slopes = p.slopes,
                              .bias = p.bias,
                              .documents = p.documents,
                              .scalars = p.scalars,
                              .spec = p.spec});
          r.k.attention_bwd(r.s, {.dq = dx.q,
                                  .dk = dx.k,
                                  .dv = dx.v,
                                  .dbias = dbias,
                                  .delta = delta,
                                  .dy = dy,
                                  .y = seen,
                                  .lse = saved,
                                  .q = x.q,
                                  .k = x.k,
                                  .v = x.v,
                                  .slopes = p.slopes,
                                  .bias = p.bias,
                                  .dbias_prior = prior,
                                  .documents = p.documents,
                                  .scalars = p.scalars,
                                  .spec = p.spec});
          return outputs(std::move(out), std::move(l), std::move(dqkv), std::move(dbias));
        });
}

TEST(CpuAttention, ValuesOverShapes) {
  const int64_t dims[] = {8, 16, 24, 48, 64, 80, 128};
  int turn = 0;
  for (DType d : dtypes)
    for (int64_t T : {1, 2, 5, 63, 64, 65, 130})
      for (const Heads& heads : head_counts) {
        const int64_t D = dims[turn % 7], V = turn % 3 ? dims[(turn * 3 + 1) % 7] : D;
        const Variant& v = variants[size_t(turn) % std::size(variants)];
        check_values(Problem(T < 64 ? 3 : 1, T, heads, D, V, d, v), v.name);
        turn += 1;
      }
}

TEST(CpuAttention, ValuesOverVariants) {
  for (DType d : dtypes)
    for (const Variant& v : variants)
      for (const int64_t V : {24, 9, 40})
        check_values(Problem(2, 100, {4, 2}, 24, V, d, v), v.name);
}

// Changing a later token, or one of another document, changes no bit of a row.
TEST(CpuAttention, SeesNoFuture) {
  for (DType d : dtypes)
    for (const Variant& v : variants)
      for (Isa isa : usable_isas()) {
        Problem p(1, 130, {4, 2}, 24, 40, d, v);
        const Runner r = runner_of(isa, 2, d);
        const Array before = p.forward(r);
        for (int64_t first : {129, 100, 65, 64, 63, 7}) {
          const int64_t token = p.token();
          const Array other = random({p.T - first, token}, d, 30);
          std::memcpy(Tensor(p.qkv).data + first * token * size_of(d), Tensor(other).data,
                      size_t(Tensor(other).bytes()));
          const Array after = p.forward(r);
          const int64_t bytes = p.H * p.V * size_of(d);
          EXPECT_EQ(std::memcmp(Tensor(before).data, Tensor(after).data, size_t(first * bytes)), 0)
              << v.name << " " << name(isa) << " from token " << first;
          EXPECT_FALSE(same_bytes(before, after));
        }
      }
}

// A row has the same bits in a longer sequence and in a larger batch.
TEST(CpuAttention, RowsStandAlone) {
  for (DType d : dtypes)
    for (const Variant& v : variants) {
      if (v.dropout > 0) continue;  // its random numbers are counted by T
      for (Isa isa : usable_isas()) {
        const Problem p(3, 130, {4, 2}, 16, 24, d, v);
        const Runner r = runner_of(isa, 2, d);
        const Array all = p.forward(r);
        const int64_t token = p.token() * size_of(d), out = p.H * p.V * size_of(d);
        for (int64_t b = 0; b < p.B; ++b)
          for (int64_t T : {1, 5, 64, 65, 99}) {
            const Tensor qkv{Tensor(p.qkv).data + b * p.T * token, {1, T, 1, p.token()}, d};
            const QkvViews x = p.views(qkv);
            Tensor documents = p.documents;
            if (documents) documents = {documents.data + 4 * b * p.T, {1, T}, DType::i32};
            Array y = r.out({1, T, p.H, p.V});
            r.k.attention(r.s, {.y = y,
                                .q = x.q,
                                .k = x.k,
                                .v = x.v,
                                .slopes = p.slopes,
                                .bias = p.bias,
                                .documents = documents,
                                .scalars = p.scalars,
                                .spec = p.spec});
            EXPECT_EQ(
                std::memcmp(Tensor(y).data, Tensor(all).data + b * p.T * out, size_t(T * out)), 0)
                << v.name << " " << name(isa) << " T " << T << " b " << b;
          }
      }
    }
}

// The tokens of p as rows of a paged cache: chunks of `chunk` of every sequence in turn, each into
// blocks of its own, which lie in no order.
struct Paging {
  static constexpr int64_t width = 2;  // blocks of a sequence
  Array tables;
  explicit Paging(const Problem& p) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < p.B * width; ++i) ids.push_back(int32_t((i * 3 + 1) % (p.B * width)));
    tables = Array::ints({p.B, width}, ids);
  }
};

// Rows [from, from + n) of every sequence of x (B, T, ..), one after the other.
Array part_of(const Array& x, int64_t from, int64_t n) {
  const Tensor t = x;
  const int64_t row = t.bytes() / (t.shape[0] * t.shape[1]);
  Array r({1, t.shape[0] * n, t.shape[2], t.shape[3]}, t.dtype);
  for (int64_t b = 0; b < t.shape[0]; ++b)
    std::memcpy(Tensor(r).data + b * n * row, t.data + (b * t.shape[1] + from) * row,
                size_t(n * row));
  return r;
}

TEST(CpuAttention, CachedGivesTheSameBits) {
  for (DType d : dtypes)
    for (const Variant& v : variants) {
      if (v.dropout > 0 || v.documents) continue;
      for (const Heads& heads : head_counts)
        for (Isa isa : usable_isas()) {
          const Problem p(2, 70, heads, 24, heads.H == heads.G ? 24 : 17, d, v);
          const Paging paging(p);
          const Runner r = runner_of(isa, 2, d);
          const Array whole = p.forward(r);
          for (int64_t chunk : {70, 37, 1}) {
            // slots not yet written hold NaN
            Array cache = r.out({p.B * Paging::width, p.G, cache_block, p.D + p.V});
            for (int64_t from = 0; from < p.T; from += chunk) {
              const int64_t n = std::min(chunk, p.T - from), N = p.B * n;
              std::vector<int32_t> at, of;
              for (int64_t i = 0; i < N; ++i)
                at.push_back(int32_t(from + i % n)), of.push_back(int32_t(i / n));
              Array y = r.out({1, N, p.H, p.V});
              const Array rows = part_of(p.qkv, from, n);
              const QkvViews x = p.views(rows);
              r.k.attention_cached(r.s, {.y = y,
                                         .cache = cache,
                                         .q = x.q,
                                         .k = x.k,
                                         .v = x.v,
                                         .positions = Array::ints({1, N}, at),
                                         .sequences = Array::ints({1, N}, of),
                                         .tables = paging.tables,
                                         .slopes = p.slopes,
                                         .bias = p.bias,
                                         .spec = p.spec});
              ASSERT_TRUE(same_bytes(y, part_of(whole, from, n)))
                  << v.name << " " << name(isa) << " chunk " << chunk << " from " << from;
            }
          }
        }
    }
}

// Rows of sequences at different places, more of them than a tile holds, with padding between and
// after: zeros there, nothing stored.
TEST(CpuAttention, CachedTakesAnyMixOfRows) {
  const int64_t N = 75;
  for (DType d : dtypes) {
    const Problem p(1, N, {4, 2}, 16, 12, d, variants[0]);
    const QkvViews x = p.views(p.qkv);
    const Array start = random({5, p.G, cache_block, p.D + p.V}, d);
    const Array tables = Array::ints({3, 2}, {4, 1, 0, 3, 2, -1});
    std::vector<int32_t> at, of;
    const auto rows = [&](int32_t sequence, int32_t first, int count) {
      for (int32_t i = 0; i < count; ++i) {
        at.push_back(first < 0 ? -1 : first + i);
        of.push_back(sequence);
      }
    };
    rows(0, 63, 3), rows(1, 90, 1), rows(2, 0, 60), rows(0, -1, int(N) - 64);
    check("attention_cached", d, [&](const Runner& r) {
      Array y = r.out({1, N, p.H, p.V}), cache = r.in_place(start);
      r.k.attention_cached(r.s, {.y = y,
                                 .cache = cache,
                                 .q = x.q,
                                 .k = x.k,
                                 .v = x.v,
                                 .positions = Array::ints({1, N}, at),
                                 .sequences = Array::ints({1, N}, of),
                                 .tables = tables,
                                 .spec = p.spec});
      return outputs(std::move(y), std::move(cache));
    });
    const Runner r = runner_of(best_isa(), 1, d);
    Array y = r.out({1, N, p.H, p.V}), cache = start.as(d);
    r.k.attention_cached(r.s, {.y = y,
                               .cache = cache,
                               .q = x.q,
                               .k = x.k,
                               .v = x.v,
                               .positions = Array::ints({1, N}, at),
                               .sequences = Array::ints({1, N}, of),
                               .tables = tables,
                               .spec = p.spec});
    const int64_t bytes = p.H * p.V * size_of(d);
    for (int64_t i = 64 * bytes; i < N * bytes; ++i) ASSERT_EQ(int(Tensor(y).data[i]), 0);
  }
}

}  // namespace
}  // namespace hearth::cpu_test
