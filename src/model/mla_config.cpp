#include "model/mla_config.h"

#include <cmath>

#include "formats/fields.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

// YaRN's growth of magnitudes with the factor by which the context was extended.
double yarn_growth(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1;
}

void check_widths(const ModelConfig& c) {
  const auto positive = [](const char* name, int64_t x) {
    if (x < 1 || x > most_latent)
      fail("model", "latent attention needs a {} between 1 and {}, got {}", name, most_latent, x);
  };
  positive("kv_latent", c.mla.kv_latent), positive("nope_dim", c.mla.nope_dim);
  positive("rope_dim", c.mla.rope_dim);
  if (c.mla.q_latent) positive("q_latent", c.mla.q_latent);
  if (c.mla.rope_dim % 2) fail("model", "expected an even rope_dim, got {}", c.mla.rope_dim);
}

// What the formulas of latent attention have no place for.
void check_excluded(const ModelConfig& c) {
  const char* other = c.qk_norm != QkNorm::none ? "qk_norm"
                      : c.value_embeds > 0      ? "value_embeds"
                      : c.value_residual        ? "value_residual"
                      : c.rotary != 1           ? "rotary"
                                                : nullptr;
  if (other) fail("model", "latent attention does not work with {}", other);
  if (c.position != Position::rope)
    fail("model", "latent attention needs position rope, got {}", enum_name(c.position));
  if (c.rope_scaling != RopeScaling::yarn && (c.mla.yarn_mscale || c.mla.yarn_mscale_all))
    fail("model", "yarn_mscale and yarn_mscale_all need rope_scaling yarn, got {}",
         enum_name(c.rope_scaling));
  for (const float scale : {c.mla.yarn_mscale, c.mla.yarn_mscale_all})
    if (!(scale >= 0 && std::isfinite(scale)))
      fail("model", "expected a yarn_mscale and a yarn_mscale_all of 0 or more, got {}", scale);
}

}  // namespace

void resolve_latents(ModelConfig& c) {
  const MlaConfig& m = c.mla;
  if (!m) {
    if (m != MlaConfig{.kv_latent = m.kv_latent})
      fail("model", "settings of latent attention need a kv_latent of 1 or more, got {}",
           m.kv_latent);
    if (m.kv_latent < 0) fail("model", "expected a kv_latent of 0 or more, got {}", m.kv_latent);
    return;
  }
  check_widths(c);
  check_excluded(c);
  const int64_t own = m.nope_dim + m.rope_dim;
  if (c.head_dim && c.head_dim != own)
    fail("model", "expected head_dim to be nope_dim + rope_dim, {}, got {}", own, c.head_dim);
  if (c.kv_heads && c.kv_heads != c.heads)
    fail("model", "latent attention has keys for all {} heads: expected kv_heads 0, got {}",
         c.heads, c.kv_heads);
  c.head_dim = own;
  c.kv_heads = c.heads;
}

int64_t rotated_dims(const ModelConfig& c) {
  return c.mla ? c.mla.rope_dim : std::lround(c.rotary * float(c.head_dim));
}

double rope_magnitude(const ModelConfig& c) {
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
