// longrope: frequencies and tables by their formula, the list that each length uses in training, in
// the engine and in evaluation, files in both directions, and what is refused.
#include <cmath>
#include <optional>

#include "eval/score.h"
#include "family_reference.h"
#include "formats/json.h"
#include "model/files/folder.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_model.h"
#include "model/layer_spec.h"
#include "train/pretrain/batch_shape.h"
#include "unit/family_keys.h"
#include "unit/infer_model.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::json;
using test::error_of;
using test::expect_error;
using test::FamilyReference;
using test::long_rope_keys;
using test::TempDir;

ModelConfig read(const json& j) { return config_from_hf_json(j, "config.json"); }

// --- the formula ---

TEST(LongRope, DividesTheFrequenciesByTheListOfTheLength) {
  ModelConfig c;
  c.context = 4096, c.dim = 24, c.heads = 2, c.rotary = 0.5f, c.rope_theta = 5e4;
  c.rope_scaling = RopeScaling::longrope, c.rope_context = 128, c.rope_factor = 32;
  c.rope_short_factors = "1,1.1,1.25", c.rope_long_factors = "1.5,8,39.5";
  const double divisors[2][3] = {{1, 1.1f, 1.25}, {1.5, 8, 39.5}};
  for (const int64_t longest : {1, 127, 128, 129, 4096}) {
    const ModelConfig now = for_length(c, longest);
    const bool wide = longest > 128;
    EXPECT_EQ(uses_long_factors(now), wide) << longest;
    EXPECT_EQ(long_rope_note(now).empty(), !wide);
    const std::vector<double> freq = rope_frequencies(now);
    ASSERT_EQ(freq.size(), 3u);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(freq[i], std::pow(5e4, -double(i) / 3) / divisors[wide][i], 1e-15) << i;
  }
  EXPECT_TRUE(uses_long_factors(c)) << "the context, where no length is given";
  EXPECT_EQ(for_length(for_length(c, 100), 4096).longest, 100) << "the first length counts";
}

TEST(LongRope, ScalesCosinesAndSines) {
  ModelConfig c;
  c.context = 4096, c.dim = 24, c.heads = 2, c.rotary = 0.5f, c.longest = 64;
  c.rope_scaling = RopeScaling::longrope, c.rope_context = 128;
  c.rope_short_factors = "1,1.125,1.25", c.rope_long_factors = "1.5,8,39.5";
  const auto expect_factor = [&](double factor) {
    EXPECT_NEAR(rope_magnitude(c.resolve()), factor, 1e-7);
    const std::vector<float> table = rope_table(c, 50, 10);
    for (int64_t p = 0; p < 10; ++p) {
      const double angle = double(50 + p) * std::pow(1e4, -1.0 / 3) / 1.125;
      EXPECT_NEAR(table[size_t(p * 3 + 1) * 2], factor * std::cos(angle), 1e-6);
      EXPECT_NEAR(table[size_t(p * 3 + 1) * 2 + 1], factor * std::sin(angle), 1e-6);
    }
  };
  expect_factor(1);  // rope_factor 1: the context is the original one
  c.rope_factor = 0.5f;
  expect_factor(1);
  c.rope_factor = 32;
  expect_factor(std::sqrt(1 + std::log(32.0) / std::log(128.0)));
  c.rope_attention_factor = 1.75f;
  expect_factor(1.75);
}

// --- configs ---

// A number for each of `pairs`, in steps that floats do not have exactly.
json factors(int64_t pairs, double step) {
  json list = json::array();
  for (int64_t i = 0; i < pairs; ++i) list.push_back(double(float(1 + step * double(i))));
  return list;
}

json published(int64_t dim, int64_t heads, double rotary, const char* type) {
  return {
      {"architectures", {"Phi3ForCausalLM"}},
      {"attention_bias", false},
      {"bos_token_id", 199999},
      {"full_attn_mod", 1},
      {"hidden_act", "silu"},
      {"hidden_size", dim},
      {"intermediate_size", 8192},
      {"interpolate_factor", 1},
      {"lm_head_bias", false},
      {"max_position_embeddings", 131072},
      {"mlp_bias", false},
      {"model_type", "phi3"},
      {"num_attention_heads", heads},
      {"num_hidden_layers", 32},
      {"num_key_value_heads", 8},
      {"original_max_position_embeddings", 4096},
      {"partial_rotary_factor", rotary},
      {"rms_norm_eps", 1e-5},
      {"rope_scaling",
       {{"type", type}, {"short_factor", factors(48, 0.01)}, {"long_factor", factors(48, 1.3)}}},
      {"rope_theta", 10000.0},
      {"sliding_window", 262144},
      {"tie_word_embeddings", true},
      {"vocab_size", 32064}};
}

// As Phi-4-mini, Phi-3.5-mini and the first Phi-3-mini-128k have it.
TEST(LongRope, ReadsConfigsOfPhi) {
  const json phi4 = published(3072, 24, 0.75, "longrope");
  for (const json& j : {phi4, published(3072, 32, 1, "longrope"), published(3072, 32, 1, "su")}) {
    const ModelConfig c = read(j);
    EXPECT_EQ(c.rope_scaling, RopeScaling::longrope);
    EXPECT_EQ(c.rope_context, 4096);
    EXPECT_EQ(c.rope_factor, 32);
    EXPECT_EQ(c.rope_attention_factor, 0);
    EXPECT_NEAR(rope_magnitude(c), 1.190238071424, 1e-7);
    const std::vector<double> freq = rope_frequencies(c);
    ASSERT_EQ(freq.size(), 48u);
    EXPECT_NEAR(freq[47], std::pow(1e4, -47.0 / 48) / double(float(1 + 1.3 * 47)), 1e-15);
    const json written = json::parse(hf_config_json(c, DType::bf16, 1, 2));
    EXPECT_EQ(written.at("model_type"), "phi3");
    EXPECT_FALSE(written.contains("hearth_config")) << written["hearth_config"];
    EXPECT_EQ(written.at("original_max_position_embeddings"), 4096);
    // All that transformers 4 takes.
    EXPECT_EQ(written.at("rope_scaling").size(), 3u);
    EXPECT_EQ(written.at("rope_scaling").at("type"), "longrope");
    EXPECT_EQ(written.at("rope_parameters").at("rope_type"), "longrope");
    EXPECT_EQ(written.at("rope_parameters").at("original_max_position_embeddings"), 4096);
    EXPECT_TRUE(read(written) == c);
  }
  json fresh = phi4;  // as transformers 5 writes it
  fresh["rope_parameters"] = fresh["rope_scaling"];
  fresh["rope_parameters"]["rope_type"] = "longrope";
  fresh["rope_parameters"]["rope_theta"] = 10000.0;
  fresh["rope_parameters"]["original_max_position_embeddings"] = 4096;
  fresh["rope_parameters"]["partial_rotary_factor"] = 0.75;
  for (const char* key : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) fresh.erase(key);
  EXPECT_TRUE(read(fresh) == read(phi4));
  fresh.erase("original_max_position_embeddings");
  EXPECT_TRUE(read(fresh) == read(phi4));
  fresh["rope_parameters"]["factor"] = 16.0;
  EXPECT_EQ(read(fresh).rope_factor, 16);
  fresh["rope_parameters"]["attention_factor"] =
      std::sqrt(1 + std::log(16.0) / std::log(4096.0));  // which the rule gives anyway
  EXPECT_EQ(read(fresh).rope_attention_factor, 0);
  fresh["rope_parameters"]["attention_factor"] = 1.5;
  EXPECT_EQ(read(fresh).rope_attention_factor, 1.5f);
  EXPECT_TRUE(read(json::parse(hf_config_json(read(fresh), DType::f32, -1, -1))) == read(fresh));
}

// Any layout with a scaled RoPE has it.
TEST(LongRope, OfOtherFamiliesComesBack) {
  for (const char* type : {"llama", "qwen3", "mistral", "gemma3_text"}) {
    const std::string_view name = type;
    json j = name == "gemma3_text" ? test::gemma_keys(type) : test::llama_keys(type);
    const json scaling = {{"rope_type", "longrope"},
                          {"short_factor", factors(5, 0.1)},
                          {"long_factor", factors(5, 2)},
                          {"original_max_position_embeddings", 16}};
    if (name == "gemma3_text") {
      j.erase("rope_theta");
      j["layer_types"] = test::alternating;
      j["rope_parameters"] = {{"full_attention", scaling},
                              {"sliding_attention", {{"rope_theta", 100.0}}}};
    } else {
      j["rope_scaling"] = scaling;
    }
    const ModelConfig c = read(j);
    EXPECT_EQ(c.rope_scaling, RopeScaling::longrope) << type;
    EXPECT_EQ(c.rope_factor, 4);
    const json written = json::parse(hf_config_json(c, DType::f32, -1, -1));
    EXPECT_EQ(written.at("model_type"), type);
    EXPECT_TRUE(read(written) == c) << type;
    if (name != "gemma3_text") continue;
    const std::vector<double> local = rope_frequencies(layer_rope_tables(c, 8).back().config);
    EXPECT_NEAR(local[1], std::pow(100.0, -0.2), 1e-15) << "local layers are not scaled";
  }
}

TEST(LongRope, RefusesWhatItCannotCompute) {
  const auto refused = [](const char* key, const json& value, std::string_view part) {
    json j = long_rope_keys();
    if (value.is_null())
      j["rope_scaling"].erase(key);
    else
      j["rope_scaling"][key] = value;
    expect_error(error_of([&] { read(j); }), part);
  };
  const std::string at = "[config.json.rope_scaling] ";
  refused("short_factor", nullptr, at + "the key short_factor is missing");
  refused("long_factor", nullptr, at + "the key long_factor is missing");
  refused("long_factor", 2, at + "expected long_factor to be a list, got \"2\"");
  refused("long_factor", {1, 2}, "expected 3 numbers in long_factor, one per pair of rotated dims");
  refused("short_factor", {1, 2, 3, 4}, "expected 3 numbers in short_factor, one per pair");
  refused("short_factor", json::array(), "expected 3 numbers in short_factor, one per pair of");
  refused("long_factor", {1, 0, 1}, at + "expected numbers above 0 in long_factor, got 0");
  refused("long_factor", {1, -2.5, 1}, at + "expected numbers above 0 in long_factor, got -2.5");
  refused("short_factor", {1, "2", 1}, at + "expected numbers above 0 in short_factor, got \"2\"");
  refused("short_factor", {1, 1e60, 1}, at + "expected numbers above 0 in short_factor, got 1e+60");
  refused("attention_factor", 0, at + "expected an attention_factor above 0, got 0");
  refused("factor", -1, at + "expected a factor above 0, got -1");
  refused("original_max_position_embeddings", 17,
          at + "expected the earlier original_max_position_embeddings 16, got 17");
  json j = long_rope_keys();
  j.erase("original_max_position_embeddings");
  expect_error(error_of([&] { read(j); }),
               at + "the key original_max_position_embeddings is missing");
  j["rope_scaling"]["original_max_position_embeddings"] = 1;
  expect_error(error_of([&] { read(j); }),
               at + "expected original_max_position_embeddings of 2 or more, got 1");

  // Also of layouts whose heads have a width of their own, read after RoPE.
  for (const char* type : {"llama", "qwen3", "mistral"}) {
    json other = test::llama_keys(type);
    other["rope_scaling"] = {{"rope_type", "longrope"},
                             {"short_factor", factors(5, 0.1)},
                             {"long_factor", factors(2, 2)},
                             {"original_max_position_embeddings", 16}};
    expect_error(error_of([&] { read(other); }),
                 "[config.json] expected 5 numbers in long_factor, one per pair of rotated dims, "
                 "got 2");
  }

  const auto unresolved = [](auto change, std::string_view part) {
    ModelConfig c = read(long_rope_keys());
    change(c);
    expect_error(error_of([&] { c.resolve(); }), part);
  };
  using C = ModelConfig&;
  unresolved([](C c) { c.rope_context = 0; }, "[model] expected a rope_context of 2 or more");
  unresolved([](C c) { c.rope_long_factors = ""; }, "expected 3 numbers in rope_long_factors");
  unresolved([](C c) { c.rope_short_factors = "1,2,3,"; },
             "expected numbers above 0, separated by commas, in rope_short_factors, got \"\"");
  unresolved([](C c) { c.rope_short_factors = "1,2 ,3"; }, "in rope_short_factors, got \"2 \"");
  unresolved([](C c) { c.rope_factor = 0; }, "expected a rope_factor above 0, got 0");
  unresolved([](C c) { c.rope_attention_factor = -1; }, "rope_attention_factor of 0 or more");
  ModelConfig c = read(long_rope_keys());
  c.rope_short_factors = "1.0,1.25000,3e0";  // configs are compared by their numbers
  EXPECT_TRUE(c.resolve() == read(long_rope_keys()));
}

// --- the length of a run or an engine ---

// A small random phi3 and what its formulas say for each length.
struct Phi {
  explicit Phi(int n) {
    for (int i = 0; i < n; ++i) tokens.push_back(int32_t((i * i * 5 + i * 3 + 1) % 37));
    reference.logits(tokens);  // makes the tensors
    make_dirs(dir / "hub");
    write_file_atomic(dir / "hub" / "config.json", long_rope_keys().dump());
    write_safetensors_model(dir / "hub", reference.tensors());
    const ModelSource source = ModelSource::open(dir / "hub");
    config = source.config();
    params.emplace(*backend, decoder_params(config), DType::f32);
    source.load(*params);
  }
  // By the formula, of each token but the first.
  std::vector<double> logprobs(int64_t length, const std::vector<int32_t>& of) {
    reference.length = length;
    const std::vector<test::Vec> logits = reference.logits(of);
    std::vector<double> out;
    for (size_t i = 0; i + 1 < of.size(); ++i) {
      double sum = 0;
      for (const double x : logits[i]) sum += std::exp(x);
      out.push_back(logits[i][size_t(of[i + 1])] - std::log(sum));
    }
    return out;
  }

  TempDir dir;
  FamilyReference reference{long_rope_keys()};
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::vector<int32_t> tokens;
  ModelConfig config;
  std::optional<ParamStore> params;
};

// Prompt and completion of an engine, whose context may end at the original length or beyond it.
TEST(LongRope, EnginesUseTheListOfTheirContext) {
  Phi m(9);
  for (const int64_t context : {15, 16, 17, 30}) {
    SCOPED_TRACE(context);
    for (const int64_t chunk : {4, 64}) {
      Engine e(m.config, *m.params, *m.backend,
               {.max_batch = 1, .context = context, .step_tokens = chunk});
      Request r{.prompt = m.tokens};
      r.sampling.temperature = 0, r.sampling.max_tokens = int(context), r.sampling.logprobs = 1;
      r.prompt_logprobs = true;
      const Completion got = e.run(std::span(&r, 1))[0][0];
      std::vector<int32_t> all = m.tokens;
      all.insert(all.end(), got.tokens.begin(), got.tokens.end());
      ASSERT_EQ(int64_t(all.size()), context);
      const std::vector<double> want = m.logprobs(context, all);
      const std::vector<double> other = m.logprobs(context > 16 ? 16 : 17, all);
      double apart = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const bool asked = i + 1 < m.tokens.size();
        const TokenLogprob& have =
            asked ? got.prompt_logprobs[i] : got.logprobs[i + 1 - m.tokens.size()];
        EXPECT_NEAR(have.logprob, want[i], 2e-5) << i;
        apart = std::max(apart, std::abs(want[i] - other[i]));
      }
      EXPECT_GT(apart, 5e-3) << "the lists make a difference";
    }
  }
}

// What is trained is what is sampled, to the bit, where both are made for the same length.
TEST(LongRope, DecodesWithTheBitsOfTraining) {
  for (const auto& backend : exact_backends())
    for (const int64_t longest : {20, 21}) {
      ModelConfig c = tiny_config();
      c.context = 256, c.longest = longest;
      c.rope_scaling = RopeScaling::longrope, c.rope_factor = 12.8f, c.rope_context = 20;
      c.rope_short_factors = "1,3", c.rope_long_factors = "2.5,60";
      TinyModel m(*backend, c);
      Engine e = m.engine({.max_batch = 1, .context = 40, .step_tokens = 7});
      Request r{.prompt = tiny_prompt(14)};
      r.sampling.temperature = 0, r.sampling.max_tokens = 20, r.sampling.logprobs = 1;
      const Completion got = e.run(std::span(&r, 1))[0][0];
      std::vector<int32_t> all = r.prompt;
      all.insert(all.end(), got.tokens.begin(), got.tokens.end());
      const std::vector<float> nll = m.nll(all);
      for (size_t i = 0; i < got.logprobs.size(); ++i)
        EXPECT_EQ(got.logprobs[i].logprob, -nll[i + 13]) << i;
    }
}

// A text has the same score beside longer ones and alone.
TEST(LongRope, ScoresDependOnTheContextAlone) {
  Phi m(30);
  const ScoreItem brief{{m.tokens.begin(), m.tokens.begin() + 8}};
  const ScoreItem wide{{m.tokens.begin(), m.tokens.begin() + 25}};
  const auto first = [&](int64_t context, std::vector<ScoreItem> items) {
    Scorer scorer(m.config, *m.params, *m.backend, {.context = context});
    return scorer.score(items)[0].logprob;
  };
  const auto formula = [&](int64_t length) {
    double sum = 0;
    for (const double p : m.logprobs(length, brief.tokens)) sum += p;
    return sum;
  };
  EXPECT_NEAR(first(16, {brief}), formula(16), 1e-4);
  EXPECT_NEAR(first(30, {brief}), formula(17), 1e-4);
  EXPECT_EQ(first(30, {brief, wide}), first(30, {brief}));
  EXPECT_GT(std::abs(formula(16) - formula(17)), 2e-3);
}

TEST(LongRope, PretrainingUsesTheListOfItsLongestSequences) {
  ModelConfig model;
  TrainConfig c;
  model.context = 4096, c.steps = 10;
  for (const auto& [seq, longest] :
       {std::pair("512", 512), {"0:64,4:2048,8:128", 2048}, {"0", 4096}, {"0:0,5:32", 4096}}) {
    c.seq = seq;
    EXPECT_EQ(longest_sequence(model, c), longest) << seq;
  }
}

// --- GGUF ---

// A file of this model, with a change to its table.
template <class F>
ModelConfig gguf_with(const TempDir& dir, F change) {
  const GgufFile file(dir / "m.gguf");  // stays mapped while its table is read
  GgufTable t = file;
  change(t);
  return read_gguf_config(t);
}

TEST(LongRope, IsInGgufFiles) {
  json j = long_rope_keys();
  j["num_attention_heads"] = 3, j["num_key_value_heads"] = 1, j["sliding_window"] = 64;
  const ModelConfig c = read(j);
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, decoder_params(c), DType::f32);
  const TempDir dir;
  write_gguf_model(dir / "m.gguf", c, store, {});
  {
    const GgufFile f(dir / "m.gguf");
    EXPECT_EQ(f.text("phi3.rope.scaling.type"), "longrope");
    EXPECT_EQ(f.whole("phi3.rope.scaling.original_context_length"), 16);
    EXPECT_NEAR(f.number("phi3.rope.scaling.attn_factor"), std::sqrt(1.5), 1e-6);
    EXPECT_EQ(f.whole("phi3.attention.sliding_window"), 64);
    EXPECT_EQ(f.whole("phi3.rope.dimension_count"), 6);
    const auto factors = [&](const char* name) {
      const GgufTensor& t = f.tensors.at(name);
      EXPECT_EQ(t.type, GgmlType::f32);
      return from_ggml(t.bytes, t.type);
    };
    EXPECT_EQ(factors("rope_factors_short.weight"), (std::vector<float>{1, 1.25, 3}));
    EXPECT_EQ(factors("rope_factors_long.weight"), (std::vector<float>{1.5, 7, 40.5}));
  }
  const std::string scaling = "phi3.rope.scaling.";
  EXPECT_TRUE(gguf_with(dir, [](GgufTable&) {}) == c);
  EXPECT_TRUE(gguf_with(dir, [&](GgufTable& t) { t.values.erase(scaling + "type"); }) == c)
      << "files of earlier converters do not name the type";
  {
    ModelConfig longer = c;  // whose factor on cosines is no longer what its lengths say
    longer.context = longer.window = 100;
    write_gguf_model(dir / "longer.gguf", longer, store, {});
    const ModelConfig back = read_gguf_config(GgufFile(dir / "longer.gguf"));
    EXPECT_EQ(rope_table(back, 0, 100), rope_table(longer, 0, 100));
    EXPECT_GT(back.rope_attention_factor, 0);
  }
  const ModelConfig plain =
      gguf_with(dir, [&](GgufTable& t) { t.values.erase(scaling + "attn_factor"); });
  EXPECT_EQ(rope_magnitude(plain), 1);
  const auto refused = [&](auto change, std::string_view part) {
    expect_error(error_of([&] { gguf_with(dir, change); }), part);
  };
  refused([&](GgufTable& t) { t.values.erase(scaling + "original_context_length"); },
          "the key phi3.rope.scaling.original_context_length is missing");
  refused([](GgufTable& t) { t.tensors.erase("rope_factors_long.weight"); },
          "the tensor rope_factors_long.weight is missing");
  refused(
      [](GgufTable& t) {
        t.tensors.erase("rope_factors_long.weight"), t.tensors.erase("rope_factors_short.weight");
      },
      "the tensor rope_factors_short.weight is missing");
  const float two[] = {1, 2}, zero[] = {1, 0, 1}, four = 4;
  const auto replaced = [](const char* name, std::span<const float> with) {
    return [name, with](GgufTable& t) { t.tensors[name].bytes = std::as_bytes(with); };
  };
  refused(replaced("rope_factors_long.weight", two),
          "expected 3 numbers in rope_factors_long.weight, one per pair of rotated dims, got 2");
  refused(replaced("rope_factors_short.weight", zero),
          "expected numbers above 0 in rope_factors_short.weight, got 0");
  refused(
      [&](GgufTable& t) {
        t.values[scaling + "factor"] = {.kind = GgufKind::f32,
                                        .bytes = std::as_bytes(std::span(&four, 1))};
      },
      "expected phi3.rope.scaling.factor to be 1 beside rope_factors_long.weight, got 4");
}

TEST(LongRope, IsNotWrittenForOtherArchitectures) {
  json j = test::llama_keys("qwen3");
  j["rope_scaling"] = {{"rope_type", "longrope"},
                       {"short_factor", factors(5, 0.1)},
                       {"long_factor", factors(5, 2)},
                       {"original_max_position_embeddings", 16}};
  expect_error(error_of([&] { exportable(read(j)); }),
               "qwen3 in GGUF cannot use the rope_scaling longrope");
  j["model_type"] = "llama";
  EXPECT_EQ(exportable(read(j)), HfType::llama);
}

}  // namespace
}  // namespace hearth
