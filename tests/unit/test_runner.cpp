// The engine's programs: those used least recently are dropped when they hold too much, and
// recorded again when they are needed.
#include "infer/runner.h"

#include "infer_model.h"

namespace hearth {
namespace {

// The logits after a prompt of n tokens, and the log-probability of token 3 at a temperature.
std::vector<float> answer(Runner& runner, int64_t n) {
  static constexpr int32_t block = 0;
  Feed f;
  for (int32_t t = 0; t < n; ++t) {
    f.tokens.push_back((t * 5 + 1) % 23), f.positions.push_back(t), f.sequences.push_back(0);
  }
  f.wanted = {int32_t(n - 1)};
  f.draws.resize(1), f.scores = {1}, f.tables = {std::span(&block, 1)};
  runner.launch(f);
  runner.collect(f);
  std::vector<float> all(runner.logits(0).begin(), runner.logits(0).end());
  all.push_back(runner.logprob(0, 3, 0.5f + float(n)));
  return all;
}

TEST(Runner, KeepsFewProgramsAndTheSameBits) {
  const ModelConfig config = tiny_config().resolve();
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(config), DType::f32);
  params.initialise(3);
  RunnerSpec spec{.rows = 16, .logits = 2, .context = 24, .blocks = 2, .vocab = config.vocab};
  Runner all(config, params, *backend, spec);
  spec.program_bytes = 1;
  Runner few(config, params, *backend, spec);
  for (const int64_t n : {3, 9, 1, 3, 16, 9, 3}) EXPECT_EQ(answer(few, n), answer(all, n)) << n;
  EXPECT_LE(few.programs(), 2u);
  EXPECT_GE(all.programs(), 8u);
}

}  // namespace
}  // namespace hearth
