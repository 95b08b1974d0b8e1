// Configs and presets: exact parameter counts, JSON, bad values, initialisations, tables.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference/reference.h"
#include "formats/fields.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "sys/error.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(Presets, HaveTheirParameterCounts) {
  const std::pair<const char*, int64_t> counts[] = {
      {"gpt2", 124439808},       {"gpt2-medium", 354823168},   {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},   {"nocap-d12", 123532032},     {"nocap-d24", 353453056},
      {"nocap-d36", 772117760},  {"nocap-d48", 1554971200},    {"modern-124m", 99504384},
      {"llama3-16k", 32257920},  {"speedrun-124m", 275562279}, {"nocap-fast", 275562279},
      {"moe-8x124m", 495939840}, {"moe-64", 963597312},        {"mla-124m", 102160128},
      {"mla-355m", 318302208},   {"mtp-124m", 106881152}};
  for (auto [name, n] : counts) EXPECT_EQ(count_params(preset(name)), n) << name;
  EXPECT_GE(count_params(preset("tiny")), 5'000'000);
  EXPECT_LE(count_params(preset("tiny")), 15'000'000);
}

TEST(Presets, HaveTheirActiveParameterCounts) {
  EXPECT_EQ(count_active_params(preset("gpt2")), 124439808);  // all of a dense model
  EXPECT_EQ(count_active_params(preset("moe-8x124m")), 156201216);
  EXPECT_EQ(count_active_params(preset("moe-64")), 114250752);
}

TEST(Presets, CountMatricesApartFromVectors) {
  for (std::string_view name : preset_names()) {
    const ModelConfig c = preset(name);
    int64_t products = 0;
    for (const ParamSpec& p : decoder_params(c))
      if (p.shape.rank == 2 && !p.name.starts_with("mtp.") && p.name != "positions.weight" &&
          !p.name.ends_with("router.weight") && (c.tied || p.group != Group::embedding))
        products += cases::active_size(c, p);
    EXPECT_EQ(matmul_params(c), products) << name;  // tied: the table counts once, as the head
  }
}

TEST(Presets, NameTheNearest) {
  EXPECT_EQ(message_of([] { preset("nocap-12"); }),
            "[preset] expected a known preset, got \"nocap-12\"; the nearest is nocap-d12");
  EXPECT_EQ(message_of([] { preset("llama"); }),
            "[preset] expected a known preset, got \"llama\"; the nearest is llama3-16k");
  // Far from every name.
  const std::string far = message_of([] { preset("nope"); });
  EXPECT_TRUE(far.starts_with("[preset] expected one of ")) << far;
  EXPECT_TRUE(far.ends_with(", got \"nope\"")) << far;
  EXPECT_EQ(far.find("nearest"), far.npos);
}

TEST(ModelConfig, SurvivesJson) {
  for (const cases::ModelCase& m : cases::model_cases()) {
    ModelConfig back;
    fields_from_json(back, nlohmann::json::parse(fields_to_json(m.config).dump()), "config");
    EXPECT_TRUE(back == m.config) << m.name;
  }
  ModelConfig a, b;
  b.rope_reverse = true;
  EXPECT_FALSE(a == b);
}

TEST(ModelConfig, RefusesUnknownKeysAndWrongTypes) {
  ModelConfig c;
  const auto load = [&](const char* text) {
    return message_of([&] { fields_from_json(c, nlohmann::json::parse(text), "config"); });
  };
  EXPECT_EQ(load(R"({"layrs": 3})"),
            "[config] expected a known key, got \"layrs\"; the nearest is layers");
  EXPECT_EQ(load(R"({"layers": "3"})"), "[config.layers] expected a whole number, got \"3\"");
  EXPECT_EQ(load(R"({"layers": 18446744073709551615})"),
            "[config.layers] expected a whole number in range, got 18446744073709551615");
  EXPECT_EQ(load(R"({"norm_eps": 1e300})"), "[config.norm_eps] expected a number, got 1e+300");
  EXPECT_EQ(load(R"({"tied": 1})"), "[config.tied] expected true or false, got 1");
  EXPECT_EQ(load(R"({"norm": "batch"})"),
            "[config.norm] expected one of layer, rms, got \"batch\"");
  EXPECT_EQ(load("[]"), "[config] expected an object, got []");
}

// A bad name in a file is no wrong call; behind a flag it is.
TEST(ModelConfig, KnowsAWrongFileFromAWrongCall) {
  const auto is_usage = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& e) { return e.usage(); }
    ADD_FAILURE() << "no error";
    return false;
  };
  ModelConfig c;
  EXPECT_FALSE(is_usage([&] { fields_from_json(c, {{"norm", "batch"}}, "config.json"); }));
  EXPECT_TRUE(is_usage([] { parse_enum<Act>("tanh", "--act"); }));
}

TEST(ModelConfig, RefusesNumbersThatDoNotFitTogether) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig c;
    change(c);
    return message_of([&] { c.resolve(); });
  };
  using C = ModelConfig;
  EXPECT_EQ(refusal([](C&) {}), "no error");
  EXPECT_EQ(refusal([](C& c) { c.layers = 0; }),
            "[model] expected layers between 1 and 2^31, got 0");
  EXPECT_EQ(refusal([](C& c) { c.layers = 1'000'000'000; }),
            "[model] expected at most 10000 layers, got 1000000000");
  EXPECT_EQ(refusal([](C& c) { c.heads = 1 << 16, c.head_dim = 1 << 16; }),
            "[model] expected heads * head_dim of at most 2^31, got 65536 * 65536");
  EXPECT_EQ(refusal([](C& c) { c.heads = 7; }), "[model] expected heads to divide dim 768, got 7");
  EXPECT_EQ(refusal([](C& c) { c.kv_heads = 5; }),
            "[model] expected kv_heads to divide 12 heads, got 5");
  EXPECT_EQ(refusal([](C& c) { c.act = Act::none; }),
            "[model] expected an activation for the MLP, got none");
  EXPECT_EQ(refusal([](C& c) { c.rotary = 1.5f; }), "[model] expected rotary in [0, 1], got 1.5");
  EXPECT_EQ(refusal([](C& c) { c.head_dim = 9; }),
            "[model] expected rotary * head_dim to be even and, unless rotary is 0, at least 2, "
            "got 1 * 9");
  EXPECT_EQ(refusal([](C& c) { c.window_pattern = "SX"; }),
            "[model] expected a window_pattern of S and L, got \"SX\"");
  EXPECT_EQ(refusal([](C& c) { c.window_pattern = ""; }),
            "[model] expected a window_pattern of S and L, got \"\"");
  EXPECT_EQ(refusal([](C& c) { c.window = -1; }),
            "[model] expected a window of 0 to 2147483647, got -1");
  EXPECT_EQ(refusal([](C& c) { c.window = int64_t(1) << 32; }),
            "[model] expected a window of 0 to 2147483647, got 4294967296");
  EXPECT_EQ(refusal([](C& c) { c.long_window = -1; }),
            "[model] expected a long_window of 0 to 2147483647, got -1");
  EXPECT_EQ(refusal([](C& c) { c.dropout_mlp = 1; }),
            "[model] expected a dropout_mlp in [0, 1), got 1");
  EXPECT_EQ(refusal([](C& c) { c.dropout_mlp = NAN; }),
            "[model] expected a dropout_mlp in [0, 1), got nan");
  EXPECT_EQ(
      refusal([](C& c) { c.v_head_dim = -1; }),
      "[model] expected a v_head_dim of 0 or more and heads * v_head_dim of at most 2^31, got "
      "-1");
  EXPECT_EQ(refusal([](C& c) { c.mixer_pattern = "AX"; }),
            "[model] expected a mixer_pattern of A and N, got \"AX\"");
  EXPECT_EQ(refusal([](C& c) { c.layers = 2, c.mixer_pattern = "NNA"; }),
            "[model] expected a mixer_pattern with attention in one of 2 layers, got \"NNA\"");
  const auto roped = [](C& c) { c.position = Position::rope, c.rope_scaling = RopeScaling::yarn; };
  EXPECT_EQ(refusal([&](C& c) { roped(c), c.rope_theta = -1; }),
            "[model] expected a rope_theta above 1, got -1");
  EXPECT_EQ(refusal([&](C& c) { roped(c), c.rope_factor = 0; }),
            "[model] expected a rope_factor above 0, got 0");
  EXPECT_EQ(refusal([&](C& c) { roped(c), c.rope_low = 4; }),
            "[model] expected a rope_high above rope_low 4, got 4");
  EXPECT_EQ(refusal([](C& c) { c.logit_softcap = -1; }),
            "[model] expected a logit_softcap of 0 or more, got -1");
  EXPECT_EQ(refusal([](C& c) { c.norm_eps = 0; }), "[model] expected norm_eps above 0, got 0");
  EXPECT_EQ(refusal([](C& c) { c.relative_buckets = 7; }),
            "[model] expected an even number of relative_buckets, at least 2, got 7");
  EXPECT_EQ(refusal([](C& c) { c.relative_buckets = 0; }),
            "[model] expected an even number of relative_buckets, at least 2, got 0");
  EXPECT_EQ(refusal([](C& c) { c.relative_distance = 16; }),
            "[model] expected a relative_distance above 16 (half of relative_buckets) and at most "
            "4096, got "
            "16");
  EXPECT_EQ(refusal([](C& c) { c.relative_distance = 4097; }),
            "[model] expected a relative_distance above 16 (half of relative_buckets) and at most "
            "4096, got "
            "4097");
}

TEST(ModelConfig, DerivesWhatIsLeftOut) {
  ModelConfig c;
  c.dim = 96, c.heads = 6;
  const ModelConfig r = c.resolve();
  EXPECT_EQ(r.kv_heads, 6);
  EXPECT_EQ(r.head_dim, 16);
  EXPECT_EQ(r.hidden, 256);  // 8 * 96 / 3 rounded up
  c.act = Act::relu2;
  EXPECT_EQ(c.resolve().hidden, 384);
  c.window = 5, c.window_pattern = "SSL";
  const std::vector<LayerSpec> layers = layer_specs(c);
  EXPECT_EQ(layers[0].window, 5);
  EXPECT_EQ(layers[2].window, 0);
  EXPECT_EQ(layers[4].window, 5);
}

TEST(Decoder, RefusesSequencesBeyondItsContext) {
  ModelConfig c = cases::model_cases()[0].config;
  Tape t;
  EXPECT_EQ(message_of([&] { decoder(t, c, declare_inputs(t, 1, 13, false), {}); }),
            "[model] expected a sequence of at most 12 tokens, got 13");
}

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments(const ParamSpec& p) {
  std::vector<float> x(size_t(p.shape.numel()));
  draw(x, p.init, 1, p.name);
  Moments m;
  for (float v : x) m.mean += v, m.largest = std::max(m.largest, double(std::abs(v)));
  m.mean /= double(x.size());
  for (float v : x) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(m.deviation / double(x.size()));
  return m;
}

TEST(Initialisation, OfGpt2) {
  for (const ParamSpec& p : decoder_params(preset("gpt2"))) {
    if (p.shape.numel() > 3'000'000 ||
        (p.name.starts_with("blocks.") && !p.name.starts_with("blocks.3.")))
      continue;  // one block and the small tables
    const Moments m = moments(p);
    if (p.shape.rank == 1) {
      EXPECT_EQ(m.mean, p.name.ends_with("gain") ? 1 : 0) << p.name;
      EXPECT_EQ(m.deviation, 0) << p.name;
      continue;
    }
    const bool joins = p.name.ends_with("out.weight") || p.name.ends_with("down.weight");
    const double want = joins ? 0.02 / std::sqrt(24.0) : 0.02;
    EXPECT_NEAR(m.deviation / want, 1, 0.005) << p.name;
    EXPECT_NEAR(m.mean, 0, want * 0.01) << p.name;
  }
  int tables = 0;  // too large to draw here
  for (const ParamSpec& p : decoder_params(preset("gpt2")))
    if (p.name == "embed.weight") {
      ++tables;
      EXPECT_TRUE(p.init == Init::normal(0.02f));
    }
  EXPECT_EQ(tables, 1);
}

TEST(Initialisation, OfNocap) {
  int matrices = 0;
  for (const ParamSpec& p : decoder_params(preset("nocap-d12"))) {
    ASSERT_EQ(p.shape.rank, 2) << p.name << ": this model has nothing but matrices";
    const double bound = 1 / std::sqrt(double(p.shape[1]));
    EXPECT_EQ(p.init, Init::uniform(float(bound))) << p.name;
    if (!p.name.starts_with("blocks.0.")) continue;
    ++matrices;
    const Moments m = moments(p);
    EXPECT_LE(m.largest, bound * 1.000001) << p.name;
    EXPECT_GT(m.largest, bound * 0.999) << p.name;
    EXPECT_NEAR(m.deviation * std::sqrt(3.0) / bound, 1, 0.005) << p.name;
  }
  EXPECT_EQ(matrices, 4);
}

TEST(RopeTable, HoldsCosinesAndSines) {
  ModelConfig c = cases::model_cases()[0].config;  // head_dim 4
  const std::vector<float> table = rope_table(c, 0, c.context);
  ASSERT_EQ(table.size(), size_t(12 * 2 * 2));
  for (int64_t p = 0; p < 12; ++p)
    for (int64_t i = 0; i < 2; ++i) {
      const double angle = double(p) * (i == 0 ? 1.0 : 0.01);
      EXPECT_NEAR(table[size_t((p * 2 + i) * 2)], std::cos(angle), 1e-6);
      EXPECT_NEAR(table[size_t((p * 2 + i) * 2 + 1)], std::sin(angle), 1e-6);
    }
  c.rope_scaling = RopeScaling::linear, c.rope_factor = 4;
  const std::vector<float> slow = rope_table(c, 0, c.context);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(slow[8 * 4 + i], table[2 * 4 + i], 1e-6);
}

// Fast frequencies keep, slow ones are divided: the definition of Llama 3.1 (factor 8, 1, 4, 8192).
TEST(RopeTable, OfLlama3KeepsHighFrequencies) {
  ModelConfig c;
  c.context = 2, c.dim = 128, c.heads = 1, c.rope_theta = 5e5;
  c.rope_scaling = RopeScaling::llama3, c.rope_factor = 8, c.rope_context = 8192;
  const std::vector<float> table = rope_table(c, 0, c.context);
  for (int64_t i = 0; i < 64; ++i) {
    const double f = std::pow(5e5, -double(i) / 64), wavelength = 2 * M_PI / f;
    double want = f;
    if (wavelength > 8192.0)
      want = f / 8;
    else if (wavelength > 8192.0 / 4) {
      const double smooth = (8192 / wavelength - 1) / 3;
      want = (1 - smooth) * f / 8 + smooth * f;
    }
    EXPECT_NEAR(table[size_t((64 + i) * 2 + 1)], std::sin(want), 1e-6) << i;
  }
}

TEST(Alibi, SlopesOfThePaper) {
  EXPECT_EQ(alibi_slopes(8), (std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f,
                                                 0.0078125f, 0.00390625f}));
  const std::vector<float> six = alibi_slopes(6);  // four of 4 heads, then the odd ones of 8
  const std::vector<float> want{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f};
  EXPECT_EQ(six, want);
}

// 16 + floor(16 log(d / 16) / log 8) from 16 on: bucket 16 + k begins at 16 * 8^(k / 16), rounded
// up.
TEST(Relative, BucketsOfThePaper) {
  const std::vector<int32_t> all = relative_buckets(32, 128);
  ASSERT_EQ(all.size(), 129);
  const int32_t begins[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int32_t d = 0, bucket = 0; d <= 128; ++d) {
    if (d < 16)
      bucket = d;
    else if (bucket < 31 && d == begins[bucket - 15])
      ++bucket;
    EXPECT_EQ(all[size_t(d)], bucket) << d;
  }
  EXPECT_EQ(relative_buckets(6, 12), (std::vector<int32_t>{0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5}));
  EXPECT_EQ(relative_buckets(2, 3), (std::vector<int32_t>{0, 1, 1, 1}));
  // 16 * 16^(4 / 16) is a whole number: bucket 20 begins at 32 exactly.
  const std::vector<int32_t> wide = relative_buckets(32, 256);
  EXPECT_EQ(wide[31], 19);
  EXPECT_EQ(wide[32], 20);
  EXPECT_EQ(wide[64], 24);
  EXPECT_EQ(wide[256], 31);
}

TEST(Relative, HasOneTableForAllLayers) {
  ModelConfig c;
  c.position = Position::none;
  const int64_t without = count_params(c);
  c.position = Position::relative;
  EXPECT_EQ(count_params(c), without + 32 * 12);
  c.relative_buckets = 8, c.heads = 6, c.layers = 3, c.mtp = 1;
  const auto is_table = [](const ParamSpec& p) { return p.name == "relative_bias.weight"; };
  const std::vector<ParamSpec> params = decoder_params(c);
  ASSERT_EQ(std::ranges::count_if(params, is_table), 1);
  const ParamSpec& table = *std::ranges::find_if(params, is_table);
  EXPECT_EQ(table.shape, (Shape{8, 6}));
  EXPECT_EQ(table.group, Group::vector);
}

}  // namespace
}  // namespace hearth
