#include "cli/model_flags.h"

#include "sys/error.h"

namespace hearth::inline cli {

ModelConfig model_over_preset(const std::string& name, const FieldFlags<ModelConfig>& flags) {
  const ModelConfig base = preset(name);
  ModelConfig c = base;
  flags.apply(c);
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

}  // namespace hearth::inline cli
