// What programs of the engine are recorded for: the limits of an engine's steps, and the shape of
// one step.
#pragma once

#include <string_view>

#include "core/fp8.h"
#include "core/program_cache.h"
#include "model/decoder.h"

namespace hearth::inline infer {

struct RunnerSpec {
  int64_t rows = 1;       // maximum tokens per step
  int64_t logits = 1;     // maximum rows with logits
  int64_t sequences = 1;  // maximum sequences per step
  int64_t context = 1;    // maximum tokens per sequence
  int64_t blocks = 1;     // number of cache blocks
  CacheFormat cache = CacheFormat::plain;
  bool exact = false;  // latent attention decodes with the bits of training
  int64_t vocab = 0;   // tokens that may be sampled
  int64_t program_bytes = program_cache_bytes;  // as in ProgramCache
  int64_t drafts = 0;                           // maximum draft tokens per sequence and step
  int64_t modules = 0;  // of multi-token prediction that draft, the first ones of the model
  // Programs of fewer rows are recorded for the depth of the texts; 0: none is.
  int64_t deep_rows = 0;
};

// The shape that a program is recorded for.
struct StepShape {
  int64_t rows = 0, logits = 0;  // both rounded up: all rows, and rows with logits
  bool all = false;              // every row has logits, in order
  bool apart = false;            // row n belongs to sequence n
  // Latent attention over keys and values: sequences and blocks of each, both rounded up; else 0.
  int64_t sequences = 0, blocks = 0;
  int64_t depth = 0;  // blocks of the longest text, rounded up; 0: as many as a table has
  // The texts of a step.
  struct Texts {
    int64_t tables = 0, deepest = 0;  // sequences, and blocks of the longest one
    bool decodes = false;             // no sequence reads its prompt
  };
  StepShape with_depth(const ModelConfig&, const RunnerSpec&, const Texts&) const;
  DecoderMode mode(const RunnerSpec&) const;  // of the program: the cache and how it is read
  auto operator<=>(const StepShape&) const = default;
};

// Memory that the largest program needs: temporaries, and state besides the cache.
struct ProgramNeed {
  int64_t arena = 0, kept = 0;
};
// The need of one program. Of its states it counts those whose names begin with `own`.
ProgramNeed need_of(Tape, std::string_view own = {});

// The row count of the program that runs `rows` rows: powers of two, so that few programs suffice.
int64_t bucket(int64_t rows, int64_t most);

}  // namespace hearth::inline infer
