// Decode steps as one persistent kernel on the card: against the single kernels, over all cases of
// tests/decode_case.h and at the sizes of real models, and in the engine.
#include <fmt/format.h>

#include <cstdlib>

#include "cuda_case.h"
#include "decode_case.h"
#include "unit/infer_model.h"

namespace hearth::cases {
namespace {

using test::card;

Backend& persistent_card() {
  static const std::unique_ptr<Backend> made = [] {
    unsetenv("HEARTH_PERSISTENT");
    return make_cuda_backend({.persistent = true});
  }();
  return *made;
}

// Empty, or why the kernel cannot run here: a reason that scripts/check-skips accepts.
std::string no_hopper() {
  if (std::string why = test::no_card(); !why.empty()) return why;
  return cuda_card(0).major == 9 ? "" : "needs a Hopper card";
}
#define HEARTH_NEEDS_HOPPER() \
  if (const std::string why = no_hopper(); !why.empty()) GTEST_SKIP() << why

// Real widths, few layers, contexts of many splits, and one large vocabulary: the host draws
// weights.
std::vector<DecodeCase> large_cases() {
  ModelConfig gpt2 = decode_gpt2();
  gpt2.layers = 3, gpt2.dim = 768, gpt2.heads = 12, gpt2.hidden = 3072, gpt2.vocab = 3001;
  gpt2.init_std = 0.02f;
  ModelConfig xl = gpt2;
  xl.dim = 1600, xl.heads = 25, xl.hidden = 6400, xl.layers = 2;
  ModelConfig qwen = decode_llama();
  qwen.layers = 3, qwen.dim = 1024, qwen.heads = 16, qwen.kv_heads = 8, qwen.head_dim = 128;
  qwen.hidden = 3072, qwen.vocab = 2048, qwen.qk_norm = QkNorm::before_rope;
  qwen.init_std = 0.02f, qwen.context = 40960;
  ModelConfig shared = qwen;
  shared.heads = 32, shared.vocab = 1000, shared.head_dim = 64, shared.act = Act::geglu_tanh;
  std::vector<DecodeCase> all;
  const std::vector<int32_t> rows{500, 1, 64, 999, 300, 255, 256, 700};
  for (const size_t n : {1, 2, 4, 8}) {
    const std::vector<int32_t> some(rows.begin(), rows.begin() + ptrdiff_t(n));
    all.push_back({fmt::format("gpt2 {} rows", n), gpt2, some, 1024});
    all.push_back({fmt::format("gpt2-xl {} rows", n), xl, some, 1024});
    all.push_back({fmt::format("qwen3 {} rows", n), qwen, some, 1024});
  }
  ModelConfig whole = gpt2;
  whole.vocab = 50257, whole.layers = 1;
  all.push_back({"gpt2 with its vocabulary", whole, {500, 3}, 1024});
  all.push_back({"four heads to a head of keys", shared, {1000, 30}, 1024});
  shared.heads = 8, shared.kv_heads = 2, shared.layers = 1;
  all.push_back({"32K context", shared, {32000, 5000}, 32768});
  return all;
}

std::vector<DecodeCase> card_cases() {
  std::vector<DecodeCase> all = decode_cases();
  for (DecodeCase& c : large_cases()) all.push_back(std::move(c));
  return all;
}

class CudaPersistent : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(, CudaPersistent, testing::Range(size_t(0), card_cases().size()),
                         [](const auto& info) {
                           std::string name = card_cases()[info.param].name;
                           for (char& x : name) x = std::isalnum(x) ? x : '_';
                           return name;
                         });

Numbers of_real_rows(const DecodeCase& c, const Numbers& logits) {
  const size_t columns = logits.size() / c.positions.size();
  Numbers kept;
  for (size_t n = 0; n < c.positions.size(); ++n)
    for (size_t i = 0; c.positions[n] >= 0 && i < columns; ++i)
      kept.push_back(logits[n * columns + i]);
  return kept;
}

TEST_P(CudaPersistent, LogitsAndCacheAreThoseOfSingleKernels) {
  HEARTH_NEEDS_HOPPER();
  const DecodeCase c = card_cases()[GetParam()];
  DecodeRun plain(card(), c, DType::bf16), fused(persistent_card(), c, DType::bf16);
  plain.run(), fused.run();
  ASSERT_TRUE(fused.fused());
  EXPECT_FALSE(plain.fused());
  const Numbers first = fused.logits();
  EXPECT_LT(error_of(of_real_rows(c, first), of_real_rows(c, plain.logits())), 0.02);
  for (int64_t layer = 0; layer < fused.layers(); ++layer)
    EXPECT_LT(error_of(fused.cache(layer), plain.cache(layer)), 0.02);
  for (int i = 0; i < 20; ++i) fused.run();
  EXPECT_TRUE(fused.logits() == first);
}

TEST(CudaPersistentSteps, OtherProgramsRunKernelByKernel) {
  HEARTH_NEEDS_HOPPER();
  DecodeCase c = decode_cases()[2];
  c.config.output_gate = OutputGate::per_head;
  DecodeRun gated(persistent_card(), c, DType::bf16);
  gated.run();
  EXPECT_FALSE(gated.fused());
  c = decode_cases()[2];
  DecodeRun f32(persistent_card(), c, DType::f32);
  f32.run();
  EXPECT_FALSE(f32.fused());
  c.positions.assign(9, 3);
  DecodeRun nine(persistent_card(), c, DType::bf16);
  nine.run();
  EXPECT_FALSE(nine.fused());
}

std::vector<Request> some_requests(float temperature) {
  std::vector<Request> all;
  for (int i = 0; i < 8; ++i) {
    Request r{.prompt = tiny_prompt(1 + i * 29, i)};
    r.sampling.temperature = temperature, r.sampling.max_tokens = 20 + 9 * i;
    r.sampling.ignore_eos = true, r.sampling.logprobs = 2, r.sampling.seed = uint64_t(i);
    all.push_back(r);
  }
  return all;
}

// Steps of one to eight rows, sampled on the card: two engines agree to the bit, and with the
// training forward pass up to rounding.
TEST(CudaPersistentSteps, TheEngineSamplesTheSameTwice) {
  HEARTH_NEEDS_HOPPER();
  ModelConfig c = decode_llama();
  c.vocab = 23, c.context = 512, c.init_std = 0.03f;
  for (const float temperature : {0.0f, 0.8f}) {
    TinyModel m(persistent_card(), c, 7, DType::bf16);
    const std::vector<Request> requests = some_requests(temperature);
    const auto first = m.engine({.max_batch = 8}).run(requests);
    const auto again = m.engine({.max_batch = 8}).run(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Completion& made = first[i][0];
      EXPECT_EQ(made.tokens, again[i][0].tokens);
      std::vector<int32_t> tokens = requests[i].prompt;
      tokens.insert(tokens.end(), made.tokens.begin(), made.tokens.end());
      const std::vector<float> logits = m.all_logits(tokens);
      for (size_t k = 0; k < made.tokens.size(); ++k) {
        EXPECT_EQ(made.logprobs[k].logprob, again[i][0].logprobs[k].logprob);
        const size_t at = requests[i].prompt.size() + k - 1;
        const std::span row(&logits[at * size_t(c.vocab)], size_t(c.vocab));
        EXPECT_NEAR(token_logprob(row, made.tokens[k], 1).logprob, made.logprobs[k].logprob, 0.05);
      }
    }
  }
}

}  // namespace
}  // namespace hearth::cases
