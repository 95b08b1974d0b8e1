// 16-bit attention of every size of head and over many tiles, against the CPU in float on the same
// inputs: each implementation, with what a consumer card would take too.
#include <fmt/format.h>

#include <random>

#include "cpu/backend.h"
#include "head_views.h"
#include "held.h"

namespace hearth::cases {
namespace {

using test::card;
using test::consumer_card;
using test::distance;
using test::Held;
using test::rounded;

struct Shape3 {
  int64_t B, T, H, G, D, window;
  bool documents;
  float softcap;
  int64_t v_width = 0;    // of a head; 0: D
  int64_t distances = 0;  // of a bias; 0: none

  int64_t V() const { return v_width ? v_width : D; }
  QkvLayout layout() const { return packed_qkv(H, G, D, V()); }
};

constexpr Shape3 shapes[] = {
    {1, 300, 4, 2, 128, 0, false, 0},
    {2, 257, 2, 2, 128, 150, true, 0},
    {1, 520, 4, 1, 64, 0, false, 0},
    {1, 520, 2, 2, 64, 150, true, 0},
    {1, 200, 3, 3, 40, 0, false, 0},
    {1, 200, 2, 1, 96, 90, false, 0},
    {1, 200, 2, 2, 136, 0, true, 0},
    {1, 130, 2, 1, 256, 0, false, 0},
    {2, 200, 4, 4, 32, 0, false, 20},
    {1, 300, 2, 1, 128, 0, false, 15},
    {1, 150, 2, 2, 192, 70, true, 0},
    {1, 1100, 2, 1, 64, 0, false, 0},
    // keys and values of two widths
    {1, 300, 4, 2, 64, 0, false, 0, 128},
    {2, 257, 4, 1, 128, 150, true, 0, 64},
    {1, 200, 3, 3, 24, 0, false, 15, 40},
    {1, 300, 2, 2, 192, 0, false, 0, 128},
    {1, 130, 2, 1, 40, 0, true, 0, 256},
    {1, 520, 2, 2, 64, 0, false, 0, 72},
    // a bias by distance
    {1, 520, 4, 1, 64, 0, false, 0, 0, 129},
    {2, 257, 2, 2, 128, 150, true, 0, 0, 40},
    {1, 300, 4, 2, 128, 0, false, 15, 0, 17},
    {1, 130, 2, 1, 256, 0, false, 0, 0, 129},
    {2, 200, 3, 3, 40, 90, true, 20, 192, 2},
    {1, 200, 4, 2, 32, 0, false, 0, 0, 4097},
};

struct Attended {
  std::vector<float> y, lse, dqkv, dbias;
};

Attended attended(Backend& b, DType dtype, const Shape3& s, const std::vector<float>& qkv,
                  const std::vector<float>& dy, const std::vector<int32_t>& documents,
                  const std::vector<float>& biases) {
  const Shape packed{s.B, s.T, s.layout().q.token}, out{s.B, s.T, s.H, s.V()}, rows{s.B, s.H, s.T};
  Held x(b, packed, dtype), y(b, out, dtype), d(b, out, dtype), dx(b, packed, dtype);
  Held lse(b, rows, DType::f32), delta(b, rows, DType::f32), ids(b, {s.B, s.T}, DType::i32);
  const Shape of_bias{s.H, std::max<int64_t>(1, s.distances)};
  Held bias(b, of_bias, DType::f32), dbias(b, of_bias, DType::f32), prior(b, of_bias, DType::f32);
  x.fill(qkv), d.fill(dy), bias.fill(biases), dbias.fill(biases), prior.fill(biases);
  const auto if_biased = [&](const Held& t) { return s.distances ? t.t : Tensor{}; };
  b.upload(ids.t.data, documents.data(), ids.t.bytes());
  const Tensor mask = s.documents ? ids.t : Tensor{};
  const AttnSpec spec{
      .window = s.window, .scale = float(1 / std::sqrt(double(s.D))), .softcap = s.softcap};
  const QkvViews in = packed_views(x.t, s.layout()), grad = packed_views(dx.t, s.layout());
  b.kernels().attention(b.stream(), {.y = y.t,
                                     .lse = lse.t,
                                     .q = in.q,
                                     .k = in.k,
                                     .v = in.v,
                                     .bias = if_biased(bias),
                                     .documents = mask,
                                     .spec = spec});
  b.kernels().attention_bwd(b.stream(), {.dq = grad.q,
                                         .dk = grad.k,
                                         .dv = grad.v,
                                         .dbias = if_biased(dbias),
                                         .delta = delta.t,
                                         .dy = d.t,
                                         .y = y.t,
                                         .lse = lse.t,
                                         .q = in.q,
                                         .k = in.k,
                                         .v = in.v,
                                         .bias = if_biased(bias),
                                         .dbias_prior = if_biased(prior),
                                         .documents = mask,
                                         .spec = spec});
  return {y.read(), lse.read(), dx.read(), dbias.read()};
}

TEST(CudaAttention, FollowsTheCpuAtEverySizeOfHead) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  std::mt19937 random{5};
  for (const Shape3& s : shapes)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const auto rows = size_t(s.B * s.T);
      const std::vector<float> qkv = rounded(rows * size_t(s.layout().q.token), dtype, random);
      const std::vector<float> dy = rounded(rows * size_t(s.H * s.V()), dtype, random);
      std::vector<int32_t> documents(rows);
      for (size_t i = 0; i < rows; ++i) documents[i] = int32_t(i % size_t(s.T) / 90);
      const std::vector<float> bias =
          rounded(size_t(s.H * std::max<int64_t>(1, s.distances)), dtype, random);
      const Attended want = attended(*cpu, DType::f32, s, qkv, dy, documents, bias);
      const double ulp = dtype == DType::bf16 ? 1 / 256.0 : 1 / 2048.0;
      const std::pair<const char*, Backend*> ways[] = {
          {"hopper", &card(true)}, {"mma", &card(false)}, {"consumer", &consumer_card()}};
      for (const auto& [name, backend] : ways) {
        SCOPED_TRACE(fmt::format("{} {} B{} T{} H{} G{} D{} V{} window {} documents {} cap {}",
                                 name, to_string(dtype), s.B, s.T, s.H, s.G, s.D, s.V(), s.window,
                                 s.documents, s.softcap));
        const Attended got = attended(*backend, dtype, s, qkv, dy, documents, bias);
        EXPECT_LT(distance(got.y, want.y), ulp);
        EXPECT_LT(distance(got.lse, want.lse), 1e-4);
        EXPECT_LT(distance(got.dqkv, want.dqkv), 2 * ulp);
        EXPECT_LT(distance(got.dbias, want.dbias), 4 * ulp);
        const Attended again = attended(*backend, dtype, s, qkv, dy, documents, bias);
        EXPECT_TRUE(again.dqkv == got.dqkv) << "other bits the second time";
        EXPECT_TRUE(again.dbias == got.dbias) << "another gradient of the bias the second time";
      }
    }
}

}  // namespace
}  // namespace hearth::cases
