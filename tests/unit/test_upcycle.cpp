// Upcycling: dense models that become models with experts compute the same logits.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "model/files/upcycle.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

// Of the model or, if it has one, of its module of multi-token prediction.
std::vector<float> logits_of(Backend& b, const ModelConfig& c, ParamStore& params) {
  const int64_t T = 9;
  Memory memory(b, &params);
  Tape t(params.dtype());
  t.trains = false;
  std::vector<Var> further;
  Var x = decoder(t, c, declare_inputs(t, 1, T, false), {.further = &further});
  if (c.mtp) x = further[0];
  const Var out = t.result("logits", {T, c.vocab}, DType::f32);
  record_gemm(t,
              {.c = out, .a = t.view(x, {T, c.dim}), .b = head_weight(t, c), .spec = {.tb = true}});
  Exec exec(std::move(t), memory);
  memory.state.write<int32_t>("main.tokens", tiny_prompt(T));
  std::vector<int32_t> positions(static_cast<size_t>(T));
  std::iota(positions.begin(), positions.end(), 0);
  memory.state.write<int32_t>("main.positions", positions);
  exec.run();
  std::vector<float> all(size_t(T * c.vocab));
  memory.state.read<float>("main.logits", all);
  return all;
}

TEST(Upcycling, KeepsTheFunction) {
  const auto backend = make_cpu_backend(1);
  for (const auto& [act, mtp] : {std::pair{Act::swiglu, 0}, {Act::relu2, 0}, {Act::swiglu, 1}}) {
    ModelConfig dense = tiny_config();
    dense.act = act, dense.mtp = mtp;
    dense = dense.resolve();
    ParamStore from(*backend, decoder_params(dense), DType::f32);
    from.initialise(5);
    const std::vector<float> want = logits_of(*backend, dense, from);
    for (const UpcycleSpec& spec :
         {UpcycleSpec{.experts = 4}, UpcycleSpec{.experts = 8, .top_k = 1},
          UpcycleSpec{.experts = 8, .granularity = 4},
          UpcycleSpec{.experts = 12, .top_k = 4, .granularity = 4},
          UpcycleSpec{.experts = 24, .top_k = 12, .granularity = 3}}) {
      SCOPED_TRACE(fmt::format("{} experts, top {}, granularity {}", spec.experts, spec.top_k,
                               spec.granularity));
      const ModelConfig c = upcycled_config(dense, spec);
      ParamStore to(*backend, decoder_params(c), DType::f32);
      upcycle(to, from, dense, spec);
      const std::vector<float> got = logits_of(*backend, c, to);
      float top = 0, worst = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        top = std::max(top, std::abs(want[i]));
        worst = std::max(worst, std::abs(got[i] - want[i]));
      }
      EXPECT_LT(worst, 1e-5f * top);
      EXPECT_EQ(c.moe.expert_hidden * spec.granularity, dense.hidden);
      EXPECT_EQ(count_params(c), to.count());
    }
  }
}

TEST(Upcycling, RefusesWhatItCannotSplit) {
  ModelConfig dense = tiny_config();  // hidden 24
  const auto refusal = [&](const UpcycleSpec& spec) {
    return message_of([&] { upcycled_config(dense, spec); });
  };
  EXPECT_EQ(refusal({.experts = 10, .granularity = 5}),
            "[--granularity] expected a divisor of the MLP's width 24, got 5");
  EXPECT_EQ(refusal({.experts = 6, .granularity = 4}),
            "[--upcycle-moe] expected a multiple of the granularity 4 up to 1024, got 6");
  EXPECT_EQ(refusal({.experts = -2}),
            "[--upcycle-moe] expected a multiple of the granularity 1 up to 1024, got -2");
  EXPECT_EQ(refusal({.experts = 8, .top_k = 6, .granularity = 4}),
            "[--top-k] expected a multiple of the granularity 4 up to 8 experts, got 6");
  dense.mlp_bias = true;
  EXPECT_EQ(refusal({.experts = 4}),
            "[--upcycle-moe] experts have no biases, but the MLPs of this model have");
  dense = tiny_config();
  dense.moe.experts = 4;
  EXPECT_EQ(refusal({.experts = 4}), "[--upcycle-moe] the model has experts already");
}

}  // namespace
}  // namespace hearth
