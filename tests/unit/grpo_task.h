// A GRPO task for tiny byte-level models: end the text early, and use lower-case letters.
#pragma once

#include "infer_model.h"
#include "train/grpo/grpo_step.h"

namespace hearth {

inline ModelConfig byte_config(float softcap = 0) {
  ModelConfig c = tiny_config();
  c.vocab = 257, c.context = 64, c.init_std = 0.15f, c.logit_softcap = softcap;
  return c;
}

struct GrpoSize {
  std::vector<size_t> prompts = {3, 8, 13};  // bytes of each prompt
  int64_t completion = 12;                   // most tokens of a completion
};

struct GrpoTask {
  GrpoTask(Backend& b, GrpoConfig given, ModelConfig c, DType dtype = DType::f32,
           const GrpoSize& size = {})
      : config(std::move(given)), guard(run, b, {}) {
    c.lora = config.lora.spec();
    model = std::make_unique<TinyModel>(b, c, 3, dtype);
    if (config.reward.empty()) config.reward = {"regex:[a-z]@2", "length:6"}, config.group = 4;
    if (config.lr == GrpoConfig{}.lr) config.lr = c.lora ? 1e-2 : 1e-3;
    config.prompts = int64_t(size.prompts.size()), config.max_completion = size.completion;
    EXPECT_NE(dtype, DType::f16) << "GRPO has none";
    if (dtype != DType::bf16)
      config.dtype = TrainDType::fp32;
    else if (config.dtype != TrainDType::fp8)
      config.dtype = TrainDType::bf16;
    for (size_t i = 0; i < size.prompts.size(); ++i)
      rows.push_back({{{"prompt", "p"}}, std::string(size.prompts[i], char('a' + i)), "test:1"});
    for (const PromptRow& r : rows) prompts.push_back({&r, tokenizer.encode(r.prompt)});
    rewards = std::make_unique<Rewards>(config.rewards());
    GrpoStepSpec spec{.config = config,
                      .model = model->config,
                      .tokenizer = &tokenizer,
                      .longest_prompt = int64_t(std::ranges::max(size.prompts))};
    if (!c.lora) spec.load_reference = [](ParamStore& to) { to.initialise(3); };
    stepper = std::make_unique<GrpoStepper>(spec, model->params, b, *rewards);
    state.beta = config.beta;
    stepper->update().set_state({});
  }
  StepContext context() { return step_context(config, config.steps, run, guard); }
  StepFindings step() {
    const StepContext c = context();
    StepFindings f = stepper->step(prompts, c, state);
    ++run.step, run.tokens += f.batch.tokens;
    return f;
  }
  RolloutBatch roll_out() { return stepper->roll_out(prompts, run.step, state); }
  std::vector<float> weights() {
    return model->params.values(Part::weight, "blocks.0.mlp.up.weight");
  }

  GrpoConfig config;
  Tokenizer tokenizer = byte_tokenizer();
  std::unique_ptr<TinyModel> model;
  std::vector<PromptRow> rows;
  std::vector<EncodedPrompt> prompts;
  std::unique_ptr<Rewards> rewards;
  std::unique_ptr<GrpoStepper> stepper;
  GrpoState state;
  RunState run;
  StepGuard guard;
};

}  // namespace hearth
