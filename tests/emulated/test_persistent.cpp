// The persistent kernel's device code on the host: whole decode steps against the CPU's kernels,
// with random schedules, few and many blocks, and rings that hold one entry at a time.
#include <gtest/gtest.h>

#include <algorithm>

#include "decode_case.h"
#include "emulated_backend.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

using cases::DecodeCase;
using cases::DecodeRun;
using cases::Numbers;
using emulated::EmulatedBackend;
using emulated::EmulatedSpec;

// Rows of padding have no meaning.
Numbers of_real_rows(const DecodeCase& c, Numbers logits) {
  const size_t columns = logits.size() / c.positions.size();
  Numbers kept;
  for (size_t n = 0; n < c.positions.size(); ++n)
    if (c.positions[n] >= 0)
      kept.insert(kept.end(), logits.begin() + ptrdiff_t(n * columns),
                  logits.begin() + ptrdiff_t((n + 1) * columns));
  return kept;
}

Numbers fused_logits(const DecodeCase& c, EmulatedBackend& backend) {
  DecodeRun run(backend, c, DType::bf16);
  run.run();
  EXPECT_TRUE(run.fused()) << backend.refusal;
  return of_real_rows(c, run.logits());
}

Numbers fused_logits(const DecodeCase& c, const EmulatedSpec& spec = {}) {
  EmulatedBackend backend(spec);
  return fused_logits(c, backend);
}

// The largest entry of the ring.
int64_t largest_entry(const cuda::persistent::StepPlan& plan) {
  int64_t largest = 0;
  for (const cuda::persistent::Phase& f : plan.phases) {
    const int K = f.attends ? 0 : f.product.K;
    const int columns = std::min(K, cuda::persistent::chunk_columns);
    largest = std::max<int64_t>({largest, 16 * cuda::persistent::pitch_of(columns), 4 * K,
                                 f.attends ? 128 * f.attention.D : 0});
  }
  return largest;
}

std::vector<DecodeCase> all_cases() { return cases::decode_cases(); }

class Persistent : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(, Persistent, testing::Range(size_t(0), all_cases().size()),
                         [](const auto& info) {
                           std::string name = all_cases()[info.param].name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST_P(Persistent, LogitsAndCacheAreTheCpus) {
  const DecodeCase c = all_cases()[GetParam()];
  const auto cpu = make_cpu_backend(1);
  DecodeRun exact(*cpu, c, DType::f32), plain(*cpu, c, DType::bf16);
  exact.run(), plain.run();
  const Numbers want = of_real_rows(c, exact.logits());
  EmulatedBackend backend;
  DecodeRun fused(backend, c, DType::bf16);
  fused.run();
  ASSERT_TRUE(fused.fused()) << backend.refusal;
  EXPECT_FALSE(plain.fused());
  // Both round the same values to bf16, so they differ where a sum is near the middle of two.
  const Numbers got = of_real_rows(c, fused.logits()), other = of_real_rows(c, plain.logits());
  EXPECT_LT(cases::error_of(got, other), 0.01);
  EXPECT_LT(cases::error_of(got, want), std::max(1.5 * cases::error_of(other, want), 0.005));
  for (int64_t layer = 0; layer < fused.layers(); ++layer) {
    const Numbers stored = fused.cache(layer), expected = plain.cache(layer);
    EXPECT_LT(cases::error_of(stored, expected), 0.01);
    size_t differ = 0;  // by rounding, in the keys and values of the step's own tokens
    for (size_t i = 0; i < stored.size(); ++i) differ += stored[i] != expected[i];
    EXPECT_LE(differ, c.positions.size() * 16);
  }
}

TEST_P(Persistent, NeitherBlocksNorScheduleNorRingChangeABit) {
  const DecodeCase c = all_cases()[GetParam()];
  EmulatedBackend backend({.blocks = 3});
  const Numbers want = fused_logits(c, backend);
  // Room for the largest entry and little more, so that entries often begin at 0 early.
  const int64_t ring = largest_entry(*backend.plan) + 48;
  EXPECT_TRUE(fused_logits(c, {.blocks = 4, .ring_bytes = ring, .seed = 3}) == want);
}

TEST(PersistentSteps, AreTheSameInEveryRun) {
  const DecodeCase c = all_cases()[1];
  EmulatedBackend backend;
  DecodeRun run(backend, c, DType::bf16);
  run.run();
  const Numbers first = run.logits(), cache = run.cache(1);
  run.run();
  run.run();
  EXPECT_TRUE(run.logits() == first);
  EXPECT_TRUE(run.cache(1) == cache);
}

// With more blocks than a product has outputs, some have nothing to do.
TEST(PersistentSteps, MayHaveIdleBlocks) {
  DecodeCase c = all_cases()[2];
  c.config.layers = 1;
  const Numbers want = fused_logits(c, {.blocks = 1});
  EXPECT_TRUE(fused_logits(c, {.blocks = 40, .seed = 2}) == want);
}

// What layers exchange takes the memory of two of them, as long as every block takes part.
TEST(PersistentSteps, ReuseThePacketsOfEarlierLayers) {
  const auto packets = [](int64_t layers) {
    DecodeCase c = all_cases()[0];
    c.config.layers = layers;
    EmulatedBackend backend({.blocks = 2});
    fused_logits(c, backend);
    return backend.plan->packets;
  };
  EXPECT_EQ(packets(5), packets(3));
}

TEST(PersistentSteps, NormsMayStandAlone) {
  for (const size_t i : {0, 2, 7}) {
    const DecodeCase c = all_cases()[i];
    EXPECT_TRUE(fused_logits(c, {.joins_norms = false}) == fused_logits(c));
  }
}

// Prompts run kernel by kernel, and each step that decodes as one kernel and the sampler.
TEST(PersistentSteps, DecodeInTheEngine) {
  std::vector<Request> requests(2);
  for (int i = 0; i < 2; ++i) {
    requests[size_t(i)].prompt = tiny_prompt(3 + 60 * i, i);
    requests[size_t(i)].sampling.temperature = 0;
    requests[size_t(i)].sampling.max_tokens = 4 + 2 * i;
    requests[size_t(i)].sampling.ignore_eos = true, requests[size_t(i)].sampling.logprobs = 1;
  }
  ModelConfig c = cases::decode_llama();
  c.vocab = 23, c.context = 128, c.init_std = 0.4f;
  EmulatedBackend plain({.fuses = false, .joins_norms = false}), fused({.joins_norms = false});
  TinyModel want_model(plain, c, 7, DType::bf16), model(fused, c, 7, DType::bf16);
  const auto want = want_model.engine({.max_batch = 2}).run(requests);
  const auto got = model.engine({.max_batch = 2}).run(requests);
  EXPECT_EQ(plain.runs, 0);
  EXPECT_GE(fused.runs, 5);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got[i][0].tokens, want[i][0].tokens);
    for (size_t k = 0; k < want[i][0].logprobs.size(); ++k)
      EXPECT_NEAR(got[i][0].logprobs[k].logprob, want[i][0].logprobs[k].logprob, 0.05);
  }
}

// A product takes the activation that follows it, so nothing may be computed from its result.
TEST(PersistentSteps, ResultsBeforeAnActivationAreGone) {
  constexpr int64_t C = 16;
  alignas(256) static std::byte memory[8][1024];
  const auto tensor = [&](int i, Shape s, DType d = DType::bf16) {
    return Tensor{memory[i], s, d};
  };
  const Tensor x = tensor(0, {1, C}), pre = tensor(1, {1, C}), y = tensor(2, {1, C});
  const Tensor normed = tensor(3, {1, C}), w = tensor(4, {C, C}), z = tensor(5, {1, C});
  for (const bool reads_normed : {false, true}) {
    cuda::persistent::Recorder recorder({.shared_bytes = 1 << 17, .control_bytes = 1 << 14});
    recorder.embed({.y = x, .ids = tensor(6, {1, 1}, DType::i32), .w = w});
    recorder.gemm({.c = pre, .a = x, .b = w, .spec = {.tb = true}});
    recorder.norm({.y = normed, .x = pre});
    recorder.activation({.y = y, .x = pre, .act = Act::relu2});
    recorder.gemm({.c = z, .a = reads_normed ? normed : y, .b = w, .spec = {.tb = true}});
    EXPECT_EQ(recorder.refusal().empty(), !reads_normed) << recorder.refusal();
  }
}

TEST(PersistentSteps, OtherProgramsAreRefused) {
  const auto refusal = [](auto change) {
    DecodeCase c = all_cases()[2];
    change(c);
    EmulatedBackend backend;
    DecodeRun run(backend, c, DType::bf16);
    run.run();
    EXPECT_FALSE(run.fused());
    return backend.refusal;
  };
  EXPECT_EQ(refusal([](DecodeCase& c) { c.positions.assign(9, 3); }), "more than 8 rows");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.output_gate = OutputGate::per_head; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.norm_place = NormPlace::sandwich; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.position = Position::relative; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.value_residual = true; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.v_head_dim = 16; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.moe.experts = 4; }), "");
  EXPECT_NE(refusal([](DecodeCase& c) { c.config.hidden = 16000, c.positions.assign(8, 3); }), "");
}

}  // namespace
}  // namespace hearth
