// How a step's tokens are cut into micro-batches.
#include "core/error.h"
#include "train/trainer.h"

namespace hearth {

ProgramSpec program_spec(const ModelConfig& model, const TrainConfig& c, const BatchShape& s) {
  return {.model = model,
          .dtype = to_dtype(c.dtype),
          .B = s.B,
          .T = s.T,
          .recompute = c.recompute,
          .documents = c.document_mask,
          .accumulates = s.micro_batches > 1,
          .update = {c.beta1, c.beta2, c.adam_eps, c.weight_decay, c.decay_all}};
}

BatchShape batch_shape(const ModelConfig& model, const TrainConfig& c, int64_t step,
                       int64_t free_bytes) {
  constexpr const char* where = "batch";
  BatchShape s;
  s.T = Steps::parse(c.seq, "seq").at(step);
  if (s.T == 0) s.T = model.context;
  if (s.T > model.context)
    fail_usage(where, "expected --seq up to the model's context {}, got {}", model.context, s.T);
  int64_t tokens = Steps::parse(c.tokens_per_step, "tokens_per_step").at(step);
  if (c.batch < 0) fail_usage(where, "expected --batch of 0 or more, got {}", c.batch);
  if (tokens == 0) tokens = (c.batch ? c.batch : 1) * s.T;
  if (tokens % s.T)
    fail_usage(where, "expected --tokens-per-step to be a multiple of --seq {}, got {}", s.T,
               tokens);
  const int64_t sequences = tokens / s.T;
  if (c.batch) {
    s.B = c.batch;
    // A sequence-length schedule keeps the tokens of a micro-batch, not its sequences.
    const int64_t first = Steps::parse(c.seq, "seq").at(0);
    if (first && first != s.T) s.B = std::max<int64_t>(1, c.batch * first / s.T);
    if (sequences % s.B)
      fail_usage(where, "expected --batch to divide the {} sequences of a step, got {}", sequences,
                 s.B);
    expect_fit(program_spec(model, c, s), free_bytes);
  } else {
    s.B = largest_batch(program_spec(model, c, s), sequences, free_bytes);
    if (s.B == 0) {
      s.B = 1;
      expect_fit(program_spec(model, c, s), free_bytes);
    }
  }
  s.micro_batches = sequences / s.B;
  return s;
}

}  // namespace hearth
