#include "infer/step_shape.h"

#include "core/plan.h"
#include "infer/block_pool.h"

namespace hearth::inline infer {

int64_t bucket(int64_t rows, int64_t most) { return bucket(rows, buckets::engine_rows, most); }

// Expanded decoding computes the keys and values of all cached tokens, so its programs are recorded
// for as few sequences and blocks as a step needs; absorbed decoding computes none.
StepShape StepShape::with_latents(const ModelConfig& c, const RunnerSpec& spec,
                                  const Latents& l) const {
  StepShape s = *this;
  if (!c.mla || (l.decodes && !spec.exact)) return s;
  s.sequences = bucket(l.tables, spec.sequences);
  s.blocks = bucket(l.deepest, blocks_for(spec.context));
  return s;
}

DecoderMode StepShape::mode(const RunnerSpec& spec) const {
  return {.cache_blocks = spec.blocks,
          .cache = spec.cache,
          .positions = spec.context,
          .apart = apart,
          .absorb = sequences == 0,
          .latent_sequences = sequences,
          .latent_blocks = blocks};
}

ProgramNeed need_of(Tape t, std::string_view own) {
  simplify(t);
  ProgramNeed n{.arena = plan(t).arena_bytes};
  for (size_t i = 0; i < t.values.size(); ++i) {
    const Value& v = t.values[i];
    const bool kept = v.role == Role::state || v.role == Role::constant;
    if (kept && v.storage == int(i) && v.name.starts_with(own))
      n.kept += v.shape.numel() * size_of(v.dtype);
  }
  return n;
}

}  // namespace hearth::inline infer
