// What each layer of a model is, and everything that is counted from it: parameters, FLOPs, cache.
#include <gtest/gtest.h>

#include "model/decoder.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

TEST(LayerSpecs, FollowTheConfig) {
  ModelConfig c = tiny_config();
  c.layers = 3, c.window = 5, c.window_pattern = "SL", c.act = Act::relu2;
  const std::vector<LayerSpec> layers = layer_specs(c);
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0], layers[2]);
  EXPECT_EQ(layers[0].window, 5);
  EXPECT_EQ(layers[1].window, 0);
  EXPECT_TRUE(layers[0].rope);
  EXPECT_EQ(layers[0].qkv_size(), (4 + 2 + 2) * 4);
  EXPECT_EQ(layers[0].y_size(), 16);
  EXPECT_EQ(layers[0].up_size(), 24);
  EXPECT_EQ(widest_window(c), 0);
  c.long_window = 9;
  EXPECT_EQ(layer_specs(c)[1].window, 9);
  EXPECT_EQ(widest_window(c), 9);
  c.window_pattern = "S";
  EXPECT_EQ(widest_window(c), 5);
  c.position = Position::learned;
  EXPECT_FALSE(layer_specs(c)[0].rope);
}

TEST(LayerSpecs, MayHaveValuesOfAnotherWidth) {
  ModelConfig c = tiny_config();
  c.v_head_dim = 7;
  const LayerSpec l = layer_specs(c)[0];
  EXPECT_EQ(l.qk_dim, 4);
  EXPECT_EQ(l.v_dim, 7);
  EXPECT_EQ(l.qkv_size(), (4 + 2) * 4 + 2 * 7);
  EXPECT_EQ(l.y_size(), 4 * 7);
  EXPECT_EQ(l.cache(CacheFormat::plain, DType::bf16).block_bytes(), cache_block * 2 * (4 + 7) * 2);
  EXPECT_EQ(l.cache(CacheFormat::fp8, DType::bf16).block_bytes(), cache_block * 2 * (5 + 8));
  EXPECT_EQ(train_flops_per_token(c, 64) - 6.0 * double(matmul_params(c)),
            2 * 6.0 * mean_keys(64, 0) * 4 * (4 + 7));
  c.v_head_dim = 4;
  EXPECT_EQ(c.resolve().v_head_dim, 0);  // as head_dim
}

TEST(LayerSpecs, MayOffsetKeys) {
  ModelConfig c = tiny_config();
  const int64_t plain = cache_block_bytes(c, CacheFormat::fp8, DType::bf16);
  c.layers = 5, c.rotary = 0.5f, c.key_offset_pattern = "NOO", c.mixer_pattern = "AANAA";
  c.mtp = 1;
  EXPECT_EQ(c.resolve().key_offset_pattern, "NONNO");  // the third layer has no keys
  std::vector<int64_t> offsets;
  for (const LayerSpec& l : layer_specs(c)) offsets.push_back(l.key_offset);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 2, 0, 0, 2}));
  EXPECT_EQ(mtp_layer(c).key_offset, 0);
  // Beside four layers of keys and values, two of offset keys as they were, in full precision.
  EXPECT_EQ(cache_block_bytes(c, CacheFormat::fp8, DType::bf16),
            2 * plain + 2 * cache_block * 2 * 2 * 2);
  c.key_offset_pattern = "N", c.rotary = 1;
  EXPECT_EQ(c.resolve().key_offset_pattern, "");
}

TEST(LayerSpecs, MayHaveNoAttention) {
  ModelConfig c = tiny_config();
  c.layers = 5, c.mixer_pattern = "NA", c.window = 7;
  EXPECT_EQ(c.resolve().mixer_pattern, "NANAN");
  const std::vector<LayerSpec> layers = layer_specs(c);
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i].attends(), i % 2 == 1);
    EXPECT_EQ(bool(layers[i].cache(CacheFormat::plain, DType::f32)), i % 2 == 1);
    EXPECT_EQ(layers[i].hidden, 24);
  }
  EXPECT_EQ(widest_window(c), 7);  // layers without attention look nowhere
  ModelConfig two = c;
  two.layers = 2, two.mixer_pattern = "A";
  EXPECT_EQ(cache_block_bytes(c, CacheFormat::plain, DType::f32),
            cache_block_bytes(two, CacheFormat::plain, DType::f32));
  const double attention = train_flops_per_token(c, 64) - 6.0 * double(matmul_params(c));
  EXPECT_EQ(attention, train_flops_per_token(two, 64) - 6.0 * double(matmul_params(two)));
  c.mixer_pattern = "AAA";
  EXPECT_EQ(c.resolve().mixer_pattern, "");
}

// A product of the model is a matrix, but the head may be the table of tokens.
TEST(LayerSpecs, CountTheMatricesThatTheDecoderRecords) {
  for (const cases::ModelCase& m : cases::model_cases()) {
    ModelConfig c = m.config;
    c.lora = {};
    int64_t products = c.vocab * c.dim;
    for (const ParamSpec& p : decoder_params(c))
      if (p.group == Group::matrix && !p.name.starts_with("mtp."))
        products += cases::active_size(c, p);
    EXPECT_EQ(matmul_params(c), products) << m.name;
  }
}

// Files hold parameters in this order, on every machine and with every compiler.
TEST(LayerSpecs, ParametersAreDeclaredInOneOrder) {
  ModelConfig c;
  c.vocab = 32, c.dim = 16, c.layers = 1, c.heads = 2, c.context = 8;
  c.position = Position::learned, c.norm = Norm::layer, c.act = Act::gelu_tanh;
  c.norm_bias = c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.output_gate = OutputGate::elementwise, c.tied = false;
  std::string names;
  for (const ParamSpec& p : decoder_params(c)) names += p.name + "\n";
  EXPECT_EQ(names,
            "positions.weight\nembed.weight\n"
            "blocks.0.attn.norm.gain\nblocks.0.attn.norm.bias\n"
            "blocks.0.attn.qkv.weight\nblocks.0.attn.qkv.bias\n"
            "blocks.0.attn.gate.weight\nblocks.0.attn.gate.bias\n"
            "blocks.0.attn.out.bias\nblocks.0.attn.out.weight\n"
            "blocks.0.mlp.norm.gain\nblocks.0.mlp.norm.bias\n"
            "blocks.0.mlp.up.weight\nblocks.0.mlp.up.bias\n"
            "blocks.0.mlp.down.bias\nblocks.0.mlp.down.weight\n"
            "final_norm.gain\nfinal_norm.bias\nhead.weight\n");
}

// The blocks of a cache are what the states of a program hold.
TEST(LayerSpecs, CountTheCacheThatTheDecoderRecords) {
  for (const cases::ModelCase& m : cases::model_cases())
    for (const CacheFormat format : {CacheFormat::plain, CacheFormat::fp8}) {
      constexpr int64_t blocks = 3;
      if (m.config.mla && format == CacheFormat::fp8) continue;  // refused
      Tape t(DType::bf16);
      t.trains = false;
      DecoderInputs in = declare_inputs(t, 1, 4, false);
      in.sequences = t.input("sequences", {1, 4}, DType::i32);
      in.tables = t.input("tables", {1, 1}, DType::i32);
      decoder(t, m.config, in, {.cache_blocks = blocks, .cache = format});
      int64_t bytes = 0;
      for (const Value& v : t.values)
        if (v.name.starts_with("cache.")) bytes += v.shape.numel() * size_of(v.dtype);
      EXPECT_EQ(bytes, blocks * cache_block_bytes(m.config, format, DType::bf16)) << m.name;
      EXPECT_GT(bytes, 0) << m.name;
    }
}

}  // namespace
}  // namespace hearth
