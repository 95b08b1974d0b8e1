// Drafts by modules of multi-token prediction: they change no token, they are what the modules
// predict in training, and a trained model accepts them.
#include <algorithm>
#include <numeric>

#include "infer/runner.h"
#include "train/pretrain/programs.h"
#include "unit/drawing_backend.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using Tokens = std::vector<int32_t>;

// Dense, with windows in all layers, with experts, with the additions of fast recipes, and latent
// attention with and without experts.
std::vector<ModelConfig> drafting_configs(int64_t modules) {
  std::vector<ModelConfig> all;
  const std::vector<ModelConfig> plain = long_configs(), latent = latent_configs();
  for (const size_t i : {0, 2, 4, 7, 11}) all.push_back(plain[i]);
  for (const size_t i : {0, 2}) all.push_back(latent[i]);
  for (ModelConfig& c : all) c.mtp = modules;
  return all;
}

Request continuing(Tokens prompt, int64_t made, uint64_t seed) {
  const bool greedy = seed % 2 == 0;
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = greedy ? 0.f : 1.2f,
                       .top_p = greedy ? 1.f : 0.9f,
                       .seed = seed,
                       .max_tokens = made,
                       .logprobs = 1}};
}

// Prompts that end on both sides of a block's end and at it, some with several samples.
std::vector<Request> requests() {
  std::vector<Request> all;
  const int64_t sizes[] = {1, 2, 5, 63, 64, 65, 90, 128, 3, 64};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    all.push_back(
        continuing(tiny_prompt(sizes[i], int32_t(i)), 5 + int64_t(i * 17) % 40, uint64_t(i)));
    all.back().n = i % 4 == 3 ? 3 : 1;
    all.back().prompt_logprobs = i % 5 == 1;
  }
  all.push_back(all[4]);  // finds its prompt in the cache
  return all;
}

void expect_same(const std::vector<std::vector<Completion>>& got,
                 const std::vector<std::vector<Completion>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(got[i].size(), want[i].size());
    for (size_t k = 0; k < got[i].size(); ++k) {
      EXPECT_EQ(got[i][k].tokens, want[i][k].tokens);
      ASSERT_EQ(got[i][k].logprobs.size(), want[i][k].logprobs.size());
      for (size_t p = 0; p < got[i][k].logprobs.size(); ++p)
        EXPECT_EQ(got[i][k].logprobs[p].logprob, want[i][k].logprobs[p].logprob);
    }
  }
}

TEST(MtpDraft, ChangesNothing) {
  const auto backend = make_cpu_backend(1);
  for (const int64_t modules : {1, 2})
    for (const ModelConfig& c : drafting_configs(modules)) {
      TinyModel m(*backend, c);
      Engine plain = m.engine({.max_batch = 1, .reuse_prefixes = false});
      const auto want = plain.run(requests());
      const int64_t block = Runner::block_bytes(c, DType::f32, CacheFormat::plain, modules);
      for (const EngineSpec& spec :
           {EngineSpec{.max_batch = 5, .step_tokens = 40, .draft = Draft::mtp},
            EngineSpec{.max_batch = 4, .speculate = 5, .draft = Draft::mtp},
            EngineSpec{.max_batch = 2,  // the samples of a request take turns
                       .step_tokens = 30,
            .speculate = 3,
            .draft = Draft::mtp,
            .cache_bytes = 5 * block}}) {
        Engine e = m.engine(spec);
        expect_same(e.run(requests()), want);
        EXPECT_GT(e.stats().drafted, 50);
        EXPECT_EQ(e.stats().used_blocks, 0);
        EXPECT_EQ(e.stats().drafts.size(), size_t(spec.speculate ? spec.speculate : modules));
        EXPECT_GT(e.stats().drafts[0].tried, 0);
      }
    }
}

// A device that draws also chooses the drafts.
TEST(MtpDraft, ChangesNothingWhereTheDeviceDraws) {
  for (const ModelConfig& c : drafting_configs(2)) {
    if (c.logit_softcap > 0) continue;
    DrawingBackend drawing;
    TinyModel m(drawing, c);
    Engine plain = m.engine({.max_batch = 3, .step_tokens = 40});
    Engine drafts =
        m.engine({.max_batch = 3, .step_tokens = 40, .speculate = 4, .draft = Draft::mtp});
    std::vector<Request> all = requests();
    for (Request& r : all) {
      r.prompt_logprobs = false, r.sampling.logprobs = -1;
      if (r.prompt.size() == 1) r.n = 1;
    }
    const auto want = plain.run(all), got = drafts.run(all);
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t k = 0; k < want[i].size(); ++k) EXPECT_EQ(got[i][k].tokens, want[i][k].tokens);
    EXPECT_GT(drafts.stats().drafted, 50);
    EXPECT_EQ(drafts.stats().used_blocks, 0);
  }
}

// The likeliest token of module k (from 0) at a position, by the forward pass of training.
int32_t predicted(TinyModel& m, const Tokens& tokens, int64_t k, int64_t position) {
  const int64_t T = int64_t(tokens.size()), C = m.config.dim, V = m.config.vocab;
  Memory memory(m.backend, &m.params);
  Tape t(DType::f32);
  std::vector<Var> further;
  decoder(t, m.config, declare_inputs(t, 1, T, false), {.further = &further});
  const Var out = t.result("logits", {T, V}, DType::f32);
  record_gemm(t, {.c = out,
                  .a = t.view(further[size_t(k)], {T, C}),
                  .b = head_weight(t, m.config),
                  .spec = {.tb = true, .alpha = m.config.logit_scale}});
  Exec exec(std::move(t), memory);
  Tokens positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  memory.state.write<int32_t>("main.tokens", tokens);
  memory.state.write<int32_t>("main.positions", positions);
  exec.run();
  std::vector<float> all(size_t(T * V));
  memory.state.read<float>("main.logits", all);
  const auto row = std::span(all).subspan(size_t(position * V), size_t(V));
  return int32_t(std::ranges::max_element(row) - row.begin());
}

// Follows the engine's rule with the modules of training, and counts what is accepted.
std::vector<DraftCount> counted(TinyModel& m, const Request& r, const Tokens& made) {
  const int64_t D = m.config.mtp, limit = int64_t(made.size());
  std::vector<DraftCount> counts(static_cast<size_t>(D));
  Tokens tokens = r.prompt;
  tokens.push_back(made[0]);
  for (int64_t done = 1, wanted = D; done < limit;) {
    const int64_t n = std::min(wanted, limit - done - 1);
    Tokens drafted = tokens;
    for (int64_t k = 0; k < n; ++k)
      drafted.push_back(predicted(m, drafted, k, int64_t(tokens.size()) - 2));
    int64_t right = 0;
    while (right < n && drafted[tokens.size() + size_t(right)] == made[size_t(done + right)])
      ++right;
    for (int64_t i = 0; i < n; ++i)
      ++counts[size_t(i)].tried, counts[size_t(i)].accepted += i < right;
    if (n > 0) wanted = right == n ? std::min(D, 2 * n) : right + 1;
    for (int64_t i = 0; i <= right; ++i) tokens.push_back(made[size_t(done++)]);
  }
  return counts;
}

TEST(MtpDraft, IsWhatTheModulesPredictInTraining) {
  const auto backend = make_cpu_backend(1);
  for (const int64_t modules : {1, 2, 3})
    for (ModelConfig c : drafting_configs(modules)) {
      c.vocab = 4;  // so that many guesses of random weights are right
      TinyModel m(*backend, c);
      Request r = continuing({1, 3, 0, 2, 1, 1, 3, 2, 0}, 60, 4);
      Engine e = m.engine({.max_batch = 1, .step_tokens = 6, .draft = Draft::mtp});
      r.sampling.temperature = 1.5f;
      const Tokens made = e.run(std::vector{r})[0][0].tokens;
      const std::vector<DraftCount> want = counted(m, r, made), got = e.stats().drafts;
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].tried, want[i].tried) << modules << " " << i;
        EXPECT_EQ(got[i].accepted, want[i].accepted) << modules << " " << i;
      }
      EXPECT_GT(got[0].accepted, 0);
      EXPECT_LT(got[0].accepted, got[0].tried);
    }
}

// Every token follows from the two before it.
Tokens taught(int64_t size, int64_t first) {
  Tokens t{int32_t(first % 23), int32_t(first * 7 % 23)};
  while (int64_t(t.size()) < size) t.push_back((2 * t[t.size() - 1] + t[t.size() - 2] + 3) % 23);
  return t;
}

TEST(MtpDraft, IsAcceptedByATrainedModel) {
  const auto backend = make_cpu_backend(1);
  ModelConfig c = tiny_config();
  c.mtp = 2, c.dim = 32, c.hidden = 64, c.context = 64, c.init_std = 0.05f;
  constexpr int64_t B = 8, T = 24;
  TinyModel m(*backend, c);
  Memory memory(*backend, &m.params);
  Programs programs({.model = m.config, .B = B, .T = T}, memory);
  for (uint32_t step = 0; step < 300; ++step) {
    Batch batch;
    batch.count = B * T;
    for (int64_t b = 0; b < B; ++b) {
      const Tokens row = taught(T + 1, int64_t(step) * B + b);
      for (int64_t i = 0; i < T; ++i) {
        batch.tokens.push_back(row[size_t(i)]), batch.targets.push_back(row[size_t(i) + 1]);
        batch.positions.push_back(int32_t(i));
      }
    }
    Scalars s;
    s.lr = 0.005f, s.clip = 1, s.inv_targets = 1 / float(batch.count), s.step = step;
    programs.micro(batch, s, true);
    programs.update().run(s);
  }
  const auto accepted = [&](int64_t drafts) {
    Engine e = m.engine({.max_batch = 1, .speculate = drafts, .draft = Draft::mtp});
    e.run(std::vector{continuing(taught(6, 11), 40, 0)});
    return e.stats();
  };
  const EngineStats two = accepted(2), five = accepted(5);
  EXPECT_GT(two.drafts[0].accepted, two.drafts[0].tried / 2);
  EXPECT_GT(two.drafts[1].accepted, two.drafts[1].tried / 2);
  EXPECT_GT(five.drafts[2].accepted, 0);  // the modules applied again
  EXPECT_LT(two.steps, 25);
}

TEST(MtpDraft, NeedsModules) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  EXPECT_EQ(message_of([&] { m.engine({.draft = Draft::mtp}); }),
            "[--draft] expected a model with modules of multi-token prediction (mtp), got one "
            "without: use --draft lookup");
}

}  // namespace
}  // namespace hearth
