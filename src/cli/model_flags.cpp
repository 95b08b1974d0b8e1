#include "cli/model_flags.h"

#include "core/math.h"
#include "model/files/hf_names.h"
#include "sys/error.h"

namespace hearth::inline cli {
namespace {

// A width of the preset that keeps its ratio to dim.
int64_t scaled(int64_t width, int64_t dim, int64_t preset_dim) {
  if (dim < 1 || width > (int64_t(1) << 31) / dim) return width;  // resolve() refuses the dim
  return round_up(ceil_div(width * dim, preset_dim), 32);
}

// MLPs and experts whose widths are not given follow --dim. A width that the preset derives from
// dim is derived again, and experts as wide as a dense MLP follow --hidden too.
void fit_widths(ModelConfig& c, const ModelConfig& base, const FieldFlags<ModelConfig>& flags) {
  ModelConfig derived = base;
  derived.hidden = derived.moe.expert_hidden = 0;
  if (!flags.given("hidden") && c.dim != base.dim)
    c.hidden = derived.resolve().hidden == base.hidden ? 0 : scaled(base.hidden, c.dim, base.dim);
  if (!c.moe || flags.given("expert_hidden")) return;
  if (base.moe.expert_hidden == base.hidden)
    c.moe.expert_hidden = 0;
  else if (c.dim != base.dim)
    c.moe.expert_hidden = scaled(base.moe.expert_hidden, c.dim, base.dim);
}

// Divided by itself, the weight of a token's only expert would be 1, and its gradient 0.
void fit_router(ModelConfig& c, const FieldFlags<ModelConfig>& flags) {
  if (c.moe && c.moe.top_k == 1 && !flags.given("norm_topk")) c.moe.norm_topk = false;
}

// Scaling by the default factor of 1 would be none. That of longrope follows from the two lengths.
void fit_rope_factor(ModelConfig& c, const FieldFlags<ModelConfig>& flags) {
  if (!flags.given("rope_scaling") || flags.given("rope_factor")) return;
  if (c.rope_scaling == RopeScaling::none || c.rope_factor != 1) return;
  if (c.rope_scaling != RopeScaling::longrope)
    fail_usage("--rope-scaling",
               "{} needs --rope-factor, the context length divided by the "
               "trained one",
               enum_name(c.rope_scaling));
  if (c.rope_context > 0) c.rope_factor = float(double(c.context) / double(c.rope_context));
}

}  // namespace

ModelConfig model_of_flags(const FieldFlags<ModelConfig>& flags) {
  ModelConfig c;
  flags.apply(c);
  fit_router(c, flags);
  fit_rope_factor(c, flags);
  return c;
}

ModelConfig model_over_preset(const std::string& name, const FieldFlags<ModelConfig>& flags) {
  const ModelConfig base = preset(name);
  ModelConfig c = base;
  flags.apply(c);
  fit_router(c, flags);
  fit_rope_factor(c, flags);
  fit_widths(c, base, flags);
  if (!flags.given("heads")) return c;
  if (!flags.given("kv_heads")) {
    const int64_t shared = base.heads / base.kv_heads;  // query heads per KV head
    if (c.heads % shared)
      fail_usage("--heads",
                 "expected a multiple of {} (query heads per KV head in {}), or --kv-heads as "
                 "well, got {}",
                 shared, name, c.heads);
    c.kv_heads = c.heads / shared;
  }
  if (!flags.given("head_dim")) c.head_dim = 0;  // dim / heads
  return c;
}

std::string name_over_preset(const std::string& name, const FieldFlags<ModelConfig>& flags) {
  return name + flags.given_text();
}

void expect_layout(const ModelConfig& c) {
  if (c.layout.empty()) return;
  const std::string_view written = enum_name(hf_type(c));
  if (written != c.layout)
    fail_usage("--layout", "the keys of {} cannot express this model, whose files would be {}",
               c.layout, written);
}

}  // namespace hearth::inline cli
