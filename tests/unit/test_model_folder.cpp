// Model folders: what is saved comes back to the bit, in the layout that others read.
#include "model/files/folder.h"

#include <cmath>
#include <cstring>

#include "core/exec.h"
#include "formats/json.h"
#include "model/decoder.h"
#include "unit/model_folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

std::string model_type_of(const ModelConfig& c) {
  return json::parse(hf_config_json(c, DType::f32, -1, -1)).at("model_type");
}

void expect_round_trip(const ModelConfig& c, std::string_view type) {
  SCOPED_TRACE(hf_config_json(c, DType::f32, 1, 2));
  EXPECT_EQ(model_type_of(c), type);
  TempDir dir;
  Weights a(c), b(c);
  fill(a.params);
  save(dir / "m", c, a.params);
  const ModelSource source = ModelSource::open(dir / "m");
  EXPECT_TRUE(source.config() == c.resolve());
  EXPECT_EQ(source.path(), dir / "m");
  EXPECT_TRUE(source.tokenizer().empty());
  source.load(b.params);
  expect_same_params(a.params, b.params);
}

TEST(ModelFolder, RoundTripsHuggingFaceShapes) {
  ModelConfig c = gpt2_like();
  expect_round_trip(c, "gpt2");
  c.tied = false, c.act = Act::gelu_erf, c.hidden = 33, c.norm_eps = 1e-6f;
  expect_round_trip(c, "gpt2");

  expect_round_trip(llama_like(), "llama");
  c = llama_like();
  c.tied = false, c.qkv_bias = c.out_bias = c.mlp_bias = true, c.act = Act::reglu;
  c.rope_scaling = RopeScaling::llama3, c.rope_factor = 8, c.rope_context = 16;
  expect_round_trip(c, "llama");
  c.rope_scaling = RopeScaling::yarn, c.rope_factor = 2.5f, c.rope_high = 32;
  expect_round_trip(c, "llama");
  c.rope_scaling = RopeScaling::linear, c.rope_low = 1, c.rope_high = 4, c.rope_context = 0;
  expect_round_trip(c, "llama");

  c = llama_like();
  c.window = 3;
  expect_round_trip(c, "mistral");
  c.mlp_bias = true;
  expect_round_trip(c, "smollm3");

  expect_round_trip(qwen3_like(), "qwen3");
  c = qwen3_like();
  c.tied = false, c.layers = 3, c.window = 5, c.window_pattern = "SSL";
  expect_round_trip(c, "qwen3");
  c.mixer_pattern = "AAA", c.v_head_dim = c.resolve().head_dim;  // what every layer is anyway
  expect_round_trip(c.resolve(), "qwen3");
}

// What the layout has no key for comes back too: it only must not change the numbers.
TEST(ModelFolder, KeepsWhatTheLayoutHasNoKeyFor) {
  ModelConfig c = gpt2_like();
  c.init = WeightInit::fan_in, c.dropout_mlp = 0.25f, c.rope_theta = 77;
  c.zero_projections = true, c.embed_std = 0.5f;
  expect_round_trip(c, "gpt2");
  c = llama_like();
  c.rope_pairs = RopePairs::interleaved;
  c.dropout_embed = 0.125f;
  expect_round_trip(c, "llama");
  c.qkv_bias = true;
  expect_round_trip(c, "qwen2");
  c.mlp_bias = true;  // which qwen2 has not
  expect_round_trip(c, "llama");
  c.mlp_bias = false;
  c.qkv_bias = false, c.out_bias = true;
  c.rope_scaling = RopeScaling::llama3, c.rope_factor = 4;  // of the context itself
  expect_round_trip(c, "llama");
  c.qk_norm = QkNorm::before_rope;
  expect_round_trip(c, "qwen3");
}

TEST(ModelFolder, RoundTripsItsOwnShapes) {
  const auto with = [](ModelConfig c, auto change) {
    change(c);
    return c;
  };
  const ModelConfig l = llama_like();
  using C = ModelConfig&;
  for (const ModelConfig& c : {
           with(l, [](C c) { c.norm_gain = false, c.act = Act::relu2; }),
           with(l, [](C c) { c.position = Position::alibi; }),
           with(l, [](C c) { c.position = Position::relative, c.relative_distance = 40; }),
           with(l, [](C c) { c.position = Position::none, c.norm_place = NormPlace::post; }),
           with(l, [](C c) { c.norm_place = NormPlace::sandwich, c.logit_softcap = 15; }),
           with(l, [](C c) { c.qk_norm = QkNorm::after_rope, c.qk_norm_gain = false; }),
           with(l, [](C c) { c.output_gate = OutputGate::per_head, c.attention_scale = 0.5f; }),
           with(l, [](C c) { c.rope_reverse = true, c.rotary = 0.4f, c.window = 3; }),
           with(l, [](C c) { c.window = 3, c.mlp_bias = true, c.long_window = 5; }),
           with(l, [](C c) { c.rope_pattern = "NR", c.norm = Norm::layer; }),
           with(l, [](C c) { c.parallel_residual = true, c.embed_scale = 3; }),
           with(l, [](C c) { c.norm_place = NormPlace::after; }),
           with(l, [](C c) { c.act = Act::geglu_tanh, c.embed_scale = 2; }),
           with(l, [](C c) { c.v_head_dim = 7; }),
           with(qwen3_like(),
                [](C c) { c.window = 3, c.long_window = 5, c.window_pattern = "SL"; }),
           with(l, [](C c) { c.score_scale = 0.3f, c.embed_norm = true; }),
           with(l, [](C c) { c.logit_scale = 0.5f, c.layers = 4, c.x0_skip = c.u_skips = true; }),
           with(l, [](C c) { c.smear = true, c.bigram_embeds = 11; }),
           with(l, [](C c) { c.rotary = 0.4f, c.key_offset_pattern = "NO"; }),
           with(l, [](C c) { c.output_gate = OutputGate::per_head, c.gate_inputs = 4; }),
           with(l, [](C c) { c.value_embeds = 1, c.value_residual = true; }),
           with(gpt2_like(), [](C c) { c.layers = 3, c.mixer_pattern = "NA"; }),
           with(qwen3_like(), [](C c) { c.mlp_bias = true; }),
           with(gpt2_like(), [](C c) { c.heads = 3, c.kv_heads = 3, c.head_dim = 7; }),
           with(gpt2_like(), [](C c) { c.kv_heads = 2; }),
           with(gpt2_like(), [](C c) { c.mlp_bias = false; }),
       })
    expect_round_trip(c, "hearth");
}

TEST(ModelFolder, TakesPresetsToTheLayoutTheyFit) {
  EXPECT_EQ(model_type_of(preset("gpt2")), "gpt2");
  EXPECT_EQ(model_type_of(preset("nocap-d12")), "hearth");
  EXPECT_EQ(model_type_of(preset("modern-124m")), "qwen3");
  EXPECT_EQ(model_type_of(preset("tiny")), "qwen3");
  EXPECT_EQ(model_type_of(preset("llama3-16k")), "llama");
  EXPECT_EQ(model_type_of(preset("speedrun-124m")), "hearth");
}

TEST(ModelFolder, WritesTheKeysOthersRead) {
  const json g = json::parse(hf_config_json(gpt2_like(), DType::bf16, 36, 36));
  EXPECT_EQ(g.at("architectures"), json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(g.at("dtype"), "bfloat16");
  EXPECT_EQ(g.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(g.at("n_ctx"), 24);
  EXPECT_EQ(g.at("n_positions"), 24);
  EXPECT_EQ(g.at("bos_token_id"), 36);
  EXPECT_FALSE(g.contains("hearth_config"));

  ModelConfig c = llama_like();
  json l = json::parse(hf_config_json(c, DType::f32, -1, 2));
  EXPECT_EQ(l.at("architectures"), json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(l.at("dtype"), "float32");
  EXPECT_TRUE(l.at("bos_token_id").is_null());
  EXPECT_EQ(l.at("rope_theta"), 5e5);
  EXPECT_EQ(l.at("rope_parameters"), (json{{"rope_type", "default"}, {"rope_theta", 5e5}}));
  EXPECT_TRUE(l.at("rope_scaling").is_null());
  EXPECT_EQ(l.at("rms_norm_eps"), 1e-5);  // the decimal, not the float's expansion
  EXPECT_EQ(l.at("head_dim"), 10);
  c.rope_scaling = RopeScaling::llama3, c.rope_factor = 8, c.rope_context = 16;
  l = json::parse(hf_config_json(c, DType::f32, -1, 2));
  EXPECT_EQ(l.at("rope_scaling").at("original_max_position_embeddings"), 16);
  EXPECT_EQ(l.at("rope_parameters").at("factor"), 8);

  const json q = json::parse(hf_config_json(qwen3_like(), DType::f16, 1, 2));
  EXPECT_EQ(q.at("architectures"), json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(q.at("torch_dtype"), "float16");
  EXPECT_EQ(json::parse(hf_generation_config_json(-1, 5)).at("eos_token_id"), 5);
  EXPECT_FALSE(json::parse(hf_generation_config_json(-1, 5)).contains("bos_token_id"));
  EXPECT_EQ(json::parse(hf_generation_config_json(-1, 5, {7, 5})).at("eos_token_id"),
            (std::vector<int>{5, 7}));
}

TEST(ModelFolder, StoresTensorsAsTheHubDoes) {
  const ModelConfig g = gpt2_like();
  Weights w(g);
  fill(w.params);
  TempDir dir;
  save(dir / "g", g, w.params);
  const Safetensors file(dir / "g");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const StoredTensor& fc = file.at("transformer.h.1.mlp.c_fc.weight");
  EXPECT_EQ(fc.shape, (std::vector<int64_t>{20, 80}));  // (in, out)
  const std::vector<float> up = w.params.values(Part::weight, "blocks.1.mlp.up.weight");
  float x = 0;
  std::memcpy(&x, fc.bytes.data() + (3 * 80 + 5) * 4, 4);
  EXPECT_EQ(x, up[5 * 20 + 3]);
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  EXPECT_EQ(file.tensors().size(), 2u + 12 * 2 + 2);

  const ModelConfig l = qwen3_like();  // 6 q heads, 1 k and 1 v of 10
  Weights v(l);
  fill(v.params);
  save(dir / "l", l, v.params);
  const Safetensors llama(dir / "l");
  const std::vector<float> qkv = v.params.values(Part::weight, "blocks.0.attn.qkv.weight");
  const StoredTensor& k = llama.at("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(k.shape, (std::vector<int64_t>{10, 24}));
  EXPECT_EQ(std::memcmp(k.bytes.data(), qkv.data() + 60 * 24, k.bytes.size()), 0);
  EXPECT_EQ(llama.at("model.layers.0.self_attn.q_norm.weight").shape, std::vector<int64_t>{10});
  const std::vector<float> gate_up = v.params.values(Part::weight, "blocks.1.mlp.up.weight");
  const StoredTensor& up_proj = llama.at("model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(std::memcmp(up_proj.bytes.data(), gate_up.data() + 28 * 24, up_proj.bytes.size()), 0);
}

// Final hidden states of a few tokens.
std::vector<float> hidden_states(const ModelConfig& c, ParamStore& p) {
  constexpr int64_t B = 2, T = 7;
  Memory memory(p.backend(), &p);
  Tape t;
  const Var y = decoder(t, c, declare_inputs(t, B, T, false), {});
  const Var out = t.result("out", t.shape(y), DType::f32);
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out o) { f(s, {.y = o[0], .x = in[0]}); }),
         {y}, {out});
  Exec exec(std::move(t), memory);
  std::vector<int32_t> tokens, positions;
  for (int32_t i = 0; i < B * T; ++i) tokens.push_back(i * 11 % 31), positions.push_back(i % T);
  memory.state.write<int32_t>("main.tokens", tokens);
  memory.state.write<int32_t>("main.positions", positions);
  exec.run();
  std::vector<float> v(size_t(B * T * c.dim));
  memory.state.read<float>("main.out", v);
  return v;
}

// The rows of interleaved heads are written so that a half-split reader computes the same.
TEST(ModelFolder, InterleavedHeadsAreWrittenHalfSplit) {
  ModelConfig c = qwen3_like();
  c.rope_pairs = RopePairs::interleaved, c.qkv_bias = true;
  Weights a(c);
  fill(a.params);
  TempDir dir;
  save(dir / "m", c, a.params);
  json config = read_json(dir / "m" / "config.json");
  EXPECT_EQ(config.at("hearth_config"), (json{{"rope_pairs", "interleaved"}, {"out_bias", false}}));
  config.erase("hearth_config");  // as any other program reads it
  write_file_atomic(dir / "m" / "config.json", config.dump());

  const ModelSource plain = ModelSource::open(dir / "m");
  EXPECT_EQ(plain.config().rope_pairs, RopePairs::half);
  EXPECT_TRUE(plain.config().out_bias);
  Weights b(plain.config());
  plain.load(b.params);
  EXPECT_NE(a.params.values(Part::weight, "blocks.0.attn.qkv.weight"),
            b.params.values(Part::weight, "blocks.0.attn.qkv.weight"));
  const std::vector<float> x = hidden_states(c, a.params);
  const std::vector<float> y = hidden_states(plain.config(), b.params);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-5) << i;

  c.rope_pairs = RopePairs::half;  // the same weights read otherwise are another model
  const std::vector<float> z = hidden_states(c, a.params);
  double far = 0;
  for (size_t i = 0; i < x.size(); ++i) far = std::max(far, std::abs(double(x[i] - z[i])));
  EXPECT_GT(far, 1e-2);
}

TEST(ModelFolder, ReadsAndWritesEveryFloatType) {
  const ModelConfig c = llama_like();
  Weights a(c);
  fill(a.params);
  TempDir dir;
  const auto loaded = [&](DType d) {
    save(dir / to_string(d), c, a.params, d);
    Weights b(c);
    ModelSource::open(dir / to_string(d)).load(b.params);
    return b.params.values(Part::weight, "embed.weight");
  };
  const std::vector<float> exact = a.params.values(Part::weight, "embed.weight");
  EXPECT_EQ(loaded(DType::f64), exact);
  const std::vector<float> b = loaded(DType::bf16), h = loaded(DType::f16);
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(b[i], float(bf16(exact[i])));
    ASSERT_EQ(h[i], float(f16(exact[i])));
  }
}

TEST(ModelFolder, SavesMasterWeights) {
  const ModelConfig c = llama_like();
  Weights a(c, DType::bf16), b(c);
  fill(a.params);
  TempDir dir;
  save(dir / "m", c, a.params);
  ModelSource::open(dir / "m").load(b.params);
  EXPECT_EQ(a.params.values(Part::master, "embed.weight"),
            b.params.values(Part::weight, "embed.weight"));
}

// The layout has no key for a bias of one projection alone, so the others are written as zeros.
TEST(ModelFolder, SavesZeroBiasesBesideMasterWeights) {
  ModelConfig c = llama_like();
  c.out_bias = true;
  for (const DType d : {DType::bf16, DType::f32}) {
    Weights a(c, DType::bf16), b(c);
    fill(a.params);
    TempDir dir;
    save(dir / "m", c, a.params, d);
    ModelSource::open(dir / "m").load(b.params);
    for (const ParamSpec& s : b.params.specs())
      EXPECT_EQ(a.params.values(d == DType::f32 ? Part::master : Part::weight, s.name),
                b.params.values(Part::weight, s.name))
          << s.name;
  }
}

TEST(ModelFolder, ReadsShards) {
  const ModelConfig c = llama_like();
  Weights a(c), b(c);
  fill(a.params);
  TempDir dir;
  save(dir / "m", c, a.params, DType::f32, 8000);
  EXPECT_TRUE(fs::exists(dir / "m" / "model.safetensors.index.json"));
  EXPECT_GT(test::names_in(dir / "m"), 5);
  ModelSource::open(dir / "m").load(b.params);
  expect_same_params(a.params, b.params);
}

TEST(ModelFolder, FindsTheTokenizer) {
  const ModelConfig c = llama_like();
  Weights a(c);
  TempDir dir;
  save(dir / "m", c, a.params);
  write_file_atomic(dir / "m" / "tokenizer.json", "{}");
  EXPECT_EQ(ModelSource::open(dir / "m").tokenizer(), dir / "m");
}

}  // namespace
}  // namespace hearth
