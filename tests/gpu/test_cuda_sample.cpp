// Tokens drawn on the card against the sampler of the host, over the same logits.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "cuda_case.h"
#include "infer/sampler.h"

namespace hearth::cases {
namespace {

using test::card;

struct Case {
  SamplingSpec spec;
  double uniform;
  std::vector<uint32_t> allowed = {};  // empty: not constrained

  AllowedTokens tokens() const { return {.bits = allowed}; }
};

std::vector<Case> random_cases(size_t n, std::mt19937& random) {
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<Case> r(n);
  for (Case& c : r) {
    c.spec.temperature = random() % 4 == 0 ? 0 : 0.3f + 1.5f * unit(random);
    if (random() % 3 == 0) c.spec.top_k = 1 + random() % 60;
    if (random() % 3 == 0) c.spec.top_p = 0.05f + 0.94f * unit(random);
    if (random() % 3 == 0) c.spec.min_p = 0.3f * unit(random);
    c.spec.logprobs_at_temperature = c.spec.temperature > 0 && random() % 2;
    c.uniform = std::uniform_real_distribution<double>(0, 1)(random);
  }
  return r;
}

std::vector<Drawn> drawn_by(Backend& b, const std::vector<float>& logits, int64_t V, int64_t wide,
                            const std::vector<Case>& cases) {
  std::vector<SampleControls> controls;
  for (const Case& c : cases) {
    const auto u = uint64_t(std::ldexp(c.uniform, 53)) << 11;
    controls.push_back({c.spec.temperature, c.spec.min_p, c.spec.top_p, int32_t(c.spec.top_k),
                        uint32_t(u), uint32_t(u >> 32), c.spec.logprobs_at_temperature,
                        !c.allowed.empty()});
  }
  const size_t words = size_t(V + 31) / 32;
  std::vector<uint32_t> masks(cases.size() * words, 0);
  bool constrains = false;
  for (size_t i = 0; i < cases.size(); ++i) {
    std::ranges::copy(cases[i].allowed, masks.begin() + ptrdiff_t(i * words));
    constrains |= !cases[i].allowed.empty();
  }
  const auto rows = int64_t(cases.size());
  const auto bytes = [](const auto& v) { return int64_t(v.size() * sizeof v[0]); };
  Buffer x(b, bytes(logits), "logits"), c(b, bytes(controls), "controls");
  Buffer d(b, rows * int64_t(sizeof(Drawn)), "drawn"), t(b, rows * 4, "tokens");
  b.upload(x.data(), logits.data(), bytes(logits));
  b.upload(c.data(), controls.data(), bytes(controls));
  Buffer m(b, bytes(masks), "masks");
  b.upload(m.data(), masks.data(), bytes(masks));
  Tensor allowed;
  if (constrains) allowed = {m.data(), {rows, int64_t(words)}, DType::i32};
  b.kernels().sample(b.stream(),
                     {.drawn = {d.data(), {rows, int64_t(sizeof(Drawn))}, DType::u8},
                      .tokens = {t.data(), {rows, 1}, DType::i32},
                      .logits = {x.data(), {rows, wide}, DType::f32},
                      .controls = {c.data(), {rows, int64_t(sizeof(SampleControls))}, DType::u8},
                      .allowed = allowed,
                      .drawable = V,
                      .vocab = V});
  std::vector<Drawn> r(cases.size());
  b.download(r.data(), d.data(), bytes(r));
  std::vector<int32_t> tokens(cases.size());
  b.download(tokens.data(), t.data(), bytes(tokens));
  for (size_t i = 0; i < r.size(); ++i) EXPECT_EQ(tokens[i], r[i].token);
  return r;
}

// The token at this place of what the host would choose from, with room for rounding.
void expect_drawn(const Drawn& got, std::span<const float> row, const Case& c) {
  Sampler sampler(c.spec, {}, 0);
  if (c.spec.temperature == 0) {
    EXPECT_EQ(got.token, sampler.draw(row, 0, {}, c.tokens()));
  } else {
    double total = 0, before = -1, through = 0;
    const auto choices = sampler.choices(row, {}, c.tokens());
    for (const Sampler::Choice& k : choices) total += k.weight;
    double sum = 0;
    for (const Sampler::Choice& k : choices) {
      if (k.token == got.token) before = sum, through = sum + k.weight;
      sum += k.weight;
    }
    ASSERT_GE(before, 0) << "token " << got.token << " cannot be drawn";
    EXPECT_GE(c.uniform * total, before - 1e-4 * total);
    EXPECT_LE(c.uniform * total, through + 1e-4 * total);
  }
  std::vector<float> levels(row.begin(), row.end());
  for (float& x : levels) x /= c.spec.logprobs_at_temperature ? c.spec.temperature : 1;
  const TokenLogprob want = token_logprob(levels, got.token, 1);
  EXPECT_NEAR(got.logprob, want.logprob, 1e-4 * (1 + std::abs(want.logprob)));
  EXPECT_EQ(got.likeliest, want.top[0].first);
  EXPECT_NEAR(got.likeliest_logprob, want.top[0].second, 1e-4);
}

TEST(CudaSample, DrawsWhatTheHostWouldDraw) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random{11};
  for (const auto& [V, wide] : {std::pair<int64_t, int64_t>{1, 64},
                                {2, 64},
                                {31, 64},
                                {257, 320},
                                {258, 322},
                                {5000, 5056},
                                {50257, 50304},
                                {50258, 50304}}) {
    const int64_t rows = V % 2 ? 64 : 130;  // few, and so many that they are weighed before
    const std::vector<Case> cases = random_cases(size_t(rows), random);
    std::vector<float> logits(size_t(rows * wide), 1e9f);  // the padding must not be read
    std::normal_distribution<float> normal(0, 3);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < V; ++i)
        logits[size_t(r * wide + i)] =
            r % 5 ? normal(random) : std::round(normal(random));  // with ties
    const std::vector<Drawn> got = drawn_by(card(), logits, V, wide, cases);
    const std::vector<Drawn> again = drawn_by(card(), logits, V, wide, cases);
    EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(Drawn)), 0);
    for (size_t r = 0; r < got.size(); ++r) {
      SCOPED_TRACE(fmt::format("V {} row {} temperature {} top_k {} top_p {} min_p {}", V, r,
                               cases[r].spec.temperature, cases[r].spec.top_k, cases[r].spec.top_p,
                               cases[r].spec.min_p));
      expect_drawn(got[r], std::span(logits).subspan(r * size_t(wide), size_t(V)), cases[r]);
    }
  }
}

// Rows under a constraint draw from what it allows; the rows between them keep their bits, and
// log-probabilities are those of all tokens.
TEST(CudaSample, DrawsUnderConstraints) {
  HEARTH_NEEDS_A_CARD();
  std::mt19937 random{12};
  for (const auto& [V, wide] : {std::pair<int64_t, int64_t>{2, 64},
                                {31, 64},
                                {257, 320},
                                {258, 322},
                                {50257, 50304},
                                {50258, 50304}}) {
    const int64_t rows = V % 2 ? 64 : 130;
    std::vector<Case> cases = random_cases(size_t(rows), random), free = cases;
    for (size_t r = 0; r < cases.size(); ++r) {
      if (r % 3 == 0) continue;
      Case& c = cases[r];
      c.spec.logprobs_at_temperature = false;  // the host draws those
      c.allowed.assign(size_t(V + 31) / 32, 0);
      const uint64_t few = r % 2 ? 1 : uint64_t(V) / 3 + 1;  // one token, or many
      for (uint64_t n = 0; n < few; ++n) {
        const uint64_t id = random() % uint64_t(V);
        c.allowed[id / 32] |= 1u << id % 32;
      }
    }
    std::vector<float> logits(size_t(rows * wide), 1e9f);
    std::normal_distribution<float> normal(0, 20);  // an allowed token may be very unlikely
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < V; ++i)
        logits[size_t(r * wide + i)] = r % 5 ? normal(random) : std::round(normal(random));
    const std::vector<Drawn> got = drawn_by(card(), logits, V, wide, cases);
    const std::vector<Drawn> plain = drawn_by(card(), logits, V, wide, free);
    for (size_t r = 0; r < got.size(); ++r) {
      SCOPED_TRACE(fmt::format("V {} row {} temperature {}", V, r, cases[r].spec.temperature));
      expect_drawn(got[r], std::span(logits).subspan(r * size_t(wide), size_t(V)), cases[r]);
      EXPECT_TRUE(!cases[r].allowed.empty() || std::memcmp(&got[r], &plain[r], sizeof(Drawn)) == 0);
    }
  }
}

}  // namespace
}  // namespace hearth::cases
