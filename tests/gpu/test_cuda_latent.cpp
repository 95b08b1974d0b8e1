// Attention over cached latents on the card, in both forms, against the reference.
#include <fmt/format.h>

#include "cpu/reference/reference.h"
#include "cuda_case.h"
#include "latent_case.h"
#include "unit/infer_model.h"

namespace hearth::cases {
namespace {

using test::card;
using test::card_tolerances;

const LatentCase card_cases[] = {
    {.name = "plain"},
    {.name = "preset", .H = 12, .L = 256},
    {.name = "wide preset", .H = 8, .nope = 96, .rope = 32, .v = 128, .L = 384},
    {.name = "deepseek", .H = 3, .nope = 128, .rope = 64, .v = 128, .L = 512},
    {.name = "window", .H = 9, .nope = 16, .rope = 16, .v = 24, .L = 40, .window = 100},
    {.name = "one head", .H = 1, .nope = 8, .rope = 8, .v = 8, .L = 8}};

TEST(CudaLatent, ValuesAreTheReferencesInBothForms) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend();
  for (const LatentCase& c : card_cases)
    for (const Tolerance& tolerance : card_tolerances) {
      SCOPED_TRACE(fmt::format("{} {}", c.name, to_string(tolerance.dtype)));
      const DType d = tolerance.dtype;
      const Numbers want = run_latent(*reference, DType::f64, d, c, latent_rows(), true);
      for (const bool absorbed : {true, false}) {
        const Numbers got = run_latent(card(), d, d, c, latent_rows(), absorbed);
        EXPECT_LT(error_of(got, want), tolerance.value) << absorbed;
        // captured and replayed, and without graphs
        EXPECT_TRUE(run_latent(card(), d, d, c, latent_rows(), absorbed, "latent.y", 3) == got);
        EXPECT_TRUE(run_latent(card(true, false), d, d, c, latent_rows(), absorbed) == got);
      }
    }
}

// Widths that no vector of the kernels divides, in fp32, which takes any.
TEST(CudaLatent, OddWidthsAreTheReferences) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend();
  const LatentCase odd{.name = "odd", .H = 3, .nope = 5, .rope = 6, .v = 7, .L = 13};
  const Numbers want = run_latent(*reference, DType::f64, DType::f32, odd, latent_rows(), true);
  for (const bool absorbed : {true, false})
    EXPECT_LT(
        error_of(run_latent(card(), DType::f32, DType::f32, odd, latent_rows(), absorbed), want),
        1e-5);
}

TEST(CudaLatent, LatentsAreStored) {
  HEARTH_NEEDS_A_CARD();
  const auto reference = make_reference_backend();
  for (const LatentCase& c : card_cases)
    for (const DType d : {DType::bf16, DType::f32})
      for (const bool absorbed : {true, false})
        EXPECT_TRUE(run_latent(card(), d, d, c, latent_rows(), absorbed, "cache", 3) ==
                    run_latent(*reference, DType::f64, d, c, latent_rows(), true, "cache"))
            << c.name;
}

TEST(CudaLatent, ARowHasTheSameBitsInAnyBatch) {
  HEARTH_NEEDS_A_CARD();
  const LatentCase c{.name = "", .H = 12, .L = 256};
  const LatentRows first{{700}, {3}};
  const Numbers all = run_latent(card(), DType::bf16, DType::bf16, c, latent_rows(), true);
  const Numbers alone = run_latent(card(), DType::bf16, DType::bf16, c, first, true);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin()));
}

// Greedy tokens in fp32 are those of the CPU, whichever form decodes.
TEST(CudaLatent, GreedyTokensInFp32AreTheCpus) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (ModelConfig c : latent_configs()) {
    c.dim = 128, c.hidden = 160, c.init_std = 0.15f;
    c.mla.nope_dim = c.mla.rope_dim = 16, c.mla.kv_latent = 40;
    if (c.v_head_dim) c.v_head_dim = 48;
    std::vector<Request> requests;
    for (int i = 0; i < 32; ++i) {
      Request r{.prompt = tiny_prompt(1 + (i * 37) % 170, i)};
      r.sampling.temperature = 0, r.sampling.max_tokens = 1 + (i * 13) % 60,
      r.sampling.logprobs = 2;
      requests.push_back(std::move(r));
    }
    TinyModel want_model(*cpu, c), m(card(), c);
    const auto want = want_model.engine({.max_batch = 32}).run(requests);
    for (const bool exact : {true, false}) {
      Engine e(m.config, m.params, card(), {.max_batch = 16, .exact = exact});
      const auto got = e.run(requests);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, want[i][0].tokens) << i << exact;
        for (size_t k = 0; k < want[i][0].logprobs.size(); ++k)
          EXPECT_NEAR(got[i][0].logprobs[k].logprob, want[i][0].logprobs[k].logprob, 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace hearth::cases
