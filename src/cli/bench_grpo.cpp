// hearth bench grpo: GRPO steps on random weights and prompts with full-length completions. Prints
// the speed of rollouts and training, and how the time of a step divides.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "cli/bench.h"
#include "cli/model_flags.h"
#include "diag/peak_flops.h"
#include "sys/error.h"
#include "train/grpo/grpo_report.h"

namespace hearth::inline cli {
namespace {

struct BenchGrpoFlags {
  Common common;
  std::string preset = "gpt2";
  int64_t prompt_tokens = 64;
  int warmup = 2, repeats = 3;
  FieldFlags<GrpoConfig> config;
  FieldFlags<ModelConfig> model;
};

GrpoConfig bench_grpo_defaults() {
  GrpoConfig c;
  c.prompts = 64, c.group = 8, c.max_completion = 128, c.micro_tokens = 0;
  return c;
}

// All rewards are equal, so the gradient is zero; train_equal makes training run in full anyway.
GrpoConfig bench_grpo_config(const BenchGrpoFlags& f) {
  GrpoConfig c = bench_grpo_defaults();
  c.model = c.data = "random";
  c.reward = {"length:1"};
  f.config.apply(c);
  c.train_equal = true;
  c.check();
  return c;
}

ModelConfig bench_grpo_model(const BenchGrpoFlags& f, const GrpoConfig& c) {
  ModelConfig m = model_over_preset(f.preset, f.model);
  m.context = std::max(m.context, f.prompt_tokens + c.max_completion);
  m.lora = c.lora.spec();
  return m.resolve();
}

std::string bench_grpo_shape(const BenchGrpoFlags& f, const GrpoConfig& c) {
  return fmt::format("{} {} {} prompts of {} x {} x {}{}", name_over_preset(f.preset, f.model),
                     enum_name(c.dtype), c.prompts, f.prompt_tokens, c.group, c.max_completion,
                     c.invariant() ? " batch-invariant" : "");
}

std::vector<EncodedPrompt> random_prompts(const BenchGrpoFlags& f, const GrpoConfig& c,
                                          const ModelConfig& m, const PromptRow& row,
                                          std::mt19937_64& bits) {
  std::vector<EncodedPrompt> all;
  for (int64_t i = 0; i < c.prompts; ++i) {
    all.push_back({&row, {}});
    for (int64_t t = 0; t < f.prompt_tokens; ++t)
      all.back().tokens.push_back(int32_t(bits() % uint64_t(m.vocab)));
  }
  return all;
}

void bench_grpo(const BenchGrpoFlags& f) {
  const GrpoConfig c = bench_grpo_config(f);
  const ModelConfig m = bench_grpo_model(f, c);
  const std::unique_ptr<Backend> backend = make_backend(
      f.common, {.tf32 = c.dtype == TrainDType::tf32, .batch_invariant = c.invariant()});
  ParamStore store(*backend, decoder_params(m), to_dtype(c.dtype));
  store.initialise(c.seed);
  Rewards rewards(c.rewards());
  GrpoStepper stepper(
      GrpoStepSpec{.config = c,
                   .model = m,
                   .longest_prompt = f.prompt_tokens,
                   .ignore_eos = true,
                   .load_reference = [&](ParamStore& to) { to.initialise(c.seed); }},
      store, *backend, rewards);
  stepper.update().set_state({});
  GrpoState state;
  state.beta = c.beta;
  RunState run;
  StepGuard guard(run, *backend, {});
  const PromptRow row{nlohmann::json::object(), "", "bench"};
  std::mt19937_64 bits(c.seed);
  std::vector<StepFindings> steps;
  for (int i = 0; i < f.warmup + f.repeats; ++i) {
    const auto prompts = random_prompts(f, c, m, row, bits);
    const StepContext context = step_context(c, c.steps, run, guard);
    StepFindings found = stepper.step(prompts, context, state);
    ++run.step;
    if (i >= f.warmup) steps.push_back(std::move(found));
  }
  std::ranges::sort(steps, {}, [](const StepFindings& s) { return s.seconds.total; });
  const StepFindings& s = steps[steps.size() / 2];
  const StepSplit& t = s.seconds;

  const std::string shape = bench_grpo_shape(f, c);
  nlohmann::ordered_json j =
      bench_line(*backend, "grpo", shape, double(s.batch.tokens) / t.total, "completion tokens/s");
  j["rollout_tokens_per_s"] = double(s.batch.tokens) / t.decode;
  j["train_tokens_per_s"] = double(s.fed) / t.train;
  j["step_ms"] = 1e3 * t.total;
  j["rollout_ms"] = 1e3 * t.decode, j["reward_wait_ms"] = 1e3 * t.reward;
  j["score_ms"] = 1e3 * t.score, j["train_ms"] = 1e3 * t.train;
  j["logprob_gap_max"] = s.gap.most;
  j["logprob_gap_mean"] = s.gap.tokens ? s.gap.sum / double(s.gap.tokens) : 0;
  j["memory_bytes"] = peak_bytes(*backend);
  j["memory"] = describe(stepper.memory_need());
  const double flops = flops_of_step(s, m) / t.total;
  j["tflops"] = 1e-12 * flops;
  j["mfu"] = flops / measure_peak(*backend, to_dtype(c.dtype));
  if (f.common.json) return print_json(j);
  fmt::print(
      "{}: {:.0f} ms per step: rollouts {:.0f} ms ({:.0f} tokens/s), rewards {:.0f}, scores "
      "{:.0f}, training {:.0f} ms ({:.0f} tokens/s); {:.1f} TFLOP/s, {:.0f}% of the measured peak; "
      "log-probabilities differ by at most {:.2g}\nmemory: {}\n",
      shape, 1e3 * t.total, 1e3 * t.decode, double(s.batch.tokens) / t.decode, 1e3 * t.reward,
      1e3 * t.score, 1e3 * t.train, double(s.fed) / t.train, 1e-12 * flops,
      100 * j["mfu"].get<double>(), s.gap.most, describe(stepper.memory_need()));
}

}  // namespace

void add_bench_grpo(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("grpo", "time GRPO steps on random weights and prompts");
  auto f = std::make_shared<BenchGrpoFlags>();
  add_common(*c, f->common);
  c->add_option("--preset", f->preset, "model preset")->capture_default_str();
  c->add_option("--prompt-tokens", f->prompt_tokens, "tokens per prompt")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--warmup-steps", f->warmup, "steps before the measurement")
      ->capture_default_str()
      ->check(at_least(0));
  c->add_option("--repeats", f->repeats, "measured steps; the median is reported")
      ->capture_default_str()
      ->check(at_least(1));
  f->config.add(*c, bench_grpo_defaults(), "GRPO");
  f->model.add(*c, ModelConfig{}, model_group);
  c->callback([f] { bench_grpo(*f); });
}

}  // namespace hearth::inline cli
