// MlaConfig: the settings of latent attention (MLA). Part of ModelConfig.
#pragma once

#include <cstdint>

namespace hearth::inline model {

// Epsilon of the norms of latents, whatever that of the other norms is.
constexpr float latent_norm_eps = 1e-6f;

struct MlaConfig {
  int64_t kv_latent = 0;  // 0: plain attention, and all other fields have their defaults
  int64_t q_latent = 0;
  int64_t nope_dim = 0, rope_dim = 0;
  float yarn_mscale = 0, yarn_mscale_all = 0;

  template <class V>
  void visit(V&& v) {
    v("kv_latent", kv_latent,
      "latent attention: width of the latent that keys and values are computed from, which the "
      "cache holds in their place; 0: plain attention");
    v("q_latent", q_latent,
      "latent attention: width of the latent that queries are computed from; 0: none");
    v("nope_dim", nope_dim, "latent attention: dims of each q and k head that are not rotated");
    v("rope_dim", rope_dim,
      "latent attention: rotated dims of each q head, and of the one key that all heads share");
    v("yarn_mscale", yarn_mscale,
      "latent attention with yarn: factor of the logarithm by which rotated dims are scaled; 0: 1");
    v("yarn_mscale_all", yarn_mscale_all,
      "latent attention with yarn: factor of the logarithm by which scores are scaled; 0: none");
  }
  bool operator==(const MlaConfig&) const = default;
  explicit operator bool() const { return kv_latent > 0; }
};

}  // namespace hearth::inline model
