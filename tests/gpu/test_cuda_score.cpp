// The scorer of evaluations on a card against the CPU.
#include "cpu/backend.h"
#include "eval/score.h"
#include "gpu/cuda_case.h"
#include "model/decoder.h"

namespace hearth {
namespace {

TEST(CudaScore, AgreesWithTheCpu) {
  HEARTH_NEEDS_A_CARD();
  ModelConfig c;
  c.vocab = 1003, c.context = 128, c.layers = 2, c.dim = 64, c.heads = 4, c.kv_heads = 2;
  c.hidden = 128, c.init_std = 0.2f;
  std::vector<ScoreItem> items;
  for (const int64_t n : {2, 129, 40, 77, 100, 3}) {
    ScoreItem item;
    for (int64_t i = 0; i < n; ++i) item.tokens.push_back(int32_t((i * i * 31 + n * 7) % 1003));
    item.first = std::max<int64_t>(1, n / 3);
    items.push_back(std::move(item));
  }
  const auto cpu = make_cpu_backend(2);
  std::vector<Score> scores[2];
  Backend* backends[2] = {cpu.get(), &test::card()};
  for (int i = 0; i < 2; ++i) {
    ParamStore params(*backends[i], decoder_params(c), DType::f32);
    params.initialise(3);
    Scorer scorer(c, params, *backends[i], {.batch_tokens = 256, .greedy = true});
    scores[i] = scorer.score(items);
    scores[i] = scorer.score(items);  // replayed
  }
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_NEAR(scores[0][i].logprob, scores[1][i].logprob, 1e-4 * double(scores[0][i].tokens))
        << i;
    EXPECT_EQ(scores[0][i].tokens, scores[1][i].tokens);
  }
}

}  // namespace
}  // namespace hearth
