// The architecture choices of fast recipes: what they start from and the formulas they stand for.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

const ParamSpec& param_of(const std::vector<ParamSpec>& all, const std::string& name) {
  for (const ParamSpec& p : all)
    if (p.name == name) return p;
  throw std::runtime_error("no parameter " + name);
}

ModelConfig small() {
  ModelConfig c;
  c.vocab = 19, c.context = 12, c.layers = 2, c.dim = 16, c.heads = 4, c.hidden = 20;
  c.tied = false;
  return c;
}

TEST(Architecture, ProjectionsAndHeadMayStartAtZero) {
  ModelConfig c = small();
  c.zero_projections = true, c.embed_std = 1;
  std::vector<ParamSpec> all = decoder_params(c);
  for (const char* name : {"blocks.0.attn.out.weight", "blocks.1.mlp.down.weight"})
    EXPECT_EQ(param_of(all, name).init, Init::zeros()) << name;
  for (const char* name : {"blocks.0.attn.qkv.weight", "blocks.1.mlp.up.weight", "head.weight"})
    EXPECT_EQ(param_of(all, name).init, Init::normal(0.02f)) << name;
  EXPECT_EQ(param_of(all, "embed.weight").init, Init::normal(1));
  c.zero_head = true;
  all = decoder_params(c);
  EXPECT_EQ(param_of(all, "head.weight").init, Init::zeros());
  c.tied = true;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] zero_head needs an untied head: a tied one is the embedding; set tied to "
            "false");
}

TEST(Architecture, SkipsJoinMirroredLayers) {
  ModelConfig c = small();
  c.layers = 6, c.u_skips = true;
  const auto skips = [&] {
    std::vector<int64_t> all;
    for (const LayerSpec& l : layer_specs(c)) all.push_back(l.skip);
    return all;
  };
  // The middle of the U would be a layer's own input.
  EXPECT_EQ(skips(), (std::vector<int64_t>{-1, -1, -1, -1, 1, 0}));
  c.layers = 5;
  EXPECT_EQ(skips(), (std::vector<int64_t>{-1, -1, -1, 1, 0}));
  c.u_skips = false, c.x0_skip = true;
  EXPECT_EQ(skips(), std::vector<int64_t>(5, -1));
  EXPECT_FALSE(layer_specs(c)[0].x0);
  EXPECT_TRUE(layer_specs(c)[1].x0);
  const std::vector<ParamSpec> all = decoder_params(c);
  EXPECT_EQ(param_of(all, "blocks.1.mix.x").init, Init::ones());
  EXPECT_EQ(param_of(all, "blocks.1.mix.x0").init, Init::zeros());
  EXPECT_EQ(param_of(all, "blocks.1.mix.x0").group, Group::vector);
}

TEST(Architecture, ValueEmbeddingsAreSharedByTheFirstAndTheLastLayers) {
  ModelConfig c = small();
  c.layers = 5, c.value_embeds = 2, c.value_residual = true, c.mixer_pattern = "NAAAA";
  std::vector<int64_t> tables;
  std::vector<bool> first;
  for (const LayerSpec& l : layer_specs(c))
    tables.push_back(l.value_embed), first.push_back(l.value_residual);
  EXPECT_EQ(tables, (std::vector<int64_t>{-1, 1, -1, 0, 1}));
  EXPECT_EQ(first, (std::vector<bool>{false, false, true, true, true}));
  const ParamSpec table = param_of(decoder_params(c), "value_embeds.1.weight");
  EXPECT_EQ(table.shape, (Shape{19, 16}));
  EXPECT_EQ(table.group, Group::embedding);
  c.value_embeds = 3;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] expected value_embeds of 0 to half of the 5 layers, got 3");
}

TEST(Architecture, BigramsHaveBucketsOfTheirOwn) {
  EXPECT_EQ(bigram_bucket(-1, 7, 100), 99);  // no token before
  int distinct = 0;
  std::vector<bool> seen(99);
  for (int32_t before = 0; before < 20; ++before)
    for (int32_t token = 0; token < 20; ++token) {
      const int32_t bucket = bigram_bucket(before, token, 100);
      ASSERT_GE(bucket, 0);
      ASSERT_LT(bucket, 99);
      distinct += !seen[size_t(bucket)], seen[size_t(bucket)] = true;
    }
  EXPECT_GT(distinct, 80);
}

TEST(Architecture, RefusesEmbeddingsThatCannotWork) {
  ModelConfig c = small();
  c.smear = true, c.position = Position::learned;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] smear mixes token embeddings and does not work with learned positions");
  c = small(), c.bigram_embeds = 1;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] expected bigram_embeds of 0, or between 2 and 2^31 - 1, got 1");
  c.bigram_embeds = 9, c.window = 1;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] smear and bigram_embeds need windows of at least 2 tokens, got 1");
  c = small(), c.gate_inputs = 17;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] expected gate_inputs from 0 to dim 16, got 17");
  c.gate_inputs = 16;
  EXPECT_EQ(c.resolve().gate_inputs, 0);  // all of them
}

TEST(Architecture, RefusesKeyOffsetsThatCannotWork) {
  const auto refusal = [](auto change) {
    ModelConfig c = small();
    c.rotary = 0.5f, c.key_offset_pattern = "NO";
    change(c);
    return message_of([&] { c.resolve(); });
  };
  using C = ModelConfig&;
  EXPECT_EQ(refusal([](C) {}), "no error");
  EXPECT_EQ(refusal([](C c) { c.key_offset_pattern = "YES"; }),
            "[model] expected a key_offset_pattern of O and N, got \"YES\"");
  for (const char* rotary : {"0", "1"})
    EXPECT_EQ(refusal([&](C c) { c.rotary = float(*rotary - '0'); }),
              "[model] key_offset_pattern needs keys that RoPE rotates in part: expected rotary "
              "between 0 and 1, got " +
                  std::string(rotary));
  EXPECT_EQ(refusal([](C c) { c.position = Position::alibi; }),
            "[model] expected position rope with a key_offset_pattern, got alibi");
  EXPECT_EQ(refusal([](C c) { c.long_window = 1; }),
            "[model] key_offset_pattern needs windows of at least 2 tokens, got 1");
  EXPECT_EQ(
      refusal([](C c) { c.rope_pattern = "RN"; }),
      "[model] expected no layer with O in key_offset_pattern and N in rope_pattern, got layer 1");
  EXPECT_EQ(refusal([](C c) { c.mixer_pattern = "AN"; }),
            "[model] expected a key_offset_pattern with O in a layer with attention, got \"NO\"");
  EXPECT_EQ(
      refusal([](C c) { c.rotary = 1, c.mla = {.kv_latent = 10, .nope_dim = 3, .rope_dim = 4}; }),
      "[model] latent attention needs no O in key_offset_pattern (got NO)");
}

TEST(Architecture, RefusesScalesThatAreNoNumbers) {
  ModelConfig c = small();
  c.score_scale = -1;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] expected a score_scale of 0 or more, got -1");
  c = small(), c.logit_scale = 0;
  EXPECT_EQ(message_of([&] { c.resolve(); }), "[model] expected a logit_scale above 0, got 0");
  c = small(), c.embed_std = NAN;
  EXPECT_EQ(message_of([&] { c.resolve(); }),
            "[model] expected an embed_std of 0 or more, got nan");
}

// The losses of a model with its head's scale and softcap are those of 30 sigmoid(x / (7.5 sqrt
// d)): the two logits differ by the constant 15, which a softmax does not see.
TEST(Architecture, ScaleAndSoftcapGiveTheSigmoidForm) {
  const auto backend = make_reference_backend();
  cases::ModelCase plain{"plain", small()}, capped = plain;
  plain.config.init_std = capped.config.init_std = 0.5f;
  capped.config.logit_softcap = 15;
  capped.config.logit_scale = float(1 / std::sqrt(double(capped.config.dim)));
  const int64_t B = 1, T = 6, V = plain.config.vocab;
  const cases::ModelRunSpec spec{.dtype = DType::f64, .B = B, .T = T};
  cases::ModelRun run(*backend, capped, spec);
  const Batch batch = cases::make_batch(capped.config, B, T, false);
  run.feed(batch);
  run.run();
  const cases::Numbers nll = run.nll();

  // The plain logits, from the same weights.
  Memory memory(*backend, &run.params());
  Tape t(DType::f64);
  const Var x = decoder(t, plain.config, declare_inputs(t, B, T, false), {});
  const Var y = linear(t, t.view(x, {T, plain.config.dim}), head_weight(t, plain.config));
  const Var out = t.result("logits", {T, V}, DType::f64);
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out o) { f(s, {.y = o[0], .x = in[0]}); }),
         {y}, {out});
  Exec exec(std::move(t), memory);
  memory.state.write<int32_t>("main.tokens", batch.tokens);
  memory.state.write<int32_t>("main.positions", batch.positions);
  exec.run();
  const cases::Numbers logits = cases::read(*backend, memory.state.find("main.logits"));
  const double slope = 7.5 * std::sqrt(double(plain.config.dim));
  for (int64_t i = 0; i < T; ++i) {
    const int32_t target = batch.targets[size_t(i)];
    if (target < 0) continue;
    const auto capped_at = [&](int64_t v) {
      return 30 / (1 + std::exp(-logits[size_t(i * V + v)] / slope));
    };
    double sum = 0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(capped_at(v));
    EXPECT_NEAR(nll[size_t(i)], std::log(sum) - capped_at(target), 1e-6) << i;
  }
}

}  // namespace
}  // namespace hearth
