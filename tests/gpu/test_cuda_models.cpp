// Whole models on the card: every choice a config offers, lengths that fill attention's tiles, and
// training runs that give the same bits with graphs, without, and again.
#include <fmt/format.h>

#include <stdexcept>

#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "cuda_case.h"
#include "diag/lockstep.h"
#include "model_cases.h"

namespace hearth::cases {
namespace {

using test::card;

class CudaModels : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override { HEARTH_NEEDS_A_CARD(); }
};

// Wider models want smaller weights: with those of the small ones every softmax would be a choice
// of one, and its gradient nothing but rounding.
constexpr float shift = 0.03f;

// The small models with heads of the size that 16-bit attention wants, and room for its tiles.
ModelCase larger(ModelCase m) {
  ModelConfig& c = m.config;
  const int64_t times = 64 / c.resolve().head_dim + 1;
  if (c.v_head_dim) c.v_head_dim = c.v_head_dim > c.resolve().head_dim ? 96 : 40;
  c.head_dim = 64, c.init_std = shift;
  if (c.mla) c.mla.nope_dim = 40, c.mla.rope_dim = 24, c.mla.kv_latent = 48;
  if (c.mla.q_latent) c.mla.q_latent = 56;
  c.dim *= times, c.hidden *= times, c.moe.expert_hidden *= times;
  c.context = std::max<int64_t>(c.context, 67);
  return m;
}

// Of a whole model each parameter's gradient has been through many roundings.
struct ModelTolerance {
  DType dtype;
  double loss, gradient;
};
constexpr ModelTolerance model_tolerances[] = {
    {DType::f32, 1e-5, 1e-3}, {DType::bf16, 1e-2, 5e-2}, {DType::f16, 2e-3, 1e-2}};

// The slope of a ReLU jumps where its input rounds to the other side of zero. Scaled embeddings
// make the residual stream large beside what blocks add to it, so more of that is lost in rounding.
double slack(const ModelCase& m) {
  return m.config.act == Act::reglu ? 3 : m.config.embed_scale != 1 ? 2 : 1;
}

double norm_error(const Numbers& got, const Numbers& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

TEST_P(CudaModels, LossAndGradients) {
  const auto reference = make_reference_backend();
  const ModelCase m = larger(GetParam());
  for (const auto& [B, T] : {std::pair<int64_t, int64_t>{2, 6}, {2, 67}}) {
    ModelRun want(*reference, m, {.dtype = DType::f64, .B = B, .T = T, .shift = shift});
    want.run();
    for (const ModelTolerance& t : model_tolerances) {
      if (t.dtype != DType::f32 && chooses_experts(m)) continue;
      for (const bool hopper : {true, false}) {
        SCOPED_TRACE(fmt::format("{} hopper {} {}x{}", to_string(t.dtype), hopper, B, T));
        // Gradients this small would fall below what f16 can hold.
        const float scale = t.dtype == DType::f16 ? 1024 : 1;
        ModelRun got(card(hopper), m,
                     {.dtype = t.dtype, .B = B, .T = T, .shift = shift, .loss_scale = scale});
        got.run();
        EXPECT_NEAR(got.loss(), want.loss(), t.loss * std::abs(want.loss()));
        double top = 0;
        for (const Named& g : want.gradients())
          for (double x : g.values) top = std::max(top, std::abs(x));
        const std::vector<Named> all = got.joined_gradients(), wanted = want.joined_gradients();
        for (size_t i = 0; i < all.size(); ++i) {
          const Numbers &g = all[i].values, &w = wanted[i].values;
          double size = 0;
          for (double x : w) size = std::max(size, std::abs(x));
          if (size < 1e-6 * top) continue;  // nothing but rounding, as of a key's bias
          EXPECT_LT(norm_error(g, w), slack(m) * t.gradient) << all[i].name;
        }
      }
    }
  }
}

// Every op of forward, backward and update from the same inputs on both sides.
void expect_lockstep(const ModelCase& m, DType dtype, bool hopper, Backend& trusted, int64_t T) {
  const ProgramSpec s{.model = m.config.resolve(),
                      .dtype = dtype,
                      .B = 2,
                      .T = T,
                      .documents = m.documents,
                      .accumulates = true};
  const LockstepResult r = lockstep(s, card(hopper), trusted, 3);
  EXPECT_GT(r.outputs, 40);
  if (r.first)
    ADD_FAILURE() << fmt::format("{} hopper {}: {} of {} output {}, error {:.3g} of {:.3g}",
                                 to_string(dtype), hopper, r.first->op, r.first->where,
                                 r.first->output, r.first->error, r.first->tolerance);
}

TEST_P(CudaModels, InLockstepWithTheCpu) {
  const auto cpu = make_cpu_backend(2), reference = make_reference_backend();
  const ModelCase m = larger(GetParam());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool hopper : {true, false}) expect_lockstep(m, dtype, hopper, *cpu, 67);
  expect_lockstep(m, DType::f16, true, *reference, 9);  // the CPU trains in no f16
}

// Enough rows for the kernels that join products with what follows them.
TEST(CudaManyRows, InLockstepWithTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const Act act : {Act::swiglu, Act::gelu_tanh, Act::relu2})
    for (int variant = 0; variant < 3; ++variant) {
      ModelConfig config{.vocab = 264, .context = 1032, .layers = 2, .dim = 136, .heads = 2};
      config.head_dim = 64, config.hidden = 192, config.act = act;
      config.mlp_bias = config.qkv_bias = config.out_bias = act == Act::gelu_tanh;
      const ProgramSpec s{
          .model = config.resolve(), .dtype = DType::bf16, .B = 2, .T = 1032, .accumulates = true};
      const LockstepResult r = lockstep(s, test::own_products_card(variant), *cpu, 3);
      EXPECT_GT(r.outputs, 40);
      if (r.first)
        ADD_FAILURE() << fmt::format("act {} variant {}: {} of {} output {}, error {:.3g}",
                                     int(act), variant, r.first->op, r.first->where,
                                     r.first->output, r.first->error);
    }
}

TEST_P(CudaModels, RecomputingAgrees) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ModelRun none(card(), larger(GetParam()), {.dtype = dtype, .shift = shift});
    none.run();
    for (const Recompute r : {Recompute::light, Recompute::block}) {
      SCOPED_TRACE(fmt::format("{} recompute {}", to_string(dtype), int(r)));
      ModelRun again(card(), larger(GetParam()), {.dtype = dtype, .recompute = r, .shift = shift});
      again.run();
      const double tolerance = dtype == DType::f32 ? 1e-4 : 3e-2;
      EXPECT_NEAR(again.loss(), none.loss(), tolerance);
      const std::vector<Named> all = again.joined_gradients(), wanted = none.joined_gradients();
      for (size_t i = 0; i < all.size(); ++i) {
        const Numbers &a = all[i].values, &b = wanted[i].values;
        double size = 0;
        for (double x : b) size = std::max(size, std::abs(x));
        if (size < 1e-5) continue;
        EXPECT_LT(norm_error(a, b), tolerance) << all[i].name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaModels, testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

// Some steps of two micro-batches each: the loss of every one, and the weights in the end.
struct Trained {
  Numbers losses;
  std::vector<Numbers> weights;
};

Trained trained(Backend& b, const ModelCase& small, DType dtype, int steps) {
  const ModelCase m = larger(small);
  ParamStore store(b, decoder_params(m.config), dtype);
  Memory memory(b, &store);
  store.initialise(7);
  make_training_buffers(store, {});
  Programs programs({.model = m.config,
                     .dtype = dtype,
                     .B = 4,
                     .T = 6,
                     .documents = m.documents,
                     .eval_documents = m.documents,
                     .accumulates = true},
                    memory);
  programs.update().set_state({});
  Trained r;
  for (int step = 0; step < steps; ++step) {
    Scalars s;
    s.lr = 1e-3f, s.clip = 1, s.step = uint32_t(step), s.seed_lo = 5;
    const Batch one = make_batch(m.config, 4, 6, m.documents, step);
    const Batch two = make_batch(m.config, 4, 6, m.documents, step + 100);
    s.inv_targets = 1 / float(one.count + two.count);
    programs.micro(one, s, true);
    s.micro = 1;
    programs.micro(two, s, false);
    programs.update().run(s);
    r.losses.push_back(programs.loss());
  }
  for (const ParamSpec& p : store.specs()) {
    const std::vector<float> v = store.values(Part::weight, p.name);
    r.weights.emplace_back(v.begin(), v.end());
  }
  return r;
}

TEST(CudaTraining, FiftyStepsGiveTheSameBitsWithAndWithoutGraphs) {
  HEARTH_NEEDS_A_CARD();
  for (size_t i = 0; i < model_cases().size(); i += 3) {  // enough to have met every kernel
    const ModelCase& m = model_cases()[i];
    SCOPED_TRACE(m.name);
    const DType dtype = i % 4 ? DType::bf16 : DType::f32;
    const auto weights = [&](bool graphs) {
      return trained(card(true, graphs), m, dtype, 50).weights;
    };
    const std::vector<Numbers> first = weights(true);
    EXPECT_TRUE(weights(true) == first) << "a second run";
    EXPECT_TRUE(weights(false) == first) << "without graphs";
  }
}

// Losses, not weights: AdamW moves a weight whose gradient is nothing but rounding by the whole
// learning rate, one way or the other.
TEST(CudaTraining, FollowsTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const Numbers want = trained(*cpu, m, DType::f32, 10).losses;
    const Numbers got = trained(card(), m, DType::f32, 10).losses;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-3) << "step " << i;
  }
}

TEST(CudaMemory, ALimitIsKept) {
  HEARTH_NEEDS_A_CARD();
  const auto small = make_cuda_backend({.memory_limit = 256 << 20});
  EXPECT_LE(small->free_bytes(), 256 << 20);
  EXPECT_THROW(small->allocate(300 << 20, "too much"), std::runtime_error);
  std::byte* p = small->allocate(1 << 20, "enough");
  EXPECT_GE(small->memory_use().now, 1 << 20);
  small->release(p, 1 << 20);
}

}  // namespace
}  // namespace hearth::cases
