#include "model/mla_config.h"

#include <cmath>
#include <string>
#include <vector>

#include "formats/fields.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

// YaRN's growth of magnitudes with the factor by which the context was extended.
double yarn_growth(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1;
}

// Collects what latent attention needs of the other settings, so that one error names all of it.
class Needs {
 public:
  template <class T>
  void expect(bool met, const std::string& what, const T& got) {
    if (!met) unmet_.push_back(fmt::format("{} (got {})", what, got));
  }
  bool width(const char* name, int64_t x) {
    const bool met = x >= 1 && x <= most_latent;
    expect(met, fmt::format("{} from 1 to {}", name, most_latent), x);
    return met;
  }
  void check(const std::string& remedy) const {
    if (!unmet_.empty())
      fail("model", "latent attention needs {}{}", fmt::join(unmet_, ", "), remedy);
  }

 private:
  std::vector<std::string> unmet_;
};

void need_widths(Needs& needs, const ModelConfig& c) {
  const MlaConfig& m = c.mla;
  needs.width("kv_latent", m.kv_latent);
  if (m.q_latent) needs.width("q_latent", m.q_latent);
  const bool nope = needs.width("nope_dim", m.nope_dim), rope = needs.width("rope_dim", m.rope_dim);
  needs.expect(m.rope_dim % 2 == 0, "an even rope_dim", m.rope_dim);
  const bool fits = !c.head_dim || (nope && rope && c.head_dim == m.nope_dim + m.rope_dim);
  needs.expect(fits, "head_dim 0 or nope_dim + rope_dim", c.head_dim);
  needs.expect(!c.kv_heads || c.kv_heads == c.heads, fmt::format("kv_heads 0 or {}", c.heads),
               c.kv_heads);
}

// What the formulas of latent attention have no place for.
void need_plain(Needs& needs, const ModelConfig& c) {
  needs.expect(c.qk_norm == QkNorm::none, "qk_norm none", enum_name(c.qk_norm));
  needs.expect(c.value_embeds == 0, "value_embeds 0", c.value_embeds);
  needs.expect(!c.value_residual, "value_residual false", c.value_residual);
  needs.expect(c.key_offset_pattern.find('O') == std::string::npos, "no O in key_offset_pattern",
               c.key_offset_pattern);
  needs.expect(c.rotary == 1, "rotary 1", c.rotary);
  needs.expect(c.position == Position::rope, "position rope", enum_name(c.position));
  const float mscale = c.mla.yarn_mscale, mscale_all = c.mla.yarn_mscale_all;
  if (mscale || mscale_all)
    needs.expect(c.rope_scaling == RopeScaling::yarn,
                 "rope_scaling yarn beside yarn_mscale and yarn_mscale_all",
                 enum_name(c.rope_scaling));
  const auto scale = [](float x) { return x >= 0 && std::isfinite(x); };
  needs.expect(scale(mscale), "yarn_mscale of 0 or more", mscale);
  needs.expect(scale(mscale_all), "yarn_mscale_all of 0 or more", mscale_all);
}

}  // namespace

void resolve_latents(ModelConfig& c) {
  if (c.mla == MlaConfig{}) return;
  Needs needs;
  need_widths(needs, c);
  need_plain(needs, c);
  std::vector<std::string> given;
  c.mla.visit([&](const char* name, auto& field, const char*) {
    if (field != 0) given.push_back(name);
  });
  needs.check(c.mla ? "" : fmt::format("; plain attention needs {} of 0", fmt::join(given, ", ")));
  c.head_dim = c.mla.nope_dim + c.mla.rope_dim;
  c.kv_heads = c.heads;
}

int64_t rotated_dims(const ModelConfig& c) {
  return c.mla ? c.mla.rope_dim : std::lround(c.rotary * float(c.head_dim));
}

double rope_magnitude(const ModelConfig& c) {
  if (c.rope_scaling == RopeScaling::longrope) {
    if (c.rope_attention_factor > 0) return c.rope_attention_factor;
    if (c.rope_factor <= 1) return 1;
    // A float, as GGUF files store it.
    return float(std::sqrt(1 + std::log(double(c.rope_factor)) / std::log(double(c.rope_context))));
  }
  if (c.rope_scaling != RopeScaling::yarn) return 1;
  const MlaConfig& m = c.mla;
  if (m.yarn_mscale == 0 || m.yarn_mscale_all == 0) return yarn_growth(c.rope_factor, 1);
  return yarn_growth(c.rope_factor, m.yarn_mscale) / yarn_growth(c.rope_factor, m.yarn_mscale_all);
}

float attention_score_scale(const ModelConfig& c, int64_t qk_dim) {
  if (c.score_scale > 0) return c.score_scale;
  const double plain = 1 / std::sqrt(double(qk_dim));
  if (c.rope_scaling != RopeScaling::yarn || c.mla.yarn_mscale_all == 0) return float(plain);
  const double growth = yarn_growth(c.rope_factor, c.mla.yarn_mscale_all);
  return float(plain * growth * growth);
}

}  // namespace hearth::inline model
