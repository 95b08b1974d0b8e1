#include "model/files/upcycle.h"

#include <algorithm>

#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

// Rows [first, first + count) of the columns [begin, begin + width) of a matrix.
struct MatrixBlock {
  int64_t first, count, begin, width;
};
void append(std::vector<float>& to, const std::vector<float>& matrix, int64_t cols,
            const MatrixBlock& b) {
  for (int64_t row = b.first; row < b.first + b.count; ++row) {
    const auto from = matrix.begin() + row * cols + b.begin;
    to.insert(to.end(), from, from + b.width);
  }
}

// The stacked weights of all experts: expert e has shard e % G of the dense matrix.
std::vector<float> shards_of_up(const std::vector<float>& dense, const LayerSpec& l, int64_t dim,
                                const UpcycleSpec& spec) {
  const int64_t h = l.hidden / spec.granularity;
  std::vector<float> out;
  for (int64_t e = 0; e < spec.experts; ++e)
    for (int64_t first = 0; first < l.up_size(); first += l.hidden)  // gate, then up
      append(out, dense, dim, {first + e % spec.granularity * h, h, 0, dim});
  return out;
}
std::vector<float> shards_of_down(const std::vector<float>& dense, const LayerSpec& l, int64_t dim,
                                  const UpcycleSpec& spec) {
  const int64_t h = l.hidden / spec.granularity;
  std::vector<float> out;
  for (int64_t e = 0; e < spec.experts; ++e)
    append(out, dense, l.hidden, {0, dim, e % spec.granularity * h, h});
  return out;
}

// The experts of copy e / G share a random row.
std::vector<float> router_rows(const ParamSpec& p, const UpcycleSpec& spec) {
  const int64_t dim = p.shape[1], copies = spec.experts / spec.granularity;
  std::vector<float> drawn(size_t(copies * dim)), out;
  draw(drawn, p.init, spec.seed, p.name);
  for (int64_t e = 0; e < spec.experts; ++e)
    append(out, drawn, dim, {e / spec.granularity, 1, 0, dim});
  return out;
}

}  // namespace

ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleSpec& spec) {
  ModelConfig c = dense.resolve();
  const int64_t G = spec.granularity;
  if (c.moe) fail_usage("--upcycle-moe", "the model has experts already");
  if (c.mlp_bias)
    fail_usage("--upcycle-moe", "experts have no biases, but the MLPs of this model have");
  if (G < 1 || c.hidden % G)
    fail_usage("--granularity", "expected a divisor of the MLP's width {}, got {}", c.hidden, G);
  if (spec.experts < G || spec.experts % G || spec.experts > most_experts)
    fail_usage("--upcycle-moe", "expected a multiple of the granularity {} up to {}, got {}", G,
               most_experts, spec.experts);
  if (spec.top_k < 0 || spec.top_k % G || spec.top_k > spec.experts)
    fail_usage("--top-k", "expected a multiple of the granularity {} up to {} experts, got {}", G,
               spec.experts, spec.top_k);
  c.moe.experts = spec.experts;
  c.moe.top_k = spec.top_k ? spec.top_k : std::min(2 * G, spec.experts);
  c.moe.expert_hidden = c.hidden / G;
  // The weights of a token's experts add up to this. Its top_k / G copies of each shard share the
  // weight, so that every shard counts once. Only normed weights do so, also those of one expert.
  c.moe.norm_topk = true;
  c.moe.router_scale = float(G);
  return c.resolve();
}

void upcycle(ParamStore& to, ParamStore& from, const ModelConfig& dense, const UpcycleSpec& spec) {
  const ModelConfig c = dense.resolve();
  const LayerSpec l = layer_specs(c).front();  // the MLPs of a dense model have one shape
  const auto values = [&](const std::string& name) { return from.values(Part::weight, name); };
  for (const ParamSpec& p : to.specs()) {
    if (from.has(p.name)) {
      to.set(p.name, values(p.name));
      continue;
    }
    // "blocks.3.mlp.experts.up.weight", "mtp.0.block.mlp.router.weight"
    constexpr std::string_view part = ".mlp.";
    const std::string mlp = p.name.substr(0, p.name.find(part) + part.size());
    if (p.name == mlp + "router.weight")
      to.set(p.name, router_rows(p, spec));
    else if (p.name == mlp + "experts.up.weight")
      to.set(p.name, shards_of_up(values(mlp + "up.weight"), l, c.dim, spec));
    else
      to.set(p.name, shards_of_down(values(mlp + "down.weight"), l, c.dim, spec));
  }
}

}  // namespace hearth::inline model
