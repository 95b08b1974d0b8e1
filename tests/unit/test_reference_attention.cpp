// The reference kernels over heads: rotation and attention by hand, by central differences, and
// through the cache.
#include <fmt/format.h>

#include "head_views.h"
#include "unit/reference_array.h"

namespace hearth::reference {
namespace {

TEST(ReferenceAttention, RopeByHand) {
  // Two tokens of one q, k and v head; token 1 turns by 90 degrees in pair 0, by 180 in pair 1.
  const Array rope(Shape{2, 2, 2}, {1, 0, 1, 0, 0, 1, -1, 0});
  const Array positions = Array::ints({1, 2}, {0, 1});
  const Array x(Shape{1, 2, 3, 4}, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4,  //
                                    1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  const auto turned = [&](const QkSpec& spec) {
    Array y({1, 2, 3, 4});
    ops.qk_norm_rope(stream,
                     {.y = y, .qkv = x, .positions = positions, .rope = rope, .spec = spec});
    for (int i = 0; i < 12; ++i) EXPECT_EQ(y[i], x[i]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(y[20 + i], x[20 + i]) << "v is copied";
    for (int i = 0; i < 4; ++i) EXPECT_EQ(y[12 + i], y[16 + i]);
    return std::vector<double>(y.begin() + 12, y.begin() + 16);
  };
  using Head = std::vector<double>;
  EXPECT_EQ(turned({.head_dim = 4}), (Head{1, 2, 3, 4}));
  EXPECT_EQ(turned({.head_dim = 4, .rotary = 4}), (Head{-3, -2, 1, -4}));
  EXPECT_EQ(turned({.head_dim = 4, .rotary = 4, .interleaved = true}), (Head{-2, 1, -3, -4}));
  EXPECT_EQ(turned({.head_dim = 4, .rotary = 4, .reverse = true}), (Head{3, -2, -1, -4}));
}

TEST(ReferenceAttention, QkNormRopeGradients) {
  const int64_t B = 2, T = 3, H = 4, G = 2, D = 6, S = 5;
  const Shape shape{B, T, H + 2 * G, D};
  const Array positions = Array::ints({B, T}, {0, 1, 2, 3, 4, 0});
  for (QkNorm norm : {QkNorm::none, QkNorm::before_rope, QkNorm::after_rope})
    for (int64_t rotary : {0, 4, 6})
      for (int with = 0; with < 8; ++with) {
        SCOPED_TRACE(fmt::format("norm {} rotary {} with {}", int(norm), rotary, with));
        const bool gains = (with & 1) && norm != QkNorm::none;
        const QkSpec spec{.heads = H,
                          .kv_heads = G,
                          .head_dim = D,
                          .rotary = rotary,
                          .interleaved = bool(with & 2),
                          .reverse = bool(with & 4),
                          .norm = norm,
                          .eps = 1e-3f};
        Array rope;
        if (rotary) {
          rope = Array({S, rotary / 2, 2});
          for (int64_t i = 0; i < S * rotary / 2; ++i) {
            rope[2 * i] = std::cos(0.7 * double(i));
            rope[2 * i + 1] = std::sin(0.7 * double(i));
          }
        }
        const Array x = Array::random(shape), dy = Array::random(shape), y(shape);
        const Array gq = gains ? Array::random({D}) : Array();
        const Array gk = gains ? Array::random({D}) : Array();
        const Array dgq = gains ? Array({D}) : Array(), dgk = gains ? Array({D}) : Array();
        const Array stat({B * T, H + G});
        const auto loss = [&] {
          ops.qk_norm_rope(stream, {.y = y,
                                    .stat = stat,
                                    .qkv = x,
                                    .positions = positions,
                                    .rope = rope,
                                    .q_gain = gq,
                                    .k_gain = gk,
                                    .spec = spec});
          return inner(y, dy);
        };
        loss();
        const Array dx = dy.copy();  // in place
        ops.qk_norm_rope_bwd(stream, {.dqkv = dx,
                                      .dq_gain = dgq,
                                      .dk_gain = dgk,
                                      .dy = dx,
                                      .qkv = x,
                                      .stat = stat,
                                      .positions = positions,
                                      .rope = rope,
                                      .q_gain = gq,
                                      .k_gain = gk,
                                      .spec = spec});
        expect_gradient("qkv", x, dx, loss);
        if (gains) expect_gradient("q_gain", gq, dgq, loss);
        if (gains) expect_gradient("k_gain", gk, dgk, loss);
        loss();
        const Array over = x.copy();
        ops.qk_norm_rope(stream, {.y = over,
                                  .stat = stat,
                                  .qkv = over,
                                  .positions = positions,
                                  .rope = rope,
                                  .q_gain = gq,
                                  .k_gain = gk,
                                  .spec = spec});
        expect_same_bytes(over, y);
      }
}

TEST(ReferenceAttention, AttentionByHand) {
  // q, k, v of two tokens, one head of one dim
  const Array x(Shape{1, 2, 3, 1}, {1, 0.5, 3, 2, 1, 5}), slope(Shape{1}, {0.25});
  const Array y({1, 2, 1, 1}), lse({1, 1, 2});
  const auto [q, k, v] = packed_views(x, packed_qkv(1, 1, 1, 1));
  ops.attention(stream, {.y = y,
                         .lse = lse,
                         .q = q,
                         .k = k,
                         .v = v,
                         .slopes = slope,
                         .spec = {.scale = 0.5f, .softcap = 2}});
  const double s10 = 2 * std::tanh(0.25) - 0.25, s11 = 2 * std::tanh(0.5);
  const double sum = std::exp(s10) + std::exp(s11);
  expect_near(lse, {2 * std::tanh(0.125), std::log(sum)});
  expect_near(y, {3, (3 * std::exp(s10) + 5 * std::exp(s11)) / sum});
}

TEST(ReferenceAttention, AttentionMasksByHand) {
  // With q = 0 every key seen weighs the same: y is the mean of the v in sight.
  const int64_t T = 4;
  Array x({1, T, 6, 1});  // two heads: q, q, k, k, v, v
  for (int64_t t = 0; t < T; ++t) {
    x[t * 6 + 2] = x[t * 6 + 3] = 1;
    x[t * 6 + 4] = double(t);
    x[t * 6 + 5] = double(10 * t);
  }
  const auto [q, k, v] = packed_views(x, packed_qkv(2, 2, 1, 1));
  const Array y({1, T, 2, 1}), documents = Array::ints({1, T}, {7, 7, 8, 8});
  ops.attention(stream, {.y = y, .q = q, .k = k, .v = v});
  expect_near(y, {0, 0, 0.5, 5, 1, 10, 1.5, 15});
  ops.attention(stream, {.y = y, .q = q, .k = k, .v = v, .spec = {.window = 2}});
  expect_near(y, {0, 0, 0.5, 5, 1.5, 15, 2.5, 25});
  ops.attention(stream, {.y = y, .q = q, .k = k, .v = v, .documents = documents});
  expect_near(y, {0, 0, 0.5, 5, 2, 20, 2.5, 25});
}

TEST(ReferenceAttention, AttentionSharesKeysAndDropsByElement) {
  // A window of 1 leaves each query its own v, so y shows the v head and the fate of element (i,
  // i).
  const int64_t B = 2, T = 8, H = 4, G = 2;
  const Array x = Array::random({B, T, H + 2 * G, 1}), y({B, T, H, 1});
  const Scalars s{.seed_lo = 5, .seed_hi = 6, .step = 7, .micro = 1};
  const auto [q, k, v] = packed_views(x, packed_qkv(H, G, 1, 1));
  ops.attention(stream, {.y = y,
                         .q = q,
                         .k = k,
                         .v = v,
                         .scalars = Array::of(s),
                         .spec = {.window = 1, .dropout = 0.25f, .salt = 9}});
  int dropped = 0;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < T; ++i)
      for (int64_t h = 0; h < H; ++h) {
        const bool drop = random_word(s, 9, uint64_t(((b * H + h) * T + i) * T + i)) < 1u << 30;
        dropped += drop;
        const double value = x[(b * T + i) * (H + 2 * G) + H + G + h / 2];
        EXPECT_NEAR(y[(b * T + i) * H + h], drop ? 0 : value / 0.75, 1e-12);
      }
  EXPECT_GT(dropped, 4);
  EXPECT_LT(dropped, 32);
}

struct AttnCase {
  int64_t H, G, D, V;  // V: width of a head of v
  AttnSpec spec;
  bool alibi = false, documents = false;
  int64_t distances = 0;  // of a bias; 0: none
  Array bias() const { return distances ? Array::random({H, distances}) : Array(); }
  QkvLayout layout() const { return packed_qkv(H, G, D, V); }
};

const AttnCase attn_cases[] = {
    {2, 2, 3, 3, {.scale = 0.6f}},
    {4, 2, 3, 3, {.scale = 0.6f}},
    {4, 2, 3, 5, {.scale = 0.6f}},
    {3, 1, 2, 1, {.window = 3, .scale = 2}},
    {2, 1, 4, 4, {.scale = 1.5f, .softcap = 1.25f}},
    {4, 2, 2, 2, {}, true},
    {2, 2, 3, 4, {}, false, true},
    {4, 2, 3, 2, {.dropout = 0.3f, .salt = 4}},
    {4,
     2,
     2,
     3,
     {.window = 4, .scale = 1.2f, .softcap = 2, .dropout = 0.2f, .salt = 3},
     true,
     true},
    {4, 2, 3, 2, {.scale = 0.6f}, false, false, 4},
    {2, 1, 2, 3, {.window = 4, .softcap = 2, .dropout = 0.2f, .salt = 3}, false, true, 3},
    {2, 2, 2, 2, {.softcap = 1.5f}, false, false, 2},
};

TEST(ReferenceAttention, AttentionGradients) {
  const int64_t B = 2, T = 6;
  for (const AttnCase& c : attn_cases) {
    const AttnSpec& spec = c.spec;
    const auto [H, G, D, V] = std::tuple(c.H, c.G, c.D, c.V);
    const int64_t token = c.layout().q.token;
    SCOPED_TRACE(
        fmt::format("window {} softcap {} dropout {}", spec.window, spec.softcap, spec.dropout));
    const Array x = Array::random({B, T, 1, token}), dy = Array::random({B, T, H, V});
    const Array y({B, T, H, V}), lse({B, H, T}), dx({B, T, 1, token}), delta({B, H, T});
    const QkvViews in = packed_views(x, c.layout()), d = packed_views(dx, c.layout());
    const Array slopes = c.alibi ? Array::random({H}) : Array();
    const Array bias = c.bias(), dbias = c.distances ? Array({H, c.distances}) : Array();
    const Array doc =
        c.documents ? Array::ints({B, T}, {0, 0, 1, 1, 1, 2, 5, 5, 5, 5, 6, 6}) : Array();
    const Array scalars = Array::of(Scalars{.seed_lo = 1, .step = 3});
    const auto loss = [&] {
      ops.attention(stream, {.y = y,
                             .lse = lse,
                             .q = in.q,
                             .k = in.k,
                             .v = in.v,
                             .slopes = slopes,
                             .bias = bias,
                             .documents = doc,
                             .scalars = scalars,
                             .spec = spec});
      return inner(y, dy);
    };
    loss();
    ops.attention_bwd(stream, {.dq = d.q,
                               .dk = d.k,
                               .dv = d.v,
                               .dbias = dbias,
                               .delta = delta,
                               .dy = dy,
                               .y = y,
                               .lse = lse,
                               .q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .slopes = slopes,
                               .bias = bias,
                               .documents = doc,
                               .scalars = scalars,
                               .spec = spec});
    expect_gradient("qkv", x, dx, loss);
    if (c.distances) expect_gradient("bias", bias, dbias, loss);
  }
}

// Row t of the tokens of a packed tensor, of every sequence.
// Tokens [from, from + count) of both sequences of x, as rows.
Array rows_of(const Array& x, int64_t from, int64_t count) {
  const Shape s = Tensor(x).shape;
  const int64_t row = s[2] * s[3];
  Array part({1, s[0] * count, s[2], s[3]});
  for (int64_t b = 0; b < s[0]; ++b)
    std::copy_n(&x[(b * s[1] + from) * row], count * row, &part[b * count * row]);
  return part;
}

TEST(ReferenceAttention, AttentionCachedGivesTheBitsOfAttention) {
  const int64_t B = 2, T = 70;
  for (const AttnCase& c : attn_cases) {
    if (c.documents || c.spec.dropout > 0) continue;
    for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const Array x = Array::random({B, T, 1, c.layout().q.token}), y({B, T, c.H, c.V}, dtype);
      const Array slopes = c.alibi ? Array::random({c.H}) : Array(), typed = x.as(dtype);
      const Array bias = c.bias();
      const QkvViews all = packed_views(typed, c.layout());
      ops.attention(stream, {.y = y,
                             .q = all.q,
                             .k = all.k,
                             .v = all.v,
                             .slopes = slopes,
                             .bias = bias,
                             .spec = c.spec});
      const Array want = y.copy(), cache({5, c.G, cache_block, c.D + c.V}, dtype);
      const Array tables = Array::ints({2, 2}, {3, 0, 1, 4});
      for (auto [from, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 66}}) {
        std::vector<int32_t> at, of;
        for (int64_t i = 0; i < B * count; ++i)
          at.push_back(int32_t(from + i % count)), of.push_back(int32_t(i / count));
        const Shape rows{1, B * count};
        const Array got({1, B * count, c.H, c.V}, dtype), part = rows_of(x, from, count).as(dtype);
        const QkvViews in = packed_views(part, c.layout());
        ops.attention_cached(stream, {.y = got,
                                      .cache = cache,
                                      .q = in.q,
                                      .k = in.k,
                                      .v = in.v,
                                      .positions = Array::ints(rows, at),
                                      .sequences = Array::ints(rows, of),
                                      .tables = tables,
                                      .slopes = slopes,
                                      .bias = bias,
                                      .spec = c.spec});
        expect_same_bytes(got.copy(), rows_of(want, from, count));
      }
    }
  }
}

TEST(ReferenceAttention, AttentionCachedSkipsPadding) {
  const Array x = Array::random({1, 3, 4, 2}), y = Array::random({1, 3, 2, 2});
  const Array cache({2, 2, cache_block, 2});
  const Array at = Array::ints({1, 3}, {-1, 0, -1}), of = Array::ints({1, 3}, {0, 1, 0});
  const QkvViews in = packed_views(x, packed_qkv(2, 1, 2, 2));
  ops.attention_cached(stream, {.y = y,
                                .cache = cache,
                                .q = in.q,
                                .k = in.k,
                                .v = in.v,
                                .positions = at,
                                .sequences = of,
                                .tables = Array::ints({2, 1}, {0, 1})});
  for (int i : {0, 2})
    for (int c = 0; c < 4; ++c) EXPECT_EQ(y[i * 4 + c], 0);
  for (int c = 0; c < 4; ++c) EXPECT_NEAR(y[4 + c], x[8 + 6 + c % 2], 1e-12);
  const int64_t panel = cache_block * 2;
  for (int64_t i = 0; i < 4 * panel; ++i) {
    const bool k = i >= 2 * panel && i < 2 * panel + 2, v = i >= 3 * panel && i < 3 * panel + 2;
    EXPECT_EQ(cache[i], k ? x[8 + 4 + i - 2 * panel] : v ? x[8 + 6 + i - 3 * panel] : 0) << i;
  }
}
}  // namespace
}  // namespace hearth::reference
