#include "infer/step_shape.h"

#include <algorithm>

#include "core/plan.h"
#include "infer/block_pool.h"

namespace hearth::inline infer {

int64_t bucket(int64_t rows, int64_t most) { return bucket(rows, buckets::engine_rows, most); }

namespace {

// Few sizes, because a growing text needs a new program at each: 2,048 tokens, and four times as
// many as long as that is less than the context.
int64_t depth_bucket(int64_t blocks, int64_t most) {
  int64_t size = 32;
  while (size < blocks) size *= 4;
  return std::min(size, most);
}

}  // namespace

// Expanded decoding computes the keys and values of all cached tokens, so its programs are recorded
// for as few sequences and blocks as a step needs; absorbed decoding computes none.
StepShape StepShape::with_depth(const ModelConfig& c, const RunnerSpec& spec,
                                const Texts& texts) const {
  StepShape s = *this;
  const int64_t table = blocks_for(spec.context);
  if (!c.mla || (texts.decodes && !spec.exact)) {
    if (rows < spec.deep_rows) s.depth = depth_bucket(texts.deepest, table);
    return s;
  }
  s.sequences = bucket(texts.tables, spec.sequences);
  s.blocks = bucket(texts.deepest, table);
  return s;
}

DecoderMode StepShape::mode(const RunnerSpec& spec) const {
  return {.cache_blocks = spec.blocks,
          .cache = spec.cache,
          .positions = spec.context,
          .apart = apart,
          .depth = depth,
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
