#include "align/grpo_step.h"

#include <algorithm>

#include "core/clock.h"
#include "core/error.h"
#include "data/permutation.h"
#include "infer/block_pool.h"
#include "infer/runner.h"

namespace hearth {
namespace {

constexpr int most_skips = 3;  // updates in a row without a finite gradient

void add_update(StepFindings& f, const PolicyStep& p) {
  f.policy.loss += p.loss, f.policy.entropy += p.entropy;
  f.policy.kl += p.kl, f.policy.kl_old += p.kl_old;
  f.policy.clip_low += p.clip_low, f.policy.clip_high += p.clip_high;
  f.policy.tokens += p.tokens, f.fed += p.fed;
  f.policy.update = p.update;
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
  const LogprobProgramsSpec programs{.model = model_,
                                     .name = "grpo",
                                     .dtype = store.dtype(),
                                     .recompute = config_.recompute,
                                     .temperature = config_.temperature,
                                     .entropy = true,
                                     .logits_bytes = backend_.logits_bytes(),
                                     .keep_bytes = backend_.kept_logits_bytes()};
  programs_ = std::make_unique<LogprobPrograms>(programs, memory_);
  update_ = std::make_unique<UpdateProgram>("grpo", memory_,
                                            UpdateSpec{.beta1 = config_.beta1,
                                                       .beta2 = config_.beta2,
                                                       .eps = config_.adam_eps,
                                                       .decay = config_.weight_decay});
  if (config_.beta > 0) make_reference(programs);
  make_engine(spec.longest_prompt);
}

// With adapters it is their base, in the same store; else it has weights of its own.
void GrpoStepper::make_reference(LogprobProgramsSpec spec) {
  spec.name = "reference", spec.entropy = false, spec.adapters = false;
  if (!model_.lora) {
    reference_store_ =
        std::make_unique<ParamStore>(backend_, decoder_params(model_), store_.dtype());
    spec_.load_reference(*reference_store_);
    reference_memory_ = std::make_unique<Memory>(backend_, reference_store_.get());
  }
  reference_ =
      std::make_unique<LogprobPrograms>(spec, reference_memory_ ? *reference_memory_ : memory_);
}

// Room for every sequence of a batch at its longest: the rest of a card is for training.
void GrpoStepper::make_engine(int64_t longest_prompt) {
  EngineSpec s;
  s.context = std::min(model_.context, longest_prompt + config_.max_completion);
  s.max_batch = config_.rollout_batch ? config_.rollout_batch
                                      : std::min<int64_t>(config_.prompts * config_.group, 512);
  // All prompts at once, if they are not many: those that come in between others' tokens end after
  // them, too, in steps of ever fewer rows.
  s.step_tokens = std::clamp<int64_t>(config_.prompts * longest_prompt, 512, 8192);
  s.step_tokens = std::max(s.step_tokens, s.max_batch);
  const int64_t blocks = (s.max_batch + config_.prompts) * blocks_for(s.context);
  s.cache_bytes = std::min(blocks * Runner::block_bytes(model_, store_.dtype()),
                           int64_t(0.4 * double(backend_.free_bytes())));
  s.tokenizer = spec_.tokenizer;
  engine_ = std::make_unique<Engine>(model_, store_, backend_, s);
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

RolloutBatch GrpoStepper::roll_out(std::span<const EncodedPrompt> prompts, const GrpoState& state) {
  return make_rollouts(*engine_, prompts, rewards_, rollout_spec(state.step), state.version);
}

StepFindings GrpoStepper::step(std::span<const EncodedPrompt> prompts, GrpoState& state) {
  return train_on(roll_out(prompts, state), state);
}

StepFindings GrpoStepper::train_on(RolloutBatch batch, GrpoState& state) {
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
  f.lr = config_.lr *
         schedule_factor({config_.schedule, config_.steps, config_.warmup, 0, config_.lr_floor},
                         state.step);
  const auto scoring = Clock::now();
  const std::vector<PolicySample> samples = samples_of(f, state);
  f.seconds.score = seconds_since(scoring);
  const auto training = Clock::now();
  update_weights(f, samples, state);
  f.seconds.train = seconds_since(training);
  if (config_.kl_target > 0 && f.updates > 0)
    state.beta = adapted_beta(state.beta, f.policy.kl, config_.kl_target);
  state.step += 1;
  state.completions += int64_t(f.batch.rollouts.size());
  state.tokens += f.batch.tokens;
  state.unrewarded += std::ranges::count(f.advantages.rewarded, 0);
  f.seconds.total = f.seconds.decode + f.seconds.reward + seconds_since(begin);
  state.seconds += f.seconds.total;
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
    auto trainer = score_rollouts(*programs_, rollouts, config_.micro_tokens, model_.context);
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
    auto reference = score_rollouts(*reference_, rollouts, config_.micro_tokens, model_.context);
    for (size_t i = 0; i < samples.size(); ++i) samples[i].reference = std::move(reference[i]);
  }
  return samples;
}

void GrpoStepper::update_weights(StepFindings& f, const std::vector<PolicySample>& samples,
                                 GrpoState& state) {
  if (samples.empty()) return;
  const int64_t parts = std::min<int64_t>(config_.mini_batches, int64_t(samples.size()));
  int64_t rewarded = 0, tokens = 0;
  for (size_t i = 0; i < f.batch.rollouts.size(); ++i)
    if (f.advantages.rewarded[i]) ++rewarded, tokens += f.batch.rollouts[i].completion_tokens();
  const PolicySpec spec{.micro_tokens = config_.micro_tokens,
                        .loss = config_.loss(f.beta),
                        .generation_tokens = f.batch.tokens,
                        .completions = double(rewarded) / double(parts),
                        .tokens = double(tokens) / double(parts)};
  for (int64_t pass = 0; pass < config_.mu; ++pass)
    for (int64_t part = 0; part < parts; ++part) {
      // At the first update the weights are still those that sampled.
      LogprobGap* gap = f.updates == 0 && config_.importance_cap == 0 ? &f.gap : nullptr;
      std::vector<PolicySample> some;
      if (parts > 1) some = part_of(samples, state.step, pass, part, parts);
      add_update(f, policy_step(*programs_, *update_, parts > 1 ? some : samples, spec,
                                scalars(f.lr, state.version), model_.context, gap));
      state.update = f.policy.update;
      ++state.version;
      if (state.update.streak >= most_skips)
        fail("grpo", "expected finite gradients, got {} updates in a row without; try a lower --lr",
             most_skips);
    }
  engine_->forget();
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

Scalars GrpoStepper::scalars(double lr, uint64_t version) const {
  Scalars s;
  s.lr = float(lr), s.clip = config_.clip;
  s.seed_lo = uint32_t(config_.seed), s.seed_hi = uint32_t(config_.seed >> 32);
  s.step = uint32_t(version);
  return s;
}

}  // namespace hearth
