// gemma, gemma2 and gemma3_text. Their norms multiply by 1 plus the stored gain; hf_names.cpp adds
// the 1.
#include <algorithm>
#include <cmath>

#include "model/files/hf_keys.h"
#include "model/layer_spec.h"

namespace hearth::inline model {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int64_t default_scalar = 256, default_window = 4096;

float scale_of(int64_t scalar) { return float(1 / std::sqrt(double(scalar))); }

void read_score_scale(ModelConfig& c, const Keys& k) {
  const int64_t scalar = k.get<int64_t>("query_pre_attn_scalar", default_scalar);
  if (scalar < 1) fail(k.where, "expected query_pre_attn_scalar of 1 or more, got {}", scalar);
  if (scalar != c.head_dim) c.score_scale = scale_of(scalar);
}

// The nearest whole number. A reader gets another score_scale if there is none.
int64_t query_scalar(const ModelConfig& c) {
  if (c.score_scale == 0) return c.head_dim;
  const double scalar = 1 / (double(c.score_scale) * double(c.score_scale));
  return scalar < 1e15 ? std::max<int64_t>(1, std::llround(scalar)) : 1;
}

// The layers with a window: listed, or all but every n-th.
std::string read_windows(const ModelConfig& c, const Keys& k, int64_t every) {
  if (k.has("layer_types")) return read_layer_types(c, k);
  if (every < 1) fail(k.where, "expected sliding_window_pattern of 1 or more, got {}", every);
  std::string pattern;
  for (int64_t i = 0; i < c.layers; ++i) pattern += (i + 1) % every ? 'S' : 'L';
  return pattern;
}

void set_windows(ModelConfig& c, const Keys& k, const std::string& pattern) {
  if (pattern.find('S') == pattern.npos) return;
  c.window = k.get<int64_t>("sliding_window", default_window);
  c.window_pattern = shortest_period(pattern);
}

// Layers with a window have a rope of their own, which is not scaled.
void read_local_rope(ModelConfig& c, const Keys& k, const std::string& windows) {
  for (const char letter : windows) c.rope_pattern += letter == 'S' ? 'L' : 'R';
  json global = k.j;
  c.rope_local_theta = k.get<double>("rope_local_base_freq", 1e4);
  if (k.has("rope_parameters")) {
    const std::string where = k.where + ".rope_parameters";
    const json& both = k.j.at("rope_parameters");
    if (!both.is_object() || !both.contains("full_attention") ||
        !both.contains("sliding_attention"))
      fail(where, "expected full_attention and sliding_attention, got {}", in_quotes(both.dump()));
    global["rope_parameters"] = both.at("full_attention");
    if (const json& local = both.at("sliding_attention"); !local.is_null()) {
      if (!local.is_object()) fail(where, "expected sliding_attention to be an object");
      const Keys own{local, where};
      own.only("rope_type", std::string("default"));
      own.only("partial_rotary_factor", 1.0);
      c.rope_local_theta = own.get<double>("rope_theta", c.rope_local_theta);
    }
  }
  if (!(c.rope_local_theta > 1))
    fail(k.where, "expected a rope base of local layers above 1, got {}", c.rope_local_theta);
  read_rope(c, Keys{global, k.where}, {.theta = 1e6});
}

void write_local_rope(ordered_json& j, const ModelConfig& c) {
  j["rope_local_base_freq"] = c.rope_local_theta;
  const ordered_json global = j["rope_parameters"];
  j["rope_parameters"] = {
      {"full_attention", global},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", c.rope_local_theta}}}};
}

// transformers 4 ignored hidden_act of gemma and computed hidden_activation, by default the tanh
// form, which the published weights mean where their files say "gelu". transformers 5 computes
// hidden_act.
const char* act_key_of_gemma(const Keys& k, const char* usual) {
  const std::string act = k.get<std::string>("hidden_act", usual);
  const bool old = k.get<std::string>("transformers_version", "").starts_with("4.");
  if (old && (k.has("hidden_activation") || act == "gelu")) return "hidden_activation";
  if (k.has("hidden_activation")) k.only("hidden_activation", act);
  return "hidden_act";
}

ordered_json cap_or_null(float cap) { return cap > 0 ? ordered_json(plain(cap)) : ordered_json(); }

}  // namespace

ModelConfig read_gemma(const Keys& k, HfType type) {
  const bool first = type == HfType::gemma;
  LlamaDefaults defaults{.tied = true, .act = "gelu_pytorch_tanh"};
  defaults.act_key = first ? act_key_of_gemma(k, defaults.act) : "hidden_activation";
  ModelConfig c = read_llama_sizes(k, defaults);
  c.kv_heads = k.get<int64_t>("num_key_value_heads", first ? 16 : 4);
  c.head_dim = k.get<int64_t>("head_dim", 256);
  c.embed_scale = float(std::sqrt(double(c.dim)));
  k.only("use_bidirectional_attention", false);
  if (first) {
    read_rope(c, k);
    return c;
  }
  c.norm_place = NormPlace::sandwich;
  read_score_scale(c, k);
  c.logit_softcap =
      k.get_or_zero<float>("final_logit_softcapping", type == HfType::gemma2 ? 30.f : 0.f);
  if (type == HfType::gemma2) {
    c.attention_softcap = k.get_or_zero<float>("attn_logit_softcapping", 50);
    set_windows(c, k, read_windows(c, k, 2));
    read_rope(c, k);
    return c;
  }
  // transformers reads this key of gemma3_text and does not use it.
  k.only("attn_logit_softcapping", 0.f);
  c.qk_norm = QkNorm::before_rope;
  const std::string windows = read_windows(c, k, k.get<int64_t>("sliding_window_pattern", 6));
  set_windows(c, k, windows);
  read_local_rope(c, k, windows);
  return c;
}

ordered_json write_gemma(const ModelConfig& c, HfType type) {
  ordered_json j = write_llama_sizes(c);
  j.erase("mlp_bias");
  j["hidden_act"] = c.act == Act::geglu_tanh ? "gelu_pytorch_tanh" : act_name(c.act, glu_acts);
  j["hidden_activation"] = j["hidden_act"];
  if (type == HfType::gemma) return j;
  j.erase("hidden_act");
  j["query_pre_attn_scalar"] = query_scalar(c);
  j["sliding_window"] = c.window > 0 ? c.window : default_window;  // unused without such layers
  j["layer_types"] = write_layer_types(c);
  j["final_logit_softcapping"] = cap_or_null(c.logit_softcap);
  j["attn_logit_softcapping"] = cap_or_null(c.attention_softcap);
  if (type == HfType::gemma3_text) write_local_rope(j, c);
  return j;
}

}  // namespace hearth::inline model
