// GRPO on tiny models: the sampler's log-probabilities are the trainer's to the bit, rollouts of
// older weights are refused, and what may not change the result does not.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "grpo_task.h"
#include "infer/block_pool.h"
#include "infer/runner.h"
#include "rewards/regex.h"
#include "sys/error.h"
#include "train/grpo/grpo_report.h"
#include "train/grpo/policy.h"

namespace hearth {
namespace {

class Grpo : public testing::Test {
 protected:
  void SetUp() override {
    if (!*regex_library()) GTEST_SKIP() << "built without PCRE2, whose reward the tasks use";
  }
};

struct TinyTask : GrpoTask {
  explicit TinyTask(Backend& b, GrpoConfig given = {}, float softcap = 0)
      : GrpoTask(b, std::move(given), byte_config(softcap)) {}
};

TEST(GrpoRollouts, AreKeptOfTheFirstTheLastAndEnoughStepsBetween) {
  for (const int64_t steps : {1, 2, 199, 200, 201, 399, 400, 401, 599, 600, 1001, 12345}) {
    int64_t kept = 0;
    for (int64_t step = 1; step <= steps; ++step) kept += keeps_rollouts(step, steps);
    EXPECT_TRUE(keeps_rollouts(1, steps) && keeps_rollouts(steps, steps)) << steps;
    EXPECT_GE(kept, steps < 400 ? steps : 201) << steps;
    EXPECT_LE(kept, steps < 400 ? steps : 301) << steps;
  }
}

TEST_F(Grpo, TheSamplersLogprobsAreTheTrainersToTheBit) {
  for (const int threads : {1, 2})
    for (const auto& [temperature, softcap] :
         {std::pair{1.0f, 0.0f}, {0.7f, 0.0f}, {1.9f, 0.0f}, {1.0f, 3.0f}, {0.7f, 3.0f}}) {
      GrpoConfig c;
      c.temperature = temperature, c.train_equal = true;
      const auto backend = make_cpu_backend(threads);
      TinyTask task(*backend, c, softcap);
      int64_t compared = 0;
      for (int i = 0; i < 6; ++i) {
        const StepFindings f = task.step();
        EXPECT_EQ(f.gap.most, 0) << backend->describe() << " at " << temperature << ", " << softcap;
        compared += f.gap.tokens;
      }
      EXPECT_GT(compared, 100);
    }
}

// Rollouts, training and the reference of the KL all stand on one store: nothing loads a second.
TEST_F(Grpo, AdaptersAreSampledToTheBitAndTheReferenceIsTheirBase) {
  for (const int threads : {1, 2})
    for (const float temperature : {1.0f, 0.7f}) {
      const auto backend = make_cpu_backend(threads);
      GrpoConfig c;
      c.temperature = temperature, c.beta = 0.01;
      c.lora = {"4,8"};
      TinyTask task(*backend, c);
      std::map<std::string, std::vector<float>> before;
      for (const ParamSpec& p : task.model->params.specs())
        before[p.name] = task.model->params.values(Part::weight, p.name);
      for (int i = 0; i < 5; ++i) {
        const StepFindings f = task.step();
        EXPECT_EQ(f.gap.most, 0) << backend->describe() << " at " << temperature;
        EXPECT_EQ(f.gap.tokens, f.batch.tokens);
        EXPECT_EQ(f.policy.kl == 0, i == 0) << f.policy.kl;
      }
      for (const ParamSpec& p : task.model->params.specs())
        EXPECT_EQ(before[p.name] == task.model->params.values(Part::weight, p.name), !p.trainable)
            << p.name;
    }
}

TEST_F(Grpo, AdaptersLearnWhatIsRewarded) {
  const auto backend = make_cpu_backend(2);
  GrpoConfig c;
  c.schedule = Schedule::constant;
  c.lora = {"8"};
  TinyTask task(*backend, c);
  // The head is frozen: it must be able to say something.
  std::vector<float> head = task.model->params.values(Part::weight, "head.weight");
  for (float& x : head) x *= 8;
  task.model->params.set("head.weight", head);
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    const double r = task.step().advantages.reward_mean;
    (i < 5 ? first : last) += i < 5 || i >= 35 ? r / 5 : 0;
  }
  EXPECT_GT(last, first + 0.3);
}

TEST_F(Grpo, RolloutsOfOlderWeightsAreNeverTrainedOn) {
  const auto backend = make_cpu_backend(2);
  TinyTask task(*backend);
  RolloutBatch batch = task.roll_out();
  EXPECT_EQ(batch.version, 0u);
  const StepFindings f = task.stepper->train_on(batch, task.context(), task.state);
  ASSERT_EQ(f.updates, 1);
  EXPECT_EQ(task.state.version, 1u);
  const std::vector<float> before = task.weights();
  EXPECT_THROW(task.stepper->train_on(batch, task.context(), task.state), Error);
  EXPECT_EQ(task.weights(), before);
  EXPECT_EQ(task.state.version, 1u);
}

TEST_F(Grpo, RolloutsComeFromTheWeightsInTraining) {
  const auto backend = make_cpu_backend(2);
  GrpoConfig c;
  c.lr = 0;
  TinyTask still(*backend, c);
  const auto texts = [](const RolloutBatch& b) {
    std::vector<std::vector<int32_t>> all;
    for (const Rollout& r : b.rollouts) all.push_back(r.tokens);
    return all;
  };
  // The engine has cached prefixes of the weights before: they must be forgotten.
  TinyTask moved(*backend);
  EXPECT_EQ(texts(moved.step().batch), texts(still.step().batch));
  const RolloutBatch after = moved.roll_out();
  TinyTask fresh(*backend);
  for (const ParamSpec& p : moved.model->params.specs())
    fresh.model->params.set(p.name, moved.model->params.values(Part::weight, p.name));
  fresh.state = moved.state, fresh.run = moved.run;
  const RolloutBatch anew = fresh.roll_out();
  EXPECT_EQ(texts(after), texts(anew));
  for (size_t i = 0; i < after.rollouts.size(); ++i)
    EXPECT_EQ(after.rollouts[i].logprobs, anew.rollouts[i].logprobs);
}

TEST_F(Grpo, HowABatchIsCutDoesNotChangeTheStep) {
  const auto backend = make_cpu_backend(2);
  std::vector<float> whole;
  for (const int64_t micro : {4096, 64, 1}) {
    GrpoConfig c;
    c.micro_tokens = micro, c.train_equal = true;
    c.reduction = Reduction::grpo;
    TinyTask task(*backend, c);
    const StepFindings f = task.step();
    EXPECT_EQ(f.updates, 1);
    const std::vector<float> grads =
        task.model->params.values(Part::grad, "blocks.0.mlp.up.weight");
    if (whole.empty()) whole = grads;
    double most = 0;
    for (const float x : whole) most = std::max(most, std::abs(double(x)));
    ASSERT_GT(most, 0);
    ASSERT_EQ(grads.size(), whole.size());
    for (size_t i = 0; i < grads.size(); ++i) EXPECT_NEAR(grads[i], whole[i], 1e-5 * most);
  }
}

// How many completions have something to teach is another number at every step.
TEST_F(Grpo, FewShapesOfBatchesServeAll) {
  std::set<std::pair<int64_t, int64_t>> shapes;
  int64_t fed = 0, wanted = 0;
  for (size_t n = 1; n <= 512; ++n) {
    std::vector<Rollout> made(n);
    std::vector<const Rollout*> all;
    for (Rollout& r : made) {
      r.prompt_tokens = 6, r.tokens.assign(10, 1);
      all.push_back(&r);
    }
    size_t seen = 0;
    for (const std::vector<size_t>& micro : micro_batches(all, 4096, 64)) {
      std::vector<const Rollout*> of;
      for (const size_t i : micro) of.push_back(all[i]);
      const TokenBatch b = token_batch(of, 64);
      EXPECT_LE(b.B * b.T, 4096);
      EXPECT_EQ(b.rows.size(), 4 * of.size());
      EXPECT_LT(b.rows.back(), b.B * b.T);
      shapes.insert({b.B, b.T});
      seen += of.size(), fed += b.B * b.T, wanted += 9 * int64_t(of.size());
    }
    EXPECT_EQ(seen, n);
  }
  EXPECT_LT(shapes.size(), 64u);
  EXPECT_LT(double(fed), 1.2 * double(wanted));
}

TEST_F(Grpo, CompletionsWithoutAdvantageChangeNothing) {
  const auto backend = make_cpu_backend(2);
  for (const Reduction reduction :
       {Reduction::grpo, Reduction::bnpo, Reduction::dr_grpo, Reduction::dapo}) {
    SCOPED_TRACE(int(reduction));
    std::vector<std::vector<float>> grads;
    for (const bool all : {false, true}) {
      GrpoConfig c;
      c.train_equal = all, c.reduction = reduction;
      // Of a pair, often both or neither: some groups have nothing to teach.
      c.reward = {"regex:[a-m]"}, c.group = 2;
      TinyTask task(*backend, c);
      StepFindings f = task.step();
      const auto mixed = [&] {
        return f.advantages.equal_groups > 0 && f.advantages.equal_groups < 3;
      };
      for (int tries = 0; tries < 50 && !mixed(); ++tries) f = task.step();
      ASSERT_TRUE(mixed());
      ASSERT_EQ(f.policy.tokens < f.batch.tokens, !all);
      grads.push_back(task.model->params.values(Part::grad, "blocks.0.mlp.up.weight"));
    }
    double most = 0;
    for (const float x : grads[0]) most = std::max(most, std::abs(double(x)));
    ASSERT_GT(most, 0);
    for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_NEAR(grads[0][i], grads[1][i], 1e-5 * most);
  }
}

TEST_F(Grpo, PassesAndMiniBatchesTakeRatiosAnew) {
  const auto backend = make_cpu_backend(2);
  GrpoConfig c;
  c.mu = 2, c.mini_batches = 3, c.train_equal = true;
  TinyTask task(*backend, c);
  const StepFindings f = task.step();
  EXPECT_EQ(f.updates, 6);
  EXPECT_EQ(task.state.version, 6u);
  EXPECT_GT(f.policy.kl_old, 0);
  EXPECT_EQ(f.gap.most, 0);  // of the first mini-batch: later weights have not sampled
  EXPECT_EQ(f.policy.tokens, 2 * f.batch.tokens);
  EXPECT_EQ(task.step().batch.version, 6u);
}

TEST_F(Grpo, TheReferenceIsTheModelTheRunBeganFrom) {
  const auto backend = make_cpu_backend(2);
  GrpoConfig c;
  c.beta = 0.05, c.kl_target = 1e-7;
  TinyTask task(*backend, c);
  EXPECT_EQ(task.step().policy.kl, 0);  // nothing was updated before
  const double beta = task.state.beta;
  EXPECT_LT(beta, 0.05);
  EXPECT_GT(task.step().policy.kl, 0);
  task.step();
  EXPECT_GT(task.state.beta, beta);
}

TEST_F(Grpo, ImportanceOfAnExactSamplerIsOne) {
  const auto backend = make_cpu_backend(2);
  std::vector<std::vector<float>> weights;
  for (const double cap : {0.0, 2.0}) {
    GrpoConfig c;
    c.importance_cap = cap;
    TinyTask task(*backend, c);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(task.step().gap.most, 0);
    weights.push_back(task.weights());
  }
  EXPECT_EQ(weights[0], weights[1]);
}

// The plan counts all that a step needs: also the engine's own step and the reference's
// activations.
TEST_F(Grpo, ThePlanCoversTheEngineAndTheReference) {
  const auto backend = make_cpu_backend(1);
  GrpoConfig c;
  c.beta = 0;
  const MemoryNeed alone = TinyTask(*backend, c).stepper->memory_need();
  c.beta = 0.1;
  TinyTask task(*backend, c);
  const MemoryNeed both = task.stepper->memory_need();
  const int64_t weights = task.model->params.part_bytes(Part::weight);
  EXPECT_EQ(alone.reference, 0);
  EXPECT_GT(both.reference, weights);
  const ModelConfig& model = task.model->config;
  const int64_t batch = task.config.prompts * task.config.group;
  EngineSpec engine;  // of the rollouts: see GrpoStepper::engine_spec()
  engine.exact = true, engine.max_batch = batch, engine.step_tokens = 512;
  engine.context = 13 + task.config.max_completion;
  engine.cache_bytes = (batch + task.config.prompts) * blocks_for(engine.context) *
                       Runner::block_bytes(model, DType::f32);
  EXPECT_GT(both.rollouts, engine.cache_bytes);
  EXPECT_EQ(both.rollouts, Engine::wanted_bytes(model, DType::f32, engine));
}

TEST_F(Grpo, AProgramThatFailsLeavesNothingToTrainOn) {
  const auto backend = make_cpu_backend(2);
  TinyTask task(*backend);
  Rewards broken({.rewards = {"program:/no/such/program"}, .max_failures = -1});
  GrpoStepper stepper(GrpoStepSpec{.config = task.config,
                                   .model = task.model->config,
                                   .tokenizer = &task.tokenizer,
                                   .longest_prompt = 13},
                      task.model->params, *backend, broken);
  stepper.update().set_state({});
  const std::vector<float> before = task.weights();
  const StepFindings f = stepper.step(task.prompts, task.context(), task.state);
  EXPECT_EQ(f.updates, 0);
  EXPECT_EQ(task.state.unrewarded, 12);
  EXPECT_EQ(task.state.completions, 12);
  EXPECT_EQ(task.weights(), before);
}

TEST_F(Grpo, LearnsWhatIsRewarded) {
  const auto backend = make_cpu_backend(2);
  GrpoConfig c;
  c.schedule = Schedule::constant, c.group = 16, c.reward = {"regex:^[a-z]"};
  c.lr = 1e-2;
  TinyTask task(*backend, c);
  double first = 0, last = 0;
  for (int i = 0; i < 60; ++i) {
    const double r = task.step().advantages.reward_mean;
    if (i < 5) first += r / 5;
    if (i >= 55) last += r / 5;
  }
  EXPECT_GT(last, first + 0.3);
}

TEST(LogprobGap, WhatIsNoNumberStays) {
  LogprobGap gap;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  gap.add(std::vector<float>{1, nan, 2}, std::vector<float>{0.5f, 0, 2});
  EXPECT_TRUE(std::isnan(gap.most));
  EXPECT_TRUE(std::isnan(LogprobGap::worse(0, nan)));
  EXPECT_TRUE(std::isnan(LogprobGap::worse(nan, 1)));
  EXPECT_EQ(LogprobGap::worse(1, 0.5), 1);
}

TEST(GrpoState, ComesBackFromJson) {
  GrpoState s;
  s.version = 7, s.ema.mean = 0.25, s.beta = 0.1, s.micro_tokens = 64;
  s.rewards = {nullptr, {{"failed", 5}}};
  const nlohmann::json saved = s.to_json(), lacking{{"version", 1}};
  EXPECT_EQ(GrpoState::from_json({saved, "test", "run"}).to_json(), saved);
  EXPECT_THROW(GrpoState::from_json({lacking, "test", "run"}), Error);
}

TEST(GrpoConfig, RefusesWhatCannotBe) {
  GrpoConfig good;
  good.model = "m", good.data = "d";
  good.check();
  const auto bad = [&](auto change) {
    GrpoConfig c = good;
    change(c);
    EXPECT_THROW(c.check(), Error);
  };
  bad([](GrpoConfig& c) { c.group = 1; });
  bad([](GrpoConfig& c) { c.model.clear(); });
  bad([](GrpoConfig& c) { c.temperature = 0; });
  bad([](GrpoConfig& c) { c.kl_target = 1; });
  bad([](GrpoConfig& c) { c.mini_batches = 1000; });
  bad([](GrpoConfig& c) { c.target_exact = 0.5; });
  bad([](GrpoConfig& c) { c.epsilon = 1; });
  bad([](GrpoConfig& c) { c.lora.lora = "4,8,0.1"; });  // no pass of GRPO has dropout
  bad([](GrpoConfig& c) { c.lora.lora_targets = {"q_proj"}; });
}

}  // namespace
}  // namespace hearth
