// MoeConfig: the settings of a model whose MLPs are mixtures of experts. Part of ModelConfig.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/moe_args.h"

namespace hearth::inline core {

inline std::span<const std::string_view> names_of(Router) {
  static constexpr std::string_view names[] = {"softmax", "sigmoid", "switch"};
  return names;
}

}  // namespace hearth::inline core

namespace hearth::inline model {

struct MoeConfig {
  int64_t experts = 0;  // 0: every MLP is dense, and all other fields have their defaults
  int64_t top_k = 2;
  int64_t expert_hidden = 0;  // 0: derived, see ModelConfig::resolve()
  int64_t shared_experts = 0;
  int64_t first_dense_layers = 0;
  std::string expert_pattern = "";
  Router router = Router::softmax;
  bool router_bias = false;
  bool norm_topk = true;
  float router_scale = 1;
  int64_t expert_groups = 1, top_groups = 1;

  template <class V>
  void visit(V&& v) {
    v("experts", experts, "experts in every MLP, of which a router chooses some; 0: dense MLPs");
    v("top_k", top_k, "experts that compute each token");
    v("expert_hidden", expert_hidden, "width of an expert; 0: --hidden");
    v("shared_experts", shared_experts,
      "experts beside the chosen ones that compute every token, as one MLP");
    v("first_dense_layers", first_dense_layers, "leading layers whose MLP is dense");
    v("expert_pattern", expert_pattern,
      "MLPs of the layers, repeated: E (experts) or D (dense); empty: E");
    v("router", router,
      "how router logits become weights: softmax, sigmoid, or switch (softmax for --top-k 1)");
    v("router_bias", router_bias,
      "the router chooses by score plus a bias, which training moves toward equal loads");
    v("norm_topk", norm_topk,
      "divide the weights of a token's experts by their sum; a new model with --top-k 1 does not, "
      "unless this flag says so");
    v("router_scale", router_scale, "factor on the weights of the experts");
    v("expert_groups", expert_groups,
      "equal groups of experts, of which the router first chooses --top-groups; 1: none");
    v("top_groups", top_groups, "groups that the experts of a token may come from");
  }
  bool operator==(const MoeConfig&) const = default;
  explicit operator bool() const { return experts > 0; }

  // A warning about a router that training can hardly teach; empty: none.
  std::string oddity() const;

  // What the router computes; the weights of the losses are 0.
  RouteSpec route() const {
    return {.kind = router,
            .norm = norm_topk,
            .scale = router_scale,
            .groups = expert_groups,
            .top_groups = top_groups};
  }
};

}  // namespace hearth::inline model
