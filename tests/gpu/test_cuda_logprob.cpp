// Log-probabilities and their gradients on the card: the CPU's within rounding, the same bits with
// and without graphs (a paused program is two of them), and near the sampler's in 16 bits.
#include "cuda_case.h"
#include "train/logprob_programs.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using test::card;

ModelConfig small_config() {
  ModelConfig c = tiny_config();
  c.vocab = 300, c.context = 64, c.dim = 64, c.hidden = 96, c.init_std = 0.02f;
  return c;
}

TokenBatch some_batch() {
  TokenBatch b{.B = 3, .T = 40};
  for (int32_t i = 0; i < 120; ++i) b.tokens.push_back((i * i * 7 + 3) % 300);
  for (int32_t i = 0; i < 120; ++i) {
    if (i % 3 == 1) continue;
    b.rows.push_back(i);
    b.targets.push_back((i * 11 + 5) % 300);
  }
  return b;
}

std::vector<float> all_grads(ParamStore& params) {
  std::vector<float> all;
  for (const ParamSpec& p : params.specs())
    for (const float x : params.values(Part::grad, p.name)) all.push_back(x);
  return all;
}

struct Passed {
  std::vector<float> logprob, entropy, grads;
};

// The last of several passes: the later ones are replayed graphs.
Passed passed(Backend& backend, DType dtype, int passes, int64_t keep_bytes = 0) {
  TinyModel m(backend, small_config(), 7, dtype);
  Memory memory(backend, &m.params);
  LogprobPrograms programs({.model = m.config,
                            .dtype = dtype,
                            .temperature = 0.8f,
                            .entropy = true,
                            .keep_bytes = keep_bytes},
                           memory);
  const TokenBatch b = some_batch();
  std::vector<float> d;
  for (size_t i = 0; i < b.rows.size(); ++i) d.push_back(0.01f * float(int(i % 5) - 2));
  Passed r;
  for (int i = 0; i < passes; ++i) {
    Logprobs y = programs.forward(b, true);
    programs.backward(d);
    r = {std::move(y.logprob), std::move(y.entropy), all_grads(m.params)};
  }
  return r;
}

double distance_of(const std::vector<float>& a, const std::vector<float>& b) {
  return cases::error_of({a.begin(), a.end()}, {b.begin(), b.end()});
}

TEST(CudaLogprob, IsTheCpusWithinRounding) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const auto& [dtype, value, gradient] : cases::tolerances) {
    const Passed want = passed(*cpu, DType::f32, 1), got = passed(card(), dtype, 1);
    EXPECT_LT(distance_of(got.logprob, want.logprob), value) << to_string(dtype);
    EXPECT_LT(distance_of(got.entropy, want.entropy), value) << to_string(dtype);
    EXPECT_LT(distance_of(got.grads, want.grads), gradient) << to_string(dtype);
  }
}

TEST(CudaLogprob, PausedGraphsGiveTheSameBits) {
  HEARTH_NEEDS_A_CARD();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Passed first = passed(card(true, false), dtype, 1), replayed = passed(card(), dtype, 4);
    EXPECT_TRUE(first.logprob == replayed.logprob) << to_string(dtype);
    EXPECT_TRUE(first.entropy == replayed.entropy) << to_string(dtype);
    EXPECT_TRUE(first.grads == replayed.grads) << to_string(dtype);
  }
}

TEST(CudaLogprob, KeptLogitsGiveTheSameBits) {
  HEARTH_NEEDS_A_CARD();
  ASSERT_GT(kept_logits_bytes(card()), 0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Passed again = passed(card(), dtype, 3),
                 kept = passed(card(), dtype, 3, kept_logits_bytes(card()));
    EXPECT_TRUE(kept.logprob == again.logprob) << to_string(dtype);
    EXPECT_TRUE(kept.entropy == again.entropy) << to_string(dtype);
    EXPECT_TRUE(kept.grads == again.grads) << to_string(dtype);
  }
}

TEST(CudaLogprob, IsNearTheSamplers) {
  HEARTH_NEEDS_A_CARD();
  for (const auto& [dtype, most, mean] :
       {std::tuple{DType::f32, 1e-4, 1e-5}, std::tuple{DType::bf16, 0.05, 0.005}}) {
    TinyModel m(card(), small_config(), 7, dtype);
    Engine engine = m.engine({.max_batch = 8});
    const Request request{
        .prompt = tiny_prompt(9), .sampling = {.seed = 5, .max_tokens = 30, .logprobs = 0}, .n = 8};
    const auto completions = engine.run(std::span(&request, 1));
    Memory memory(card(), &m.params);
    LogprobPrograms programs({.model = m.config, .dtype = dtype}, memory);
    double worst = 0, sum = 0;
    int64_t count = 0;
    for (const Completion& c : completions[0]) {
      std::vector<int32_t> all = request.prompt;
      all.insert(all.end(), c.tokens.begin(), c.tokens.end());
      TokenBatch b{.B = 1, .T = int64_t(all.size()) - 1};
      b.tokens.assign(all.begin(), all.end() - 1);
      for (size_t i = request.prompt.size(); i < all.size(); ++i)
        b.rows.push_back(int32_t(i) - 1), b.targets.push_back(all[i]);
      const Logprobs y = programs.score(b);
      for (size_t i = 0; i < y.logprob.size(); ++i, ++count) {
        const double off = std::abs(double(y.logprob[i]) - double(c.logprobs[i].logprob));
        worst = std::max(worst, off), sum += off;
      }
    }
    EXPECT_LT(worst, most) << to_string(dtype);
    EXPECT_LT(sum / double(count), mean) << to_string(dtype);
  }
}

}  // namespace
}  // namespace hearth
