// Products with packed weights on the card against sums in double of what the weights stand for:
// few and many rows, every epilogue, sizes that fill no tile, the same bits every time. And the
// engine on such weights against a plain model of what they stand for.
#include <fmt/format.h>

#include "held.h"
#include "sys/threads.h"
#include "unit/infer_model.h"

namespace hearth::cases {
namespace {

using test::card;
using test::Held;
using test::HeldInts;

constexpr WeightFormat packed_formats[] = {WeightFormat::int8, WeightFormat::int4,
                                           WeightFormat::fp8};
constexpr DType dtypes[] = {DType::bf16, DType::f16, DType::f32};

// Whole multiples of 1/32 that every dtype holds.
std::vector<float> exact(int64_t n, uint32_t seed) {
  std::mt19937 random{seed};
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = float(int(random() % 201) - 100) / 32;
  return x;
}

Numbers doubled(const std::vector<float>& x) { return {x.begin(), x.end()}; }

double bar_of(DType d) {
  for (const Tolerance& t : test::card_tolerances)
    if (t.dtype == d) return t.value;
  return 0;
}

// Packed weights on a backend, and what they stand for.
struct Packed {
  Packed(Backend& b, int64_t N, int64_t K, WeightFormat f)
      : layout(N, K, f), host(size_t(layout.bytes())), memory(b, layout.bytes(), "weights") {
    std::mt19937 random{uint32_t(N + K)};
    std::normal_distribution<float> normal(0, 1.0f / 16);
    std::vector<float> w(static_cast<size_t>(N * K));
    for (float& v : w) v = normal(random);
    Threads threads;
    quantise(host, layout, w, threads);
    b.upload(memory.data(), host.data(), layout.bytes());
    t = {memory.data(), {layout.bytes()}, panels_of(f)};
  }
  double at(int64_t n, int64_t k) const { return quantised_value(host.data(), n, k); }
  Numbers values(int64_t N) const {
    Numbers w;
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < layout.cols; ++k) w.push_back(at(n, k));
    return w;
  }
  QuantLayout layout;
  std::vector<std::byte> host;
  Buffer memory;
  Tensor t;
};

// a wᵀ in double, (M, N).
Numbers sums(const Numbers& a, const Numbers& w, int64_t M, int64_t N, int64_t K) {
  Numbers c;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      const double *x = &a[size_t(m * K)], *y = &w[size_t(n * K)];
      double four[4] = {};  // K is a multiple of 4
      for (int64_t k = 0; k < K; k += 4)
        for (int i = 0; i < 4; ++i) four[i] += x[k + i] * y[k + i];
      c.push_back(four[0] + four[1] + four[2] + four[3]);
    }
  return c;
}

struct Finish {
  Act act = Act::none;
  float alpha = 1;
  bool bias = false, prior = false, in_place = false, wide = false;
};

const Finish finishes[] = {
    {},
    {.bias = true},
    {.wide = true},
    {.alpha = 0.5f, .bias = true, .prior = true},
    {.bias = true, .prior = true, .in_place = true},
    {.act = Act::gelu_tanh, .bias = true},
    {.act = Act::relu2, .alpha = 0.25f, .bias = true, .prior = true, .in_place = true},
    {.act = Act::gelu_erf, .bias = true, .prior = true, .in_place = true, .wide = true}};

Numbers finished(const Numbers& sum, const std::vector<float>& bias,
                 const std::vector<float>& prior, const Finish& f, DType out) {
  Numbers c = sum;
  for (size_t i = 0; i < c.size(); ++i) {
    double x = sum[i] + (f.bias ? double(bias[i % bias.size()]) : 0);
    if (f.act != Act::none) x = rounded(x, out);
    c[i] = f.alpha * activate(f.act, x).y + (f.prior ? double(prior[i]) : 0);
  }
  return c;
}

struct Matrix {
  int64_t N, K;
  std::vector<int64_t> rows;
};

const Matrix matrices[] = {{48, 64, {1, 2, 7, 8, 9, 16, 17, 64, 65, 200}},
                           {77, 96, {1, 2, 7, 16, 17, 64, 200}},
                           {33, 72, {1, 7, 16, 17, 33, 64, 200}},
                           {40, 100, {1, 16, 17, 200}},
                           {5, 8, {1, 9, 70}},
                           {257, 768, {1, 2, 7, 16, 17, 64, 200}},
                           {130, 1600, {1, 16, 33}},
                           {96, 4104, {1, 12, 64}},
                           {768, 3072, {1, 16, 40}},
                           {2304, 768, {2, 64}},
                           {4300, 264, {1, 9, 16}},
                           {2200, 1608, {1, 8, 16}}};

// One product on the card.
Numbers made(const Packed& w, const Held& a, Held& c, Held& bias, Held& prior, const Finish& f) {
  Backend& b = card();
  if (f.in_place) c.fill(prior.read());
  const Tensor before = !f.prior ? Tensor{} : f.in_place ? c.t : prior.t;
  b.kernels().gemm_quantised(
      b.stream(), {.c = c.t,
                   .a = a.t,
                   .w = w.t,
                   .bias = f.bias ? bias.t : Tensor{},
                   .prior = before,
                   .spec = {.tb = true, .alpha = f.alpha, .act = f.act, .weight = true}});
  return doubled(c.read());
}

TEST(CudaQuantised, ValuesAreThoseOfTheWeights) {
  HEARTH_NEEDS_A_CARD();
  for (const Matrix& m : matrices)
    for (const WeightFormat format : packed_formats) {
      const Packed w(card(), m.N, m.K, format);
      const int64_t most = m.rows.back();
      const std::vector<float> a = exact(most * m.K, 1), bias = exact(m.N, 2),
                               prior = exact(most * m.N, 3);
      const Numbers all = sums(doubled(a), w.values(m.N), most, m.N, m.K);
      for (const int64_t M : m.rows)
        for (const DType dtype : dtypes) {
          if (dtype == DType::f32 && M != 1 && M != most) continue;  // one way for all of them
          Held x(card(), {M, m.K}, dtype), added(card(), {m.N}, dtype);
          x.fill({a.begin(), a.begin() + M * m.K});
          added.fill(bias);
          for (const Finish& f : finishes) {
            SCOPED_TRACE(fmt::format("{}x{}x{} {} {} finish {}", M, m.N, m.K, to_string(format),
                                     to_string(dtype), &f - finishes));
            const DType out = f.wide ? DType::f32 : dtype;
            // Few rows meet the weights as they are, many what is left of them in the dtype.
            const bool few = dtype != DType::f32 && M <= 64 && m.K % 8 == 0;
            // cuBLASLt adds no bias of 16 bits to sums of 32, and a head has none.
            if (f.wide && f.bias && dtype != DType::f32 && !few) continue;
            Held c(card(), {M, m.N}, out), before(card(), {M, m.N}, out);
            before.fill({prior.begin(), prior.begin() + M * m.N});
            const Numbers want =
                finished({all.begin(), all.begin() + M * m.N}, bias, prior, f, out);
            const Numbers got = made(w, x, c, added, before, f);
            EXPECT_LT(error_of(got, want), f.wide && few ? 1e-4 : bar_of(dtype));
            EXPECT_TRUE(made(w, x, c, added, before, f) == got) << "other bits";
          }
        }
    }
}

// A row has the same bits whatever shares its product, up to 64.
TEST(CudaQuantised, FewRowsKeepTheirBits) {
  HEARTH_NEEDS_A_CARD();
  const int64_t N = 257, K = 2312;
  for (const WeightFormat format : packed_formats) {
    const Packed w(card(), N, K, format);
    const std::vector<float> a = exact(64 * K, 5);
    const auto product = [&](int64_t first, int64_t M) {
      Held x(card(), {M, K}, DType::bf16), c(card(), {M, N}, DType::bf16);
      x.fill({a.begin() + first * K, a.begin() + (first + M) * K});
      return made(w, x, c, c, c, {});
    };
    const Numbers all = product(0, 64);
    for (const auto& [first, M] : {std::pair{0, 1}, {5, 8}, {16, 16}, {33, 17}, {63, 1}}) {
      SCOPED_TRACE(fmt::format("{} rows from {}", M, first));
      EXPECT_TRUE(product(first, M) ==
                  Numbers(all.begin() + first * N, all.begin() + (first + M) * N));
    }
  }
}

// More weights than are unpacked at once: slices of them, each with its columns of c.
TEST(CudaQuantised, LargeMatricesAreCutInSlices) {
  HEARTH_NEEDS_A_CARD();
  const int64_t M = 70, N = 40064, K = 1024;
  const std::vector<float> a = exact(M * K, 6), bias = exact(N, 7), prior = exact(M * N, 8);
  for (const DType out : {DType::f32, DType::bf16}) {
    const Packed w(card(), N, K, out == DType::f32 ? WeightFormat::int8 : WeightFormat::int4);
    Held x(card(), {M, K}, DType::bf16), added(card(), {N}, DType::bf16), c(card(), {M, N}, out),
        before(card(), {M, N}, out);
    x.fill(a), added.fill(bias), before.fill(prior);
    const Finish f{.bias = out == DType::bf16, .prior = true, .in_place = true};
    const Numbers got = made(w, x, c, added, before, f);
    Numbers some, want;
    for (int64_t i = 0; i < 3000; ++i) {
      const int64_t at = i * 933, m = at / N, n = at % N;
      double sum = (f.bias ? double(bias[size_t(n)]) : 0) + double(prior[size_t(at)]);
      for (int64_t k = 0; k < K; ++k) sum += double(a[size_t(m * K + k)]) * w.at(n, k);
      some.push_back(got[size_t(at)]), want.push_back(sum);
    }
    EXPECT_LT(error_of(some, want), bar_of(DType::bf16));
    EXPECT_TRUE(made(w, x, c, added, before, f) == got) << "other bits";
  }
}

// Rows normed on their way in are those that the norm's own kernel makes.
TEST(CudaQuantised, ProductsNormTheirRows) {
  HEARTH_NEEDS_A_CARD();
  Backend& b = card();
  for (const auto& [M, N, K] : {std::tuple<int64_t, int64_t, int64_t>{1, 96, 768},
                                {16, 77, 1088},
                                {7, 48, 72},
                                {3, 640, 2048},
                                {9, 33, 40},
                                {15, 2200, 1608},
                                {2, 4300, 264},
                                {33, 77, 1088},
                                {64, 2304, 768}})
    for (const WeightFormat format : packed_formats)
      for (const DType dtype : {DType::bf16, DType::f16})
        for (const Norm kind : {Norm::rms, Norm::layer}) {
          SCOPED_TRACE(fmt::format("{}x{}x{} {} {} {}", M, N, K, to_string(format),
                                   to_string(dtype), kind == Norm::rms ? "rms" : "layer"));
          const bool takes = b.kernels().norm_gemm_takes(b.stream(), M, K, N, dtype);
          // Few rows of f16 are normed before the product, and many are joined on some cards alone.
          if (!takes && (M > 16 || dtype == DType::f16)) continue;
          ASSERT_TRUE(takes);
          const Packed w(b, N, K, format);
          Held x(b, {M, K}, dtype), gain(b, {K}, dtype), shift(b, {K}, dtype), y(b, {M, K}, dtype);
          Held c(b, {M, N}, DType::f32);
          x.fill(exact(M * K, 11)), gain.fill(exact(K, 12)), shift.fill(exact(K, 13));
          const NormSpec norm{.kind = kind, .eps = 1e-5f};
          const Tensor shifts = kind == Norm::layer ? shift.t : Tensor{};
          b.kernels().norm(b.stream(),
                           {.y = y.t, .x = x.t, .gain = gain.t, .bias = shifts, .spec = norm});
          const GemmSpec spec{.tb = true, .weight = true};
          b.kernels().norm_gemm(b.stream(), {.c = c.t,
                                             .x = x.t,
                                             .gain = gain.t,
                                             .shift = shifts,
                                             .b = w.t,
                                             .norm = norm,
                                             .gemm = spec});
          const Numbers want = sums(doubled(y.read()), w.values(N), M, N, K);
          // One rounds the normed rows, the other the weights times the gain.
          EXPECT_LT(error_of(doubled(c.read()), want), dtype == DType::bf16 ? 8e-3 : 1e-3);
        }
}

// A few layers as decoding runs them, each kernel fetching its weights while the one ahead still
// works, and weights unpacked to where others were. Waiting for each changes nothing.
Numbers layers(WeightFormat f, int64_t rows, bool waits) {
  constexpr int64_t C = 768, H = 3072;
  constexpr DType d = DType::bf16;
  Backend& b = card();
  const Packed up(b, H, C, f), down(b, C, H, f);
  Held x(b, {rows, C}, d), gain(b, {C}, d), y(b, {rows, C}, d), h(b, {rows, H}, d);
  x.fill(exact(rows * C, 21)), gain.fill(std::vector<float>(C, 0.25f));
  b.synchronize();
  const Kernels& k = b.kernels();
  const NormSpec norm{.kind = Norm::rms, .eps = 1e-5f};
  const GemmSpec in{.tb = true, .act = Act::gelu_tanh, .weight = true};
  const GemmSpec out{.tb = true, .alpha = 0.125f, .weight = true};
  const auto done = [&] {
    if (waits) b.synchronize();
  };
  for (int layer = 0; layer < 24; ++layer) {
    if (k.norm_gemm_takes(b.stream(), rows, C, H, d)) {
      k.norm_gemm(b.stream(),
                  {.c = h.t, .x = x.t, .gain = gain.t, .b = up.t, .norm = norm, .gemm = in});
    } else {
      k.norm(b.stream(), {.y = y.t, .x = x.t, .gain = gain.t, .spec = norm});
      done();
      k.gemm_quantised(b.stream(), {.c = h.t, .a = y.t, .w = up.t, .spec = in});
    }
    done();
    k.gemm_quantised(b.stream(), {.c = x.t, .a = h.t, .w = down.t, .prior = x.t, .spec = out});
    done();
  }
  return doubled(x.read());
}

TEST(CudaQuantised, KernelsMayOverlap) {
  HEARTH_NEEDS_A_CARD();
  for (const WeightFormat format : packed_formats)
    for (const int64_t rows : {1, 16, 40, 100}) {
      SCOPED_TRACE(fmt::format("{} {} rows", to_string(format), rows));
      const Numbers want = layers(format, rows, true);
      double size = 0;
      for (double v : want) size += std::abs(v);
      EXPECT_TRUE(std::isfinite(size) && size > 0);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(layers(format, rows, false) == want) << i;
    }
}

using Tokens = std::vector<int32_t>;

std::vector<Request> some_requests(int count) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i) {
    Request r{.prompt = tiny_prompt(1 + (i * 37) % 170, i)};
    r.sampling.temperature = 0, r.sampling.max_tokens = 1 + (i * 13) % 40, r.sampling.logprobs = 1;
    all.push_back(r);
  }
  return all;
}

ModelConfig with_tied(ModelConfig c, bool tied) {
  c.tied = tied;
  return c;
}

// A plain model on the CPU of what the weights of a quantised one stand for; its head is its own.
struct Unpacked {
  Unpacked(Backend& cpu, TinyModel& m) : model(cpu, with_tied(m.config, false)) {
    for (const ParamSpec& s : m.params.specs()) {
      if (s.plain()) model.params.set(s.name, m.params.values(Part::weight, s.name));
      const Tensor q = m.params.quantised(s.name);
      if (!q) continue;
      std::vector<std::byte> host(size_t(q.bytes()));
      m.backend.download(host.data(), q.data, q.bytes());
      std::vector<float> w;
      for (int64_t i = 0; i < s.shape.numel(); ++i)
        w.push_back(float(quantised_value(host.data(), i / s.shape[1], i % s.shape[1])));
      model.params.set(s.plain() ? "head.weight" : s.name, w);
    }
  }
  TinyModel model;
};

// Experts are unpacked to the dtype of the rows, so they have the bits of plain weights of that
// dtype. Experts without rows are left out.
TEST(CudaQuantised, GroupsAreThoseOfPlainWeights) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<int> offsets = {0, 3, 3, 4, 21, 21, 150}, every_second = [] {
    std::vector<int> rows;
    for (int i = 0; i < 150; ++i) rows.push_back(i / 2);
    return rows;
  }();
  const int64_t G = int64_t(offsets.size()) - 1, R = offsets.back();
  for (Backend* b : {&card(), &test::consumer_card()})
    for (const WeightFormat format : packed_formats)
      for (const DType dtype : dtypes)
        for (const auto& shape : {std::pair<int64_t, int64_t>{16, 40}, {96, 264}, {144, 77}}) {
          const int64_t N = shape.first, K = shape.second;
          SCOPED_TRACE(fmt::format("{} {} {}x{}", to_string(format), to_string(dtype), N, K));
          const Packed w(*b, G * N, K, format);
          Held a(*b, {75, K}, dtype), plain(*b, {G, N, K}, dtype), c(*b, {R, N}, dtype);
          std::mt19937 random{uint32_t(N)};
          a.fill(exact(75 * K, 4));
          std::vector<float> values;
          for (const double x : w.values(G * N)) values.push_back(float(x));
          plain.fill(values);
          const HeldInts at(*b, offsets), gather(*b, every_second);
          const auto multiplied = [&](const Tensor& weights) {
            c.fill(std::vector<float>(size_t(R * N), NAN));
            b->kernels().grouped_gemm(b->stream(), {.c = c.t,
                                                    .a = a.t,
                                                    .b = weights,
                                                    .offsets = at.t,
                                                    .gather = gather.t,
                                                    .tb = true});
            return c.read();
          };
          EXPECT_EQ(multiplied(w.t), multiplied(plain.t));
        }
}

std::vector<ModelConfig> engine_configs() {
  std::vector<ModelConfig> all = tiny_configs();
  all.push_back(tiny_config());
  // All experts compute every token: a choice could turn on a rounding.
  all.back().moe.experts = all.back().moe.top_k = 4, all.back().moe.shared_experts = 1;
  return all;
}

TEST(CudaQuantised, TheEngineFollowsWhatTheWeightsStandFor) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (ModelConfig c : engine_configs())
    for (const WeightFormat format : packed_formats)
      for (const DType dtype : dtypes) {
        c.context = 256, c.head_dim = 32, c.dim = 128, c.hidden = 160, c.init_std = 0.03f;
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(format), to_string(dtype), int(c.act)));
        TinyModel m(card(), c, 7, dtype, format);
        Unpacked plain(*cpu, m);
        const std::vector<Request> requests = some_requests(24);
        for (const int64_t batch : {1, 8, 24}) {
          const auto all = m.engine({.max_batch = batch}).run(requests);
          double most = 0;
          for (size_t i = 0; i < all.size(); i += 5) {
            const Completion& made = all[i][0];
            Tokens tokens = requests[i].prompt;
            tokens.insert(tokens.end(), made.tokens.begin(), made.tokens.end());
            const std::vector<float> logits = plain.model.all_logits(tokens);
            ASSERT_FALSE(made.tokens.empty());
            for (size_t k = 0; k < made.tokens.size(); ++k) {
              const size_t at = requests[i].prompt.size() + k - 1;
              const std::span row(&logits[at * size_t(c.vocab)], size_t(c.vocab));
              const TokenLogprob own = token_logprob(row, made.tokens[k], 1);
              ASSERT_TRUE(std::isfinite(own.logprob) && std::isfinite(made.logprobs[k].logprob));
              most = std::max({most, double(own.top[0].second - own.logprob),
                               std::abs(double(own.logprob) - double(made.logprobs[k].logprob))});
            }
          }
          EXPECT_LT(most, dtype == DType::f32 ? 1e-3 : 0.06) << "batch of " << batch;
        }
      }
}

}  // namespace
}  // namespace hearth::cases
