// The loss of an untrained nocap-d12 on real tokens, against its definition written out in double.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cpu/backend.h"
#include "test_data.h"
#include "train/pretrain/programs.h"

namespace hearth {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t T = 16, C = 768, layers = 12, heads = 12, D = 64, V = 50257;

Numbers rms(Numbers x) {
  for (auto row = x.begin(); row != x.end(); row += C) {
    const double square = std::inner_product(row, row + C, row, 0.0);
    for (int64_t i = 0; i < C; ++i) row[i] /= std::sqrt(square / double(C) + 1e-6);
  }
  return x;
}

// x W^T of weights (out, in).
Numbers times(const Numbers& x, const std::vector<float>& w) {
  const int64_t in = int64_t(x.size()) / T, out = int64_t(w.size()) / in;
  Numbers y(size_t(T * out));
  for (int64_t o = 0; o < out; ++o)
    for (int64_t t = 0; t < T; ++t) {
      const auto row = w.begin() + o * in;
      y[size_t(t * out + o)] = std::inner_product(row, row + in, x.begin() + t * in, 0.0);
    }
  return y;
}

// Rotates one head at position t. The pairs are the two halves, and the angle is negative.
void turn(double* x, int64_t t) {
  for (int64_t i = 0; i < D / 2; ++i) {
    const double angle = double(t) * std::pow(10000.0, -2.0 * double(i) / double(D));
    const double a = x[i], b = x[i + D / 2];
    x[i] = a * std::cos(angle) + b * std::sin(angle);
    x[i + D / 2] = b * std::cos(angle) - a * std::sin(angle);
  }
}

// Causal attention over qkv (T, 3, heads, D).
Numbers attended(Numbers qkv) {
  const auto at = [&](int64_t t, int64_t part, int64_t h) {
    return &qkv[size_t(((t * 3 + part) * heads + h) * D)];
  };
  Numbers y(size_t(T * C));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < T; ++t) turn(at(t, 0, h), t), turn(at(t, 1, h), t);
    for (int64_t t = 0; t < T; ++t) {
      Numbers weight(size_t(t + 1));
      for (int64_t s = 0; s <= t; ++s)
        weight[size_t(s)] = std::exp(
            std::inner_product(at(t, 0, h), at(t, 0, h) + D, at(s, 1, h), 0.0) / std::sqrt(D));
      const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (int64_t s = 0; s <= t; ++s)
        for (int64_t i = 0; i < D; ++i)
          y[size_t(t * C + h * D + i)] += weight[size_t(s)] / sum * at(s, 2, h)[i];
    }
  }
  return y;
}

double loss_by_definition(ParamStore& params, const Batch& batch) {
  const auto weights = [&](const std::string& name) { return params.values(Part::weight, name); };
  const auto add = [](Numbers& x, const Numbers& y, double scale) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += scale * y[i];
  };
  const std::vector<float> table = weights("embed.weight");
  Numbers x;
  for (const int32_t id : batch.tokens)
    x.insert(x.end(), table.begin() + id * C, table.begin() + (id + 1) * C);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    const Numbers y = attended(times(rms(x), weights(block + "attn.qkv.weight")));
    add(x, times(y, weights(block + "attn.out.weight")), 1 / std::sqrt(2.0 * layers));
    Numbers hidden = times(rms(x), weights(block + "mlp.up.weight"));
    for (double& h : hidden) h *= 0.5 * (1 + std::erf(h / std::sqrt(2.0)));
    add(x, times(hidden, weights(block + "mlp.down.weight")), 1);
  }
  const Numbers logits = times(rms(x), table);
  double loss = 0;
  for (int64_t t = 0; t < T; ++t) {
    double sum = 0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[size_t(t * V + v)]);
    loss += std::log(sum) - logits[size_t(t * V + batch.targets[size_t(t)])];
  }
  return loss / T;
}

TEST(Nocap, StartsAtTheLossOfItsDefinition) {
  const ProgramSpec spec{.model = preset("nocap-d12"), .B = 1, .T = T};
  ASSERT_EQ(spec.model.vocab, V);
  Batch batch;
  Loader({.files = {test::test_data("tokens/novels.bin")},
          .batch = spec.B,
          .seq = spec.T,
          .vocab = spec.model.vocab})
      .next(batch);
  const auto backend = make_cpu_backend(0);
  ParamStore params(*backend, decoder_params(spec.model), DType::f32);
  params.initialise(1);
  Memory memory(*backend, &params);
  Programs programs(spec, memory);
  const double want = loss_by_definition(params, batch);
  EXPECT_NEAR(programs.evaluate(batch), want, 1e-5);
  Scalars s;
  s.inv_targets = 1 / float(batch.count);
  programs.micro(batch, s, true);
  EXPECT_NEAR(programs.loss(), want, 1e-5);
}

}  // namespace
}  // namespace hearth
