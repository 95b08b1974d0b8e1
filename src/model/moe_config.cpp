#include "model/moe_config.h"

#include <cmath>

#include "formats/fields.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

void check_router(const MoeConfig& m) {
  const int64_t most = std::min(m.experts, most_top_k);
  if (m.top_k < 1 || m.top_k > most)
    fail("model", "expected top_k between 1 and {} of {} experts, got {}", most, m.experts,
         m.top_k);
  if (m.router == Router::switch_top1 && m.top_k != 1)
    fail("model", "the router switch chooses one expert: expected top_k 1, got {}", m.top_k);
  if (!(m.router_scale > 0 && std::isfinite(m.router_scale)))
    fail("model", "expected a router_scale above 0, got {}", m.router_scale);
  if (m.expert_groups < 1 || m.experts % m.expert_groups)
    fail("model", "expected expert_groups that divide {} experts, got {}", m.experts,
         m.expert_groups);
  if (m.top_groups < 1 || m.top_groups > m.expert_groups)
    fail("model", "expected top_groups between 1 and {} expert_groups, got {}", m.expert_groups,
         m.top_groups);
  if (const int64_t open = m.experts / m.expert_groups * m.top_groups; m.top_k > open)
    fail("model", "expected top_k of at most {}, the experts of {} groups, got {}", open,
         m.top_groups, m.top_k);
}

// One letter per layer; leading dense layers are counted instead.
void resolve_pattern(MoeConfig& m, int64_t layers) {
  if (m.first_dense_layers < 0 || m.first_dense_layers >= layers)
    fail("model", "expected first_dense_layers from 0 to below the {} layers, got {}", layers,
         m.first_dense_layers);
  if (m.expert_pattern.find_first_not_of("ED") != std::string::npos)
    fail("model", "expected an expert_pattern of E and D, got {}", in_quotes(m.expert_pattern));
  std::string all;
  for (int64_t i = 0; i < layers; ++i) all += is_expert_layer(m, i) ? 'E' : 'D';
  const size_t first = all.find('E');
  if (first == all.npos)
    fail("model", "expected experts in one of the {} layers, got the expert_pattern {}", layers,
         in_quotes(m.expert_pattern));
  m.first_dense_layers = int64_t(first);
  m.expert_pattern = all.find('D', first) == all.npos ? "" : all;
}

}  // namespace

std::string MoeConfig::oddity() const {
  if (experts < 2 || top_k > 1 || !norm_topk) return {};
  return "norm_topk makes the weight of a token's only expert (top_k 1) always 1, so the loss of "
         "the tokens teaches the routers nothing";
}

bool is_expert_layer(const MoeConfig& m, int64_t layer) {
  if (!m || layer < m.first_dense_layers) return false;
  const std::string& p = m.expert_pattern;
  return p.empty() || p[size_t(layer) % p.size()] == 'E';
}

void resolve_experts(ModelConfig& c) {
  MoeConfig& m = c.moe;
  if (!m) {
    const auto usual = fields_to_json(MoeConfig{.experts = m.experts}), own = fields_to_json(m);
    for (const auto& [key, value] : own.items())
      if (usual.at(key) != value)
        fail("model", "{} needs experts of 1 or more, got {}", key, m.experts);
    if (m.experts < 0) fail("model", "expected experts of 0 or more, got {}", m.experts);
    return;
  }
  if (m.experts > most_experts)
    fail("model", "expected at most {} experts, got {}", most_experts, m.experts);
  // The rows of experts are sorted, so the noise of a token would depend on the other tokens.
  if (c.dropout_mlp != 0)
    fail("model", "experts have no dropout: expected dropout_mlp 0, got {}", c.dropout_mlp);
  if (c.mlp_bias) fail("model", "experts have no biases: set mlp_bias to false");
  if (m.expert_hidden == 0) m.expert_hidden = c.hidden;
  if (m.expert_hidden < 1 || m.expert_hidden > int64_t(1) << 31)
    fail("model", "expected expert_hidden between 1 and 2^31, got {}", m.expert_hidden);
  if (m.shared_experts < 0 || m.shared_experts > most_experts)
    fail("model", "expected shared_experts between 0 and {}, got {}", most_experts,
         m.shared_experts);
  if (m.router == Router::switch_top1) m.norm_topk = false;
  check_router(m);
  resolve_pattern(m, c.layers);
}

}  // namespace hearth::inline model
