// The batch-invariant mode of a card: a row of a product, of attention and of a whole model has the
// same bits whatever else is in its batch, those of decoding are those of training, and so are the
// log-probabilities of GRPO's sampler and trainer.
#include <fmt/format.h>

#include "formats/fields.h"
#include "held.h"
#include "infer/runner.h"
#include "paged_case.h"
#include "sys/error.h"
#include "unit/grpo_task.h"

namespace hearth::cases {
namespace {

using test::Held;

Backend& invariant_card() {
  static const std::unique_ptr<Backend> made = make_cuda_backend({.batch_invariant = true});
  return *made;
}

struct Product {
  int64_t N, K;
  Act act = Act::none;
  float alpha = 1;
  bool bias = false, prior = false, wide = false;
};

const Product products[] = {{768, 768},
                            {.N = 2304, .K = 768, .bias = true},
                            {.N = 3072, .K = 768, .act = Act::gelu_tanh, .bias = true},
                            {.N = 768, .K = 3072, .bias = true, .prior = true},
                            {.N = 768, .K = 768, .alpha = 0.7f, .prior = true},
                            {.N = 50304, .K = 768, .wide = true},
                            {.N = 768, .K = 3072, .act = Act::relu2, .prior = true},
                            {.N = 16, .K = 768},
                            {.N = 768, .K = 16, .alpha = 2, .prior = true},
                            {.N = 200, .K = 72, .act = Act::relu2},
                            {.N = 257, .K = 129},
                            {.N = 1, .K = 16},
                            {.N = 4, .K = 8, .bias = true}};

// Weights of a product on the card, and rows for it, made once for all its sizes.
struct ProductOperands {
  ProductOperands(Backend& b, const Product& p, DType dtype, int64_t most)
      : w(b, {p.N, p.K}, dtype), bias(b, {p.N}, dtype) {
    std::mt19937 random{uint32_t(p.N + p.K)};
    for (Held* t : {&w, &bias}) t->fill(test::rounded(size_t(t->t.numel()), dtype, random));
    a = test::rounded(size_t(most * p.K), dtype, random);
    if (p.prior) prior = test::rounded(size_t(most * p.N), dtype, random);
  }
  Held w, bias;
  std::vector<float> a, prior;
};

// The first M rows of the product, made together; `trains`: as training does, which keeps the
// argument of act.
std::vector<float> product_rows(const Product& p, ProductOperands& from, DType dtype, int64_t M,
                                bool trains) {
  Backend& b = invariant_card();
  const DType out = p.wide ? DType::f32 : dtype;
  const auto first = [](const std::vector<float>& v, int64_t n) {
    return std::vector<float>(v.begin(), v.begin() + n);
  };
  Held a(b, {M, p.K}, dtype), prior(b, {M, p.N}, out), c(b, {M, p.N}, out), aux(b, {M, p.N}, out);
  a.fill(first(from.a, M * p.K));
  if (p.prior) prior.fill(first(from.prior, M * p.N));
  b.kernels().gemm(b.stream(),
                   {.c = c.t,
                    .aux = trains && p.act != Act::none ? aux.t : Tensor{},
                    .a = a.t,
                    .b = from.w.t,
                    .bias = p.bias ? from.bias.t : Tensor{},
                    .prior = p.prior ? prior.t : Tensor{},
                    .spec = {.tb = true, .alpha = p.alpha, .act = p.act, .weight = true}});
  return c.read();
}

TEST(CudaInvariant, RowsOfProductsKeepTheirBits) {
  HEARTH_NEEDS_A_CARD();
  for (const Product& p : products)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const int64_t most = p.wide ? 1100 : 5000;
      ProductOperands from(invariant_card(), p, dtype, most);
      const std::vector<float> all = product_rows(p, from, dtype, most, true);
      for (const int64_t M : {1, 2, 16, 17, 64, 65, 100, 512, 1024, 1030}) {
        SCOPED_TRACE(fmt::format("{} of {} x {} {}", M, p.N, p.K, to_string(dtype)));
        const std::vector<float> some = product_rows(p, from, dtype, M, false);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
      }
    }
}

// As cuBLASLt rounds twice, and no recorded program asks for it. (The kernel for narrow weights
// rounds once, so it may.)
TEST(CudaInvariant, ProductsOf16BitsDoNotAddInPlace) {
  HEARTH_NEEDS_A_CARD();
  Backend& b = invariant_card();
  Held a(b, {4, 64}, DType::bf16), w(b, {80, 64}, DType::bf16), c(b, {4, 80}, DType::bf16);
  EXPECT_THROW(b.kernels().gemm(b.stream(),
                                {.c = c.t, .a = a.t, .b = w.t, .prior = c.t, .spec = {.tb = true}}),
               Error);
}

const PagedCase attention_cases[] = {
    {.name = "plain"},
    {.name = "groups", .H = 6, .G = 2},
    {.name = "one key head", .H = 5, .G = 1, .D = 128},
    {.name = "small heads", .H = 3, .G = 3, .D = 24},
    {.name = "large heads", .H = 2, .G = 1, .D = 256},
    {.name = "twenty to a head of keys", .H = 20, .G = 1},
    {.name = "wide heads in a window", .H = 8, .G = 8, .D = 192, .window = 150},
    {.name = "window", .window = 100},
    {.name = "softcap", .softcap = 3},
    {.name = "alibi", .H = 4, .G = 2, .alibi = true},
    {.name = "relative", .H = 4, .G = 2, .relative = true},
    {.name = "relative and all", .G = 2, .D = 96, .window = 130, .softcap = 5, .relative = true},
    {.name = "wide values", .H = 4, .G = 2, .v_width = 128},
    {.name = "narrow values", .H = 3, .G = 1, .D = 96, .window = 90, .v_width = 40},
    {.name = "all", .G = 2, .D = 96, .window = 130, .softcap = 5, .alibi = true}};

constexpr int32_t tokens = 300;

// Attention of training over one sequence, (tokens, H * D).
Numbers trained(const PagedCase& c, DType dtype, const Numbers& qkv) {
  Backend& b = invariant_card();
  Tape t(dtype, "trained");
  const Var x = t.input("qkv", {1, tokens, c.layout().q.token}, dtype);
  const Var y = attention(
      t, packed(x, c.layout()), masks_of(t, c),
      {.window = c.window, .scale = float(1 / std::sqrt(double(c.D))), .softcap = c.softcap});
  const Var out = t.result("y", t.shape(y), dtype);
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out o) { f(s, {.y = o[0], .x = in[0]}); }),
         {y}, {out});
  Memory memory(b, nullptr);
  Exec exec(std::move(t), memory);
  write(b, memory.state.find("trained.qkv"), qkv);
  exec.run();
  b.synchronize();
  return read(b, memory.state.find("trained.y"));
}

// The same sequence by steps of as many rows as given; beside each step's rows `others` rows of
// other sequences.
Numbers decoded(const PagedCase& c, DType dtype, const Numbers& qkv, const std::vector<int>& steps,
                int others) {
  Backend& b = invariant_card();
  constexpr int64_t width = 5;
  const int64_t row = c.layout().q.token, sequences = 1 + others;
  std::vector<int32_t> tables;
  for (int32_t i = 0; i < sequences * width; ++i) tables.push_back(1 + i * 7 % 5 + i / 5 * 5);
  Numbers all, cache;
  int32_t at = 0;
  for (const int n : steps) {
    PagedRows rows;
    rows.add(0, at, n);
    for (int32_t s = 0; s < others; ++s) rows.add(1 + s, 7 * s % 200, 1);
    Memory memory(b, nullptr);
    StateStore& state = memory.state;
    Exec exec(paged_tape(dtype, c, rows, {1 + sequences * width, c.G, cache_block, c.D + c.V()},
                         dtype, sequences, width),
              memory);
    const auto from = qkv.begin() + at * row;
    Numbers fed(from, from + n * row);
    for (int s = 0; s < others; ++s) fed.insert(fed.end(), from, from + row);
    write(b, state.find("paged.qkv"), fed);
    if (!cache.empty()) write(b, state.find("cache"), cache);
    state.write<int32_t>("paged.positions", rows.positions);
    state.write<int32_t>("paged.sequences", rows.sequences);
    state.write<int32_t>("paged.tables", tables);
    exec.run();
    b.synchronize();
    const Numbers y = read(b, state.find("paged.y"));
    cache = read(b, state.find("cache"));
    all.insert(all.end(), y.begin(), y.begin() + n * c.H * c.V());
    at += n;
  }
  return all;
}

Numbers random_qkv(const PagedCase& c, DType dtype) {
  std::mt19937 random{5};
  const std::vector<float> x = test::rounded(size_t(tokens * c.layout().q.token), dtype, random);
  return {x.begin(), x.end()};
}

TEST(CudaInvariant, AttentionOverTheCacheHasTheBitsOfTraining) {
  HEARTH_NEEDS_A_CARD();
  for (const PagedCase& c : attention_cases)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} {}", c.name, to_string(dtype)));
      const Numbers qkv = random_qkv(c, dtype), want = trained(c, dtype, qkv);
      const auto same = [&](const Numbers& got) {
        return !got.empty() && std::equal(got.begin(), got.end(), want.begin());
      };
      EXPECT_TRUE(same(decoded(c, dtype, qkv, {300}, 0)));
      // Long runs, short ones, and single rows, alone and among many
      EXPECT_TRUE(same(decoded(c, dtype, qkv, {62, 1, 1, 1, 5, 130, 1, 16, 1, 17}, 0)));
      EXPECT_TRUE(same(decoded(c, dtype, qkv, {1, 70, 1, 3, 90, 1}, 70)));
    }
}

// One of each kind of position, norm and mask, with heads that 16-bit attention takes.
std::vector<ModelConfig> byte_configs() {
  std::vector<ModelConfig> all = cached_configs();
  for (ModelConfig& c : all) {
    if (c.mla) c.mla.nope_dim = c.mla.rope_dim = 16, c.mla.kv_latent = 40;
    c.vocab = 257, c.head_dim = 32, c.dim = 128, c.hidden = 160, c.init_std = 0.1f;
    if (c.v_head_dim) c.v_head_dim = 48;
  }
  return all;
}

// A model to a test: tests run side by side.
class CudaInvariantModels : public testing::TestWithParam<size_t> {
 protected:
  const ModelConfig m = byte_configs()[GetParam()];
};
INSTANTIATE_TEST_SUITE_P(, CudaInvariantModels, testing::Range(size_t(0), byte_configs().size()));

TEST_P(CudaInvariantModels, TheSamplersLogprobsAreTheTrainersToTheBit) {
  HEARTH_NEEDS_A_CARD();
  const GrpoSize size{.prompts = {1, 3, 60, 64, 100, 131}, .completion = 90};
  for (const auto& [temperature, vocab] : {std::pair{1.0f, int64_t(257)},
                                           {0.7f, int64_t(257)},
                                           {1.0f, int64_t(300)},
                                           {0.7f, int64_t(300)}})
    for (const char* lora : {"", "8,16"}) {
      if (*lora && (m.logit_softcap > 0 || temperature != 1)) continue;
      SCOPED_TRACE(
          fmt::format("{} of {} at {} {}", enum_name(m.position), vocab, temperature, lora));
      GrpoConfig c;
      c.temperature = temperature, c.train_equal = true, c.micro_tokens = 2048;
      c.group = 8, c.reward = {"length:40"};
      if (*lora) c.lora = {lora};
      ModelConfig padded = m;
      padded.vocab = vocab;  // 300: more than the tokenizer has
      GrpoTask task(invariant_card(), c, padded, DType::bf16, size);
      int64_t compared = 0;
      for (int i = 0; i < 3; ++i) {
        const StepFindings f = task.step();
        EXPECT_EQ(f.gap.most, 0) << "mean " << f.gap.sum / double(f.gap.tokens);
        compared += f.gap.tokens;
      }
      EXPECT_GT(compared, 3000);
    }
}

// With fp8 only gradients are computed in it.
TEST(CudaInvariant, Fp8KeepsTheLogprobs) {
  HEARTH_NEEDS_A_CARD();
  if (const std::string why = test::card().refuses_fp8(); !why.empty())
    GTEST_SKIP() << "needs a card: " << why;
  EXPECT_EQ(invariant_card().refuses_fp8(), "");  // or hearth grpo would not begin
  const GrpoSize size{.prompts = {1, 3, 60, 64, 100, 131}, .completion = 90};
  for (const char* lora : {"", "8,16"}) {
    SCOPED_TRACE(lora);
    GrpoConfig c;
    c.train_equal = true, c.micro_tokens = 2048, c.dtype = TrainDType::fp8;
    c.group = 8, c.reward = {"length:40"};
    if (*lora) c.lora = {lora};
    ModelConfig m = byte_configs()[0];
    GrpoTask task(invariant_card(), c, m, DType::bf16, size);
    c.dtype = TrainDType::bf16;
    GrpoTask plain(invariant_card(), c, m, DType::bf16, size);
    int64_t compared = 0;
    for (int i = 0; i < 3; ++i) {
      const StepFindings f = task.step();
      EXPECT_EQ(f.gap.most, 0) << "mean " << f.gap.sum / double(f.gap.tokens);
      compared += f.gap.tokens;
      plain.step();
    }
    EXPECT_GT(compared, 3000);
    if (!*lora) { EXPECT_FALSE(task.weights() == plain.weights()); }  // gradients were rounded
  }
}

// What a request gets does not depend on those beside it, nor on how its prompt comes in.
TEST_P(CudaInvariantModels, CompletionsDoNotDependOnTheBatch) {
  HEARTH_NEEDS_A_CARD();
  for (const auto& [dtype, format] : {std::pair{DType::bf16, WeightFormat::plain},
                                      {DType::f16, WeightFormat::plain},
                                      {DType::bf16, WeightFormat::int8}}) {
    if (m.moe && format != WeightFormat::plain) continue;  // refused
    TinyModel model(invariant_card(), m, 7, dtype, format);
    std::vector<Request> all;
    for (int i = 0; i < 70; ++i) {
      Request r{.prompt = tiny_prompt(1 + (i * 37) % 170, i)};
      r.sampling.max_tokens = 1 + (i * 13) % 60, r.sampling.logprobs = 1;
      r.sampling.seed = uint64_t(i), r.n = 1 + i % 3;
      all.push_back(std::move(r));
    }
    const auto want = model.engine({.max_batch = 1}).run(all);
    for (const EngineSpec& spec :
         {EngineSpec{.max_batch = 70}, EngineSpec{.max_batch = 16, .step_tokens = 50}}) {
      const auto got = model.engine(spec).run(all);
      for (size_t i = 0; i < all.size(); ++i)
        for (size_t n = 0; n < size_t(all[i].n); ++n) {
          const Completion &a = got[i][n], &b = want[i][n];
          ASSERT_EQ(a.tokens, b.tokens) << i << " sample " << n;
          for (size_t k = 0; k < b.logprobs.size(); ++k)
            EXPECT_EQ(a.logprobs[k].logprob, b.logprobs[k].logprob);
        }
    }
  }
}

// A prompt that fills its blocks is fed once and shared, whatever the samples draw.
TEST(CudaInvariant, SamplesShareTheBlocksOfTheirPrompt) {
  HEARTH_NEEDS_A_CARD();
  TinyModel model(invariant_card(), byte_configs()[0], 7, DType::bf16);
  Request r{.prompt = tiny_prompt(2 * int(cache_block), 1), .n = 8};
  r.sampling.max_tokens = 40, r.sampling.seed = 3, r.sampling.ignore_eos = true;
  Engine e = model.engine({.max_batch = 8, .reuse_prefixes = false});
  int64_t most = 0;
  const auto eight = e.run(std::vector{r}, [&](const TokenEvent&) {
    most = std::max(most, e.stats().used_blocks);
    return true;
  });
  EXPECT_EQ(e.stats().prompt_tokens, 2 * cache_block);
  EXPECT_LE(most, 2 + 8);  // the prompt's two, and one of each sample's own
  EXPECT_NE(eight[0][0].tokens, eight[0][1].tokens);
  const int64_t block = Runner::block_bytes(model.config, DType::bf16);
  for (const EngineSpec& spec :
       {EngineSpec{.max_batch = 3, .step_tokens = 8}, EngineSpec{.max_batch = 2, .step_tokens = 9},
        EngineSpec{.max_batch = 8, .cache_bytes = 5 * block}}) {
    const auto other = model.engine(spec).run(std::vector{r});
    for (size_t n = 0; n < 8; ++n) EXPECT_EQ(other[0][n].tokens, eight[0][n].tokens) << n;
  }
}

TEST(CudaInvariant, WhatHasNoSuchKernelsIsRefused) {
  HEARTH_NEEDS_A_CARD();
  const ModelConfig m = byte_configs()[0];
  TinyModel wide(invariant_card(), m, 7, DType::f32), narrow(invariant_card(), m, 7, DType::bf16);
  EXPECT_THROW(wide.engine({.max_batch = 1}), Error);
  EXPECT_THROW(narrow.engine({.max_batch = 1, .cache = CacheFormat::fp8}), Error);
}

}  // namespace
}  // namespace hearth::cases
