// The named configs. Parameter counts of these are checked by tests/unit/test_model.cpp.
#include <algorithm>
#include <cmath>
#include <map>

#include "formats/json.h"
#include "model/config.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

struct Size {
  int64_t layers, heads, dim;
};

ModelConfig gpt2(Size s) {
  ModelConfig c;
  c.layers = s.layers, c.heads = s.heads, c.dim = s.dim;
  c.position = Position::learned;
  c.norm = Norm::layer, c.norm_bias = true, c.norm_eps = 1e-5f;
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.act = Act::gelu_tanh;
  return c;
}

ModelConfig nocap(Size s) {
  ModelConfig c;
  c.layers = s.layers, c.heads = s.heads, c.dim = s.dim;
  c.rope_reverse = true;
  c.norm_gain = false;
  c.act = Act::gelu_erf;
  c.attention_scale = float(1 / std::sqrt(2.0 * double(s.layers)));
  c.init = WeightInit::fan_in;
  return c;
}

// kv heads: the divisor of the number of heads that is nearest to a quarter of it.
ModelConfig modern(Size s) {
  ModelConfig c;
  c.vocab = 32768, c.context = 2048;
  c.layers = s.layers, c.heads = s.heads, c.dim = s.dim;
  double best = 1e9;
  for (int64_t g = 1; g <= s.heads; ++g) {
    const double far = std::abs(double(g) - double(s.heads) / 4);
    if (s.heads % g == 0 && far < best) best = far, c.kv_heads = g;
  }
  c.qk_norm = QkNorm::before_rope;
  return c;
}

ModelConfig llama3_16k() {
  ModelConfig c;
  c.vocab = 16384, c.dim = 384, c.layers = 12, c.heads = 12, c.kv_heads = 4, c.hidden = 1536;
  c.out_bias = true;
  c.rope_pairs = RopePairs::interleaved;
  return c;
}

// modern-124m with eight experts of the MLP's own width.
ModelConfig moe_8x124m() {
  ModelConfig c = modern({12, 12, 768});
  c.moe.experts = 8, c.moe.top_k = 2;
  return c;
}

// Fine-grained experts: 64 of a quarter of the width, four of them and a shared one for each token,
// balanced by selection biases.
ModelConfig moe_64() {
  ModelConfig c = modern({12, 12, 768});
  c.moe.experts = 64, c.moe.top_k = 4, c.moe.expert_hidden = 512, c.moe.shared_experts = 1;
  c.moe.router = Router::sigmoid, c.moe.router_bias = true;
  return c;
}

// modern-124m with a module that predicts the token after the next.
ModelConfig mtp_124m() {
  ModelConfig c = modern({12, 12, 768});
  c.mtp = 1;
  return c;
}

// Latent attention: the cache holds a latent and one rotated key of each token.
ModelConfig mla(Size s, int64_t latent, int64_t nope, int64_t v) {
  ModelConfig c;
  c.vocab = 32768, c.context = 2048;
  c.layers = s.layers, c.heads = s.heads, c.dim = s.dim;
  c.mla = {.kv_latent = latent, .nope_dim = nope, .rope_dim = 32};
  c.v_head_dim = v;
  c.rope_pairs = RopePairs::interleaved;
  return c;
}

// The architecture of the fastest known recipes for small token budgets: rows of 65,536 tokens with
// documents masked, windows that alternate between long and short, and no attention in one layer.
// docs/train.md has the settings to train it with.
ModelConfig speedrun() {
  ModelConfig c;
  c.context = 65536, c.layers = 12, c.dim = 768, c.heads = 6, c.hidden = 4 * 768;
  c.rope_theta = 1024, c.rotary = 0.5f;
  c.norm_gain = false, c.embed_norm = true;
  c.qk_norm = QkNorm::before_rope, c.qk_norm_gain = false, c.score_scale = 0.12f;
  c.act = Act::relu2;
  c.x0_skip = c.u_skips = true, c.value_embeds = 3;
  c.window = 896, c.long_window = 1792, c.window_pattern = "LSSSLSSLSSSL";
  c.mixer_pattern = "AAAAAAANAAAA";
  // 30 sigmoid(x / (7.5 sqrt(dim))), up to a constant that a softmax does not see.
  c.logit_scale = float(1 / std::sqrt(double(c.dim))), c.logit_softcap = 15;
  c.tied = false;
  c.init = WeightInit::fan_in, c.embed_std = 1, c.zero_projections = c.zero_head = true;
  return c;
}

// The same for rows of 1,024 tokens, which need no windows.
ModelConfig nocap_fast() {
  ModelConfig c = speedrun();
  c.context = 1024;
  c.window = c.long_window = 0, c.window_pattern = "S";
  return c;
}

// Small enough to learn the embedded stories in minutes on two CPU cores.
ModelConfig tiny() {
  ModelConfig c;
  c.vocab = 2048, c.context = 512;
  c.layers = 6, c.dim = 256, c.heads = 4, c.kv_heads = 2, c.hidden = 896;
  c.qk_norm = QkNorm::before_rope;
  return c;
}

const std::map<std::string_view, ModelConfig>& presets() {
  static const std::map<std::string_view, ModelConfig> all{
      {"gpt2", gpt2({12, 12, 768})},
      {"gpt2-medium", gpt2({24, 16, 1024})},
      {"gpt2-large", gpt2({36, 20, 1280})},
      {"gpt2-xl", gpt2({48, 25, 1600})},
      {"nocap-d12", nocap({12, 12, 768})},
      {"nocap-d24", nocap({24, 16, 1024})},
      {"nocap-d36", nocap({36, 20, 1280})},
      {"nocap-d48", nocap({48, 25, 1600})},
      {"modern-124m", modern({12, 12, 768})},
      {"modern-355m", modern({24, 16, 1024})},
      {"modern-774m", modern({36, 20, 1280})},
      {"modern-1.5b", modern({48, 25, 1600})},
      {"llama3-16k", llama3_16k()},
      {"mla-124m", mla({12, 12, 768}, 256, 32, 64)},
      {"mla-355m", mla({24, 8, 1024}, 384, 96, 128)},
      {"mtp-124m", mtp_124m()},
      {"moe-8x124m", moe_8x124m()},
      {"moe-64", moe_64()},
      {"speedrun-124m", speedrun()},
      {"nocap-fast", nocap_fast()},
      {"tiny", tiny()},
  };
  return all;
}

}  // namespace

std::span<const std::string_view> preset_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> r;
    for (const auto& [name, c] : presets()) r.push_back(name);
    return r;
  }();
  return names;
}

ModelConfig preset(std::string_view name) {
  const auto it = presets().find(name);
  if (it != presets().end()) return it->second.resolve();
  // The start of a name means that name, although a shorter one may take fewer edits.
  const auto longer = std::ranges::find_if(
      preset_names(), [&](std::string_view p) { return name.size() > 1 && p.starts_with(name); });
  const std::string meant =
      longer != preset_names().end() ? std::string(*longer) : near(name, preset_names());
  if (meant.empty())
    fail_usage("preset", "expected one of {}, got {}", fmt::join(preset_names(), ", "),
               in_quotes(name));
  fail_usage("preset", "expected a known preset, got {}; the nearest is {}", in_quotes(name),
             meant);
}

}  // namespace hearth::inline model
