#include "train/grpo/grpo_step.h"

#include <algorithm>

#include "data/permutation.h"
#include "infer/block_pool.h"
#include "infer/runner.h"
#include "sys/clock.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

void add_update(StepFindings& f, const PolicyStep& p) {
  f.policy.loss += p.loss, f.policy.entropy += p.entropy;
  f.policy.kl += p.kl, f.policy.kl_old += p.kl_old;
  f.policy.clip_low += p.clip_low, f.policy.clip_high += p.clip_high;
  f.policy.tokens += p.tokens, f.fed += p.fed;
  ++f.updates;
}

}  // namespace

GrpoStepper::GrpoStepper(const GrpoStepSpec& spec, ParamStore& store, Backend& backend,
                         Rewards& rewards)
    : spec_(spec),
      config_(spec.config),
      model_(spec.model),
      store_(store),
      backend_(backend),
      rewards_(rewards),
      memory_(backend, &store) {
  programs_spec_ = {.model = model_,
                    .name = "grpo",
                    .dtype = store.dtype(),
                    .fp8 = config_.fp8.fine_tuning(config_.dtype),
                    .recompute = config_.recompute,
                    .temperature = config_.temperature,
                    .entropy = true,
                    .modules = bool(config_.modules),
                    .losses = {.mtp_loss = config_.modules.mtp_loss},
                    .logits_bytes = logits_chunk_bytes(backend_),
                    .keep_bytes = kept_logits_bytes(backend_)};
  programs_ = std::make_unique<LogprobPrograms>(programs_spec_, memory_);
  if (config_.beta > 0) reference_.emplace(programs_spec_, memory_, spec.load_reference);
  micro_tokens_ = config_.micro_tokens ? config_.micro_tokens : fitting_micro_tokens();
  expect_fit(need(micro_tokens_), budget(),
             fmt::format("{}a smaller --rollout-batch, --recompute block, a shorter "
                         "--max-completion, --lora{} needs less memory",
                         config_.micro_tokens ? "--micro-tokens 0 (the most that fit), " : "",
                         backend_.has_host_offload() ? " or --offload" : ""));
  make_engine();
}

// The cache holds every sequence of a batch at its longest, if the memory allows it.
EngineSpec GrpoStepper::engine_spec() const {
  EngineSpec s;
  s.exact = true;  // what is sampled is what is trained
  s.context = std::min(model_.context, spec_.longest_prompt + config_.max_completion);
  s.max_batch = config_.rollout_batch ? config_.rollout_batch
                                      : std::min<int64_t>(config_.prompts * config_.group, 512);
  // All prompts at once, if they are not many: those that come in between others' tokens end after
  // them, too, in steps of ever fewer rows.
  s.step_tokens = std::clamp<int64_t>(config_.prompts * spec_.longest_prompt, 512, 8192);
  s.step_tokens = std::max(s.step_tokens, s.max_batch);
  const int64_t blocks = (s.max_batch + config_.prompts) * blocks_for(s.context);
  s.cache_bytes = MemoryBudget::for_rollouts(backend_).reserve_up_to(
      "KV cache", blocks * Runner::block_bytes(model_, store_.dtype()));
  s.remedy = "provide more memory or use a shorter --max-completion";
  s.tokenizer = spec_.tokenizer;
  return s;
}

void GrpoStepper::make_engine() {
  const EngineSpec s = engine_spec();
  cache_bytes_ = s.cache_bytes;
  engine_ = std::make_unique<Engine>(model_, store_, backend_, s);
}

// Of completions of full length.
MemoryNeed GrpoStepper::need(int64_t micro_tokens) const {
  EngineSpec engine = engine_spec();
  if (cache_bytes_) engine.cache_bytes = cache_bytes_;
  const int64_t T = engine.context, B = std::max<int64_t>(1, micro_tokens / T);
  const auto need_of = [&](LogprobPrograms::Kind kind) {
    return LogprobPrograms::need(programs_spec_,
                                 {.B = B, .T = T, .rows = B * std::min(config_.max_completion, T)},
                                 kind, update_spec());
  };
  MemoryNeed n = need_of(LogprobPrograms::Kind::first);
  n.offload = config_.offload;
  n.weights += idle_module_bytes(store_);
  if (reference_ && reference_->bytes())  // it has memory of its own
    n.reference = reference_->bytes() + need_of(LogprobPrograms::Kind::score).activations;
  n.rollouts = Engine::wanted_bytes(model_, store_.dtype(), engine);
  return n;
}

// For everything that need() counts, of which the weights are there already.
MemoryBudget GrpoStepper::budget() const {
  MemoryBudget b = MemoryBudget::for_run(backend_, &store_);
  if (reference_) b.extend(reference_->bytes());
  return b;
}

UpdateProgram& GrpoStepper::update() {
  if (!update_)
    update_ = std::make_unique<UpdateProgram>("grpo", memory_, update_spec(), config_.fp8_update());
  return *update_;
}

// The whole step at once, or as much of it as fits beside the engine.
int64_t GrpoStepper::fitting_micro_tokens() const {
  const EngineSpec engine = engine_spec();
  int64_t tokens = config_.prompts * config_.group * engine.context;
  while (tokens > engine.context && !budget().fits(need(tokens).total())) tokens /= 2;
  return std::max(tokens, engine.context);
}

RolloutSpec GrpoStepper::rollout_spec(int64_t step) const {
  return {.group = config_.group,
          .max_tokens = config_.max_completion,
          .temperature = config_.temperature,
          .stop = config_.stop,
          .stop_ids = spec_.ignore_eos ? std::vector<int32_t>() : spec_.stop_ids,
          .ignore_eos = spec_.ignore_eos,
          .seed = mix64(mix64(config_.seed) ^ uint64_t(step)),
          .interrupt = spec_.interrupt};
}

RolloutBatch GrpoStepper::roll_out(std::span<const EncodedPrompt> prompts, int64_t step,
                                   const GrpoState& state) {
  return make_rollouts(*engine_, prompts, rewards_, rollout_spec(step), state.version);
}

StepFindings GrpoStepper::step(std::span<const EncodedPrompt> prompts, const StepContext& c,
                               GrpoState& state) {
  return train_on(roll_out(prompts, c.step, state), c, state);
}

StepFindings GrpoStepper::train_on(RolloutBatch batch, const StepContext& c, GrpoState& state) {
  if (batch.version != state.version)
    fail("grpo", "expected rollouts of the weights after {} updates, got those after {}",
         state.version, batch.version);
  const auto begin = Clock::now();
  StepFindings f;
  f.batch = std::move(batch);
  f.seconds.decode = f.batch.decode_s, f.seconds.reward = f.batch.reward_s;
  f.advantages = advantages(f.batch.rewards,
                            {.scale = config_.scale,
                             .baseline = config_.baseline,
                             .group = config_.group,
                             .ema_decay = config_.ema_decay},
                            state.ema);
  f.beta = state.beta;
  f.lr = c.lr;
  const auto scoring = Clock::now();
  const std::vector<PolicySample> samples = samples_of(f, state);
  f.seconds.score = seconds_since(scoring);
  const auto training = Clock::now();
  update_weights(f, samples, c, state);
  f.seconds.train = seconds_since(training);
  if (config_.kl_target > 0 && f.updates > 0)
    state.beta = adapted_beta(state.beta, f.policy.kl, config_.kl_target);
  state.completions += int64_t(f.batch.rollouts.size());
  state.unrewarded += std::ranges::count(f.advantages.rewarded, 0);
  f.seconds.total = f.seconds.decode + f.seconds.reward + seconds_since(begin);
  return f;
}

// Completions that have a reward and something to teach, with what their loss needs.
std::vector<PolicySample> GrpoStepper::samples_of(StepFindings& f, const GrpoState& state) {
  const bool all = config_.train_equal || state.beta > 0;
  std::vector<PolicySample> samples;
  std::vector<const Rollout*> rollouts;
  for (size_t i = 0; i < f.batch.rollouts.size(); ++i) {
    if (!f.advantages.rewarded[i] || (!all && f.advantages.values[i] == 0)) continue;
    rollouts.push_back(&f.batch.rollouts[i]);
    samples.push_back({.rollout = rollouts.back(), .advantage = f.advantages.values[i]});
  }
  if (samples.empty()) return samples;
  if (config_.importance_cap > 0) {
    auto trainer = score_rollouts(*programs_, rollouts, micro_tokens_, model_.context);
    for (size_t i = 0; i < samples.size(); ++i) {
      const std::vector<float>& sampler = rollouts[i]->logprobs;
      f.gap.add(trainer[i], sampler);
      samples[i].weights = importance_weights(
          std::vector<double>(trainer[i].begin(), trainer[i].end()),
          std::vector<double>(sampler.begin(), sampler.end()), config_.importance_cap);
      samples[i].old = std::move(trainer[i]);
    }
  }
  if (state.beta > 0) {
    auto reference =
        score_rollouts(reference_->programs(), rollouts, micro_tokens_, model_.context);
    for (size_t i = 0; i < samples.size(); ++i) samples[i].reference = std::move(reference[i]);
  }
  return samples;
}

void GrpoStepper::update_weights(StepFindings& f, const std::vector<PolicySample>& samples,
                                 const StepContext& c, GrpoState& state) {
  if (samples.empty()) return;
  const int64_t parts = std::min<int64_t>(config_.mini_batches, int64_t(samples.size()));
  int64_t rewarded = 0, tokens = 0;
  for (size_t i = 0; i < f.batch.rollouts.size(); ++i)
    if (f.advantages.rewarded[i]) ++rewarded, tokens += f.batch.rollouts[i].completion_tokens();
  const PolicySpec spec{.micro_tokens = micro_tokens_,
                        .loss = config_.loss(f.beta),
                        .generation_tokens = f.batch.tokens,
                        .completions = double(rewarded) / double(parts),
                        .tokens = double(tokens) / double(parts)};
  for (int64_t pass = 0; pass < config_.mu; ++pass)
    for (int64_t part = 0; part < parts; ++part) {
      // At the first update the weights are still those that sampled.
      LogprobGap* gap = f.updates == 0 && config_.importance_cap == 0 ? &f.gap : nullptr;
      std::vector<PolicySample> some;
      if (parts > 1) some = part_of(samples, c.step, pass, part, parts);
      Scalars s = c.scalars;
      s.step = uint32_t(state.version), s.loss_scale = c.guard.loss_scale();
      add_update(f, policy_step(*programs_, update(), c.guard, parts > 1 ? some : samples, spec, s,
                                model_.context, gap));
      ++state.version;
    }
  engine_->forget();
  programs_->send_terms();
  programs_->report_terms(f.terms);
  for (double* x : {&f.policy.loss, &f.policy.entropy, &f.policy.kl, &f.policy.kl_old,
                    &f.policy.clip_low, &f.policy.clip_high})
    *x /= double(f.updates);
}

std::vector<PolicySample> GrpoStepper::part_of(const std::vector<PolicySample>& samples,
                                               int64_t step, int64_t pass, int64_t part,
                                               int64_t parts) const {
  const uint64_t n = samples.size();
  const Permutation order(n, config_.seed, mix64(uint64_t(step)) + uint64_t(pass));
  std::vector<PolicySample> some;
  for (uint64_t i = uint64_t(part) * n / uint64_t(parts);
       i < uint64_t(part + 1) * n / uint64_t(parts); ++i)
    some.push_back(samples[size_t(order(i))]);
  return some;
}

}  // namespace hearth::inline train
