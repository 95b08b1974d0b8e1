// The engine on quantised weights: what it says of a token is what the model's forward pass says,
// whatever shares its steps, and near what plain weights say.
#include <cmath>

#include "sys/error.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

Request greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0, .max_tokens = max_tokens, .logprobs = 1}};
}

constexpr WeightFormat both[] = {WeightFormat::int8, WeightFormat::int4};

TEST(infer_quantised, tokens_are_those_of_the_forward_pass_alone_and_in_a_batch) {
  for (const std::unique_ptr<Backend>& backend : exact_backends())
    for (const ModelConfig& config : cached_configs())
      for (const WeightFormat format : both) {
        TinyModel m(*backend, config, 7, DType::f32, format);
        Engine engine = m.engine({.max_batch = 16, .step_tokens = 40});
        std::vector<Request> requests;
        for (int32_t i = 0; i < 12; ++i) requests.push_back(greedy(tiny_prompt(1 + 6 * i, i), 5));
        const auto all = engine.run(requests);
        for (size_t i : {0u, 3u, 11u}) {
          const Completion& c = all[i][0];
          EXPECT_EQ(c.tokens, engine.run(std::vector{requests[i]})[0][0].tokens);
          std::vector<int32_t> tokens = requests[i].prompt;
          tokens.insert(tokens.end(), c.tokens.begin(), c.tokens.end());
          const std::vector<float> logits = m.all_logits(tokens);
          for (size_t k = 0; k < c.tokens.size(); ++k) {
            const size_t row = requests[i].prompt.size() + k - 1, V = size_t(config.vocab);
            const TokenLogprob want =
                m.logprob(std::span(logits).subspan(row * V, V), c.tokens[k], 1);
            EXPECT_EQ(c.logprobs[k].logprob, want.logprob);
            EXPECT_EQ(c.logprobs[k].top, want.top);
          }
        }
      }
}

TEST(infer_quantised, logits_are_near_those_of_plain_weights) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  ModelConfig config = tiny_config();
  config.dim = 128, config.hidden = 256, config.init_std = 0.08f;
  const std::vector<int32_t> tokens = tiny_prompt(20);
  const std::vector<float> plain = TinyModel(*backend, config).all_logits(tokens);
  double size = 0;
  for (const float x : plain) size += double(x) * x;
  double last = 0;
  for (const WeightFormat format : both) {
    TinyModel m(*backend, config, 7, DType::f32, format);
    const std::vector<float> near = m.all_logits(tokens);
    double off = 0;
    for (size_t i = 0; i < near.size(); ++i) off += (near[i] - plain[i]) * (near[i] - plain[i]);
    EXPECT_LT(std::sqrt(off / size), format == WeightFormat::int8 ? 0.08 : 0.5);
    EXPECT_GT(off, last) << "int4 keeps less than int8, which keeps less than all";
    last = off;
  }
}

TEST(infer_quantised, only_products_read_them) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  for (const bool tied : {false, true}) {
    ModelConfig config = tiny_config();
    config.tied = tied;
    TinyModel m(*backend, config, 7, DType::f32, WeightFormat::int4);
    EXPECT_TRUE(m.params.plain("embed.weight"));
    EXPECT_EQ(bool(m.params.quantised("embed.weight")), tied);
    EXPECT_FALSE(m.params.quantised("final_norm.gain"));
    EXPECT_THROW(m.params.get(Part::weight, "blocks.0.mlp.up.weight"), Error);
    EXPECT_THROW(m.nll(tiny_prompt(5)), Error) << "a program that trains wants plain weights";
  }
}

// Routers choose by small differences, and an expert has to begin a panel of 16 rows.
TEST(infer_quantised, experts_are_quantised_and_routers_are_not) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  ModelConfig config = tiny_config();
  config.moe.experts = 4, config.moe.shared_experts = 1;
  for (const int64_t hidden : {24, 20}) {
    config.moe.expert_hidden = hidden;
    TinyModel m(*backend, config, 7, DType::f32, WeightFormat::int8);
    const std::string mlp = "blocks.1.mlp.";
    EXPECT_FALSE(m.params.quantised(mlp + "router.weight"));
    EXPECT_EQ(bool(m.params.quantised(mlp + "experts.up.weight")), 2 * hidden % 16 == 0);
    EXPECT_TRUE(m.params.quantised(mlp + "experts.down.weight"));
    EXPECT_TRUE(m.params.quantised(mlp + "shared.up.weight"));
    Engine engine = m.engine({.max_batch = 2});
    EXPECT_EQ(engine.run(std::vector{greedy(tiny_prompt(5), 4)})[0][0].tokens.size(), 4u);
  }
}

TEST(infer_quantised, a_format_the_backend_lacks_is_refused) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  EXPECT_TRUE(backend->multiplies(WeightFormat::int4));
  EXPECT_FALSE(backend->multiplies(WeightFormat::fp8));
  try {
    TinyModel(*backend, tiny_config(), 7, DType::f32, WeightFormat::fp8);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("got fp8"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hearth
