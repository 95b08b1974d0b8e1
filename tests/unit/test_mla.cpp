// Latent attention: configs and their refusals, the cache, both forms of decoding, and that no
// token sees a later one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "cpu/reference/reference.h"
#include "latent_case.h"
#include "model/layer_spec.h"
#include "model_cases.h"
#include "unit/grpo_task.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

using cases::LatentCase, cases::latent_rows, cases::Numbers, cases::run_latent;

TEST(MlaConfig, TheCacheHoldsALatentAndOneKey) {
  const ModelConfig c = preset("mla-124m");
  constexpr int64_t values = 288;
  EXPECT_EQ(cache_block_bytes(c, CacheFormat::plain, DType::bf16), 12 * 64 * values * 2);
  ModelConfig plain = c;
  plain.mla = {}, plain.kv_heads = 0, plain.head_dim = 64;
  EXPECT_EQ(cache_block_bytes(plain, CacheFormat::plain, DType::bf16), 12 * 64 * 1536 * 2);
}

TEST(MlaConfig, RefusesWhatDoesNotFit) {
  const auto error = [](auto change) {
    ModelConfig c = preset("mla-124m");
    change(c);
    return message_of([&] { c.resolve(); });
  };
  using C = ModelConfig;
  EXPECT_EQ(error([](C& c) { c.mla.rope_dim = 31, c.head_dim = 0; }),
            "[model] latent attention needs an even rope_dim (got 31)");
  EXPECT_EQ(error([](C& c) { c.mla.nope_dim = 0; }),
            "[model] latent attention needs nope_dim from 1 to 1048576 (got 0), head_dim 0 or "
            "nope_dim + rope_dim (got 64)");
  EXPECT_EQ(error([](C& c) { c.head_dim = 80; }),
            "[model] latent attention needs head_dim 0 or nope_dim + rope_dim (got 80)");
  EXPECT_EQ(error([](C& c) { c.kv_heads = 4; }),
            "[model] latent attention needs kv_heads 0 or 12 (got 4)");
  EXPECT_EQ(error([](C& c) { c.qk_norm = QkNorm::before_rope; }),
            "[model] latent attention needs qk_norm none (got before_rope)");
  EXPECT_EQ(error([](C& c) { c.value_residual = true; }),
            "[model] latent attention needs value_residual false (got true)");
  EXPECT_EQ(error([](C& c) { c.position = Position::alibi; }),
            "[model] latent attention needs position rope (got alibi)");
  EXPECT_EQ(error([](C& c) { c.mla.kv_latent = 0; }),
            "[model] latent attention needs kv_latent from 1 to 1048576 (got 0); plain attention "
            "needs nope_dim, rope_dim of 0");
  EXPECT_EQ(error([](C& c) { c.mla.yarn_mscale = 1; }),
            "[model] latent attention needs rope_scaling yarn beside yarn_mscale and "
            "yarn_mscale_all (got none)");
  EXPECT_EQ(error([](C& c) {
              c.mla.yarn_mscale = -1, c.rope_scaling = RopeScaling::yarn, c.rope_factor = 2;
            }),
            "[model] latent attention needs yarn_mscale of 0 or more (got -1)");
  // Over a preset with plain attention, one error names everything that is missing or in the way.
  ModelConfig other = preset("modern-124m");
  other.mla.kv_latent = 64;
  EXPECT_EQ(message_of([&] { other.resolve(); }),
            "[model] latent attention needs nope_dim from 1 to 1048576 (got 0), rope_dim from 1 to "
            "1048576 (got 0), head_dim 0 or nope_dim + rope_dim (got 64), kv_heads 0 or 12 (got "
            "3), qk_norm none (got before_rope)");
  other.mla.nope_dim = 32, other.mla.rope_dim = 16, other.head_dim = other.kv_heads = 0;
  other.qk_norm = QkNorm::none;
  EXPECT_EQ(other.resolve().head_dim, 48);
  const auto backend = make_cpu_backend(1);
  EXPECT_EQ(message_of([&] {
              TinyModel(*backend, latent_configs()[0]).engine({.cache = CacheFormat::fp8});
            }),
            "[engine] a cache of latents (kv_latent) cannot be in fp8: use a plain one");
}

TEST(MlaConfig, YarnScalesScores) {
  ModelConfig c = preset("mla-124m");
  EXPECT_EQ(attention_score_scale(c, 64), 0.125f);
  c.rope_scaling = RopeScaling::yarn, c.rope_factor = 40, c.rope_context = 512, c.rope_high = 32;
  EXPECT_EQ(attention_score_scale(c, 64), 0.125f);
  EXPECT_NEAR(rope_magnitude(c), 0.1 * std::log(40.0) + 1, 1e-12);
  c.mla.yarn_mscale = c.mla.yarn_mscale_all = 1;
  EXPECT_EQ(rope_magnitude(c), 1);
  EXPECT_NEAR(attention_score_scale(c, 64), 0.125 * std::pow(0.1 * std::log(40.0) + 1, 2), 1e-7);
  c.mla.yarn_mscale_all = 0.5f;
  EXPECT_NEAR(rope_magnitude(c), (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1), 1e-7);
}

const LatentCase latent_cases[] = {
    {.name = "plain"},
    {.name = "odd", .H = 3, .nope = 5, .rope = 6, .v = 7, .L = 13},
    {.name = "window", .H = 5, .nope = 16, .rope = 8, .v = 24, .L = 40, .window = 100},
    {.name = "wide", .H = 2, .nope = 128, .rope = 64, .v = 128, .L = 512}};

TEST(LatentKernels, AreNearTheReferenceInBothForms) {
  const auto reference = make_reference_backend();
  for (const LatentCase& c : latent_cases)
    for (const cases::Tolerance& tolerance : cases::tolerances) {
      SCOPED_TRACE(fmt::format("{} {}", c.name, to_string(tolerance.dtype)));
      const DType d = tolerance.dtype;
      const Numbers want = run_latent(*reference, DType::f64, d, c, latent_rows(), true);
      EXPECT_LT(
          cases::error_of(run_latent(*reference, DType::f64, d, c, latent_rows(), false), want),
          1e-12);
      for (const auto& backend : cases::fast_backends(2))
        for (const bool absorbed : {true, false})
          EXPECT_LT(cases::error_of(run_latent(*backend, d, d, c, latent_rows(), absorbed), want),
                    tolerance.value)
              << backend->describe() << absorbed;
    }
}

TEST(LatentKernels, StoreTheRowsAndNothingElse) {
  const auto reference = make_reference_backend();
  for (const LatentCase& c : latent_cases)
    for (const auto& backend : cases::fast_backends(2))
      EXPECT_TRUE(run_latent(*backend, DType::f32, DType::f32, c, latent_rows(), true, "cache") ==
                  run_latent(*reference, DType::f64, DType::f32, c, latent_rows(), false, "cache"));
}

// A row of attention over latents does not depend on the rows beside it.
TEST(LatentKernels, GiveARowTheSameBitsInAnyBatch) {
  const LatentCase c{.name = "", .H = 3, .nope = 5, .rope = 6, .v = 7, .L = 13};
  const auto backend = make_cpu_backend(2);
  // Every row is stored before any is read, so only rows of other sequences may be left out.
  const Numbers all = run_latent(*backend, DType::f32, DType::f32, c, latent_rows(), true);
  cases::LatentRows first{{700}, {3}};
  const Numbers alone = run_latent(*backend, DType::f32, DType::f32, c, first, true);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin()));
}

std::vector<std::vector<Completion>> completions(Engine& e, int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request r{.prompt = tiny_prompt(1 + (i * 37) % 140, i),
              .sampling = {.temperature = 0, .max_tokens = 30, .logprobs = 1}};
    requests.push_back(std::move(r));
  }
  return e.run(requests);
}

// The engine attends over latents unless it is asked for the bits of training.
TEST(LatentEngine, BothFormsAgree) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : latent_configs()) {
    TinyModel m(*backend, c);
    Engine exact = m.engine({.max_batch = 6});
    Engine absorbed(m.config, m.params, *backend, {.max_batch = 6});
    const auto want = completions(exact, 16), got = completions(absorbed, 16);
    int differ = 0;
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t k = 0; k < want[i][0].tokens.size(); ++k) {
        if (got[i][0].tokens[k] != want[i][0].tokens[k]) {
          ++differ;  // a near tie; what follows is another text
          break;
        }
        most = std::max(most, std::abs(double(got[i][0].logprobs[k].logprob) -
                                       double(want[i][0].logprobs[k].logprob)));
      }
    EXPECT_LE(differ, 1);
    EXPECT_LT(most, 2e-4);
    EXPECT_GT(most, 0);  // they are two ways to compute it
  }
}

// A step that verifies draft tokens attends over latents as one without them does.
TEST(LatentEngine, DraftTokensChangeNoBit) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : latent_configs()) {
    TinyModel m(*backend, c);
    for (const int64_t speculate : {1, 4, 64}) {
      SCOPED_TRACE(speculate);
      Engine plain(m.config, m.params, *backend, {.max_batch = 1});
      Engine drafts(m.config, m.params, *backend, {.max_batch = 1, .speculate = speculate});
      const auto want = completions(plain, 6), got = completions(drafts, 6);
      EXPECT_GT(drafts.stats().drafted, 0);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, want[i][0].tokens);
        for (size_t k = 0; k < want[i][0].tokens.size(); ++k)
          ASSERT_EQ(got[i][0].logprobs[k].logprob, want[i][0].logprobs[k].logprob);
      }
    }
  }
}

// A CPU that counts how often keys and values of cached latents are computed.
int64_t expansions = 0;
decltype(Kernels::latent_panels) latent_panels_of_cpu = nullptr;
class CountingBackend final : public WrappedBackend {
 public:
  CountingBackend() : table_(WrappedBackend::kernels()) {
    latent_panels_of_cpu =
        std::exchange(table_.latent_panels, [](Stream& s, const LatentPanelsArgs& a) {
          ++expansions;
          latent_panels_of_cpu(s, a);
        });
  }
  const Kernels& kernels() const override { return table_; }

 private:
  Kernels table_;
};

// Only the step that reads the prompt does so, whatever the format of the weights.
TEST(LatentEngine, QuantisedModelsAttendOverLatentsToo) {
  CountingBackend backend;
  for (const WeightFormat format : {WeightFormat::plain, WeightFormat::int8, WeightFormat::int4})
    for (const ModelConfig& c : latent_configs()) {
      SCOPED_TRACE(to_string(format));
      TinyModel m(backend, c, 7, DType::f32, format);
      EXPECT_TRUE(m.params.plain("blocks.0.attn.kv_b.weight"));
      EXPECT_EQ(bool(m.params.quantised("blocks.0.attn.out.weight")),
                format != WeightFormat::plain);
      Engine exact = m.engine(), absorbed(m.config, m.params, backend, {});
      const Request r{.prompt = tiny_prompt(60),
                      .sampling = {.temperature = 0, .max_tokens = 20, .logprobs = 1}};
      const Completion want = exact.run(std::vector{r})[0][0];
      expansions = 0;
      const Completion got = absorbed.run(std::vector{r})[0][0];
      EXPECT_EQ(expansions, c.layers);
      EXPECT_EQ(got.logprobs[0].logprob, want.logprobs[0].logprob);  // of the prompt
      EXPECT_NEAR(got.logprobs[1].logprob, want.logprobs[1].logprob, 0.1);
      EXPECT_EQ(got.tokens.size(), 20u);
    }
}

// Modules that draft read the cached latents too, also where the model itself has to decode with
// the bits of training.
TEST(LatentEngine, ModulesDraftOverLatents) {
  CountingBackend backend;
  for (const size_t i : {0, 2}) {
    ModelConfig c = latent_configs()[i];
    c.mtp = 2;
    TinyModel m(backend, c);
    const auto counted = [&](bool exact) {
      Engine e(m.config, m.params, backend,
               {.max_batch = 1, .speculate = 4, .draft = Draft::mtp, .exact = exact});
      const Request r{.prompt = tiny_prompt(60),
                      .sampling = {.temperature = 0, .max_tokens = 40, .logprobs = 1}};
      expansions = 0;
      e.run(std::vector{r});
      EXPECT_GT(e.stats().drafted, 20);
      return std::pair(expansions, e.stats().steps);
    };
    // The layers of the model and the first module read the prompt; the last module stores its
    // rows.
    EXPECT_EQ(counted(false).first, c.layers + 1);
    const auto [made, steps] = counted(true);
    EXPECT_EQ(made, steps * c.layers + 1);
  }
}

// Adapters are no plain tensors: such models decode as they train.
TEST(LatentEngine, AdaptersDecodeWithTheBitsOfTraining) {
  const auto backend = make_cpu_backend(2);
  ModelConfig c = latent_configs()[0];
  c.lora = {.rank = 2, .alpha = 4};
  TinyModel m(*backend, c);
  for (const ParamSpec& p : m.params.specs()) {
    if (!p.name.ends_with(".lora_B")) continue;
    std::vector<float> x(size_t(p.shape.numel()));
    draw(x, Init::uniform(0.3f), 3, p.name);
    m.params.set(p.name, x);
  }
  Engine e(m.config, m.params, *backend, {.max_batch = 4});
  for (const auto& all : completions(e, 5)) {
    const Completion& made = all[0];
    EXPECT_EQ(made.tokens.size(), 30u);
  }
  const Request r{.prompt = tiny_prompt(70),
                  .sampling = {.temperature = 0, .max_tokens = 20, .logprobs = 1}};
  const Completion made = e.run(std::vector{r})[0][0];
  std::vector<int32_t> tokens = r.prompt;
  tokens.insert(tokens.end(), made.tokens.begin(), made.tokens.end());
  const std::vector<float> nll = m.nll(tokens);
  for (size_t k = 0; k < made.tokens.size(); ++k)
    EXPECT_EQ(made.logprobs[k].logprob, -nll[r.prompt.size() + k - 1]);
}

// Changed tokens change nothing before them, and everything from them on.
TEST(LatentAttention, NoTokenSeesALaterOne) {
  const auto backend = make_cpu_backend(2);
  for (const ModelConfig& c : latent_configs()) {
    TinyModel m(*backend, c);
    const std::vector<int32_t> tokens = tiny_prompt(90);
    const std::vector<float> want = m.all_logits(tokens);
    for (const size_t at : {1u, 40u, 64u, 89u}) {
      std::vector<int32_t> other = tokens;
      for (size_t i = at; i < other.size(); ++i) other[i] = (other[i] + 5) % 23;
      const std::vector<float> got = m.all_logits(other);
      const auto before = std::ptrdiff_t(at * size_t(c.vocab));
      EXPECT_TRUE(std::equal(want.begin(), want.begin() + before, got.begin()));
      EXPECT_FALSE(
          std::equal(want.begin() + before, want.begin() + before + c.vocab, got.begin() + before));
    }
  }
}

TEST(LatentGrpo, TheSamplersLogprobsAreTheTrainersToTheBit) {
  const auto backend = make_cpu_backend(2);
  for (const char* lora : {"", "4,8"}) {
    ModelConfig m = latent_configs()[0];
    m.vocab = 257;
    GrpoConfig c;
    c.group = 4, c.reward = {"length:10"}, c.train_equal = true;
    if (*lora) c.lora = {lora};
    GrpoTask task(*backend, c, m, DType::f32, {.prompts = {1, 60, 64}, .completion = 30});
    for (int i = 0; i < 3; ++i) {
      const StepFindings f = task.step();
      EXPECT_EQ(f.gap.most, 0);
      EXPECT_GT(f.gap.tokens, 100);
    }
  }
}

}  // namespace
}  // namespace hearth
