#include "train/grpo/grpo.h"

#include <fmt/format.h>

#include <algorithm>

#include "optim/fp8_scales.h"
#include "sys/error.h"
#include "sys/trimmed.h"
#include "train/grpo/grpo_report.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Settings that do not affect what a run has computed so far. The digests of the prompts cover
// data, chat, chat_template and clock.
constexpr std::string_view free_settings_of_grpo[] = {"model",          "data",
                                                      "eval_write",     "eval_prompts",
                                                      "eval_data",      "target_exact",
                                                      "sample_every",   "reward_workers",
                                                      "reward_timeout", "reward_failures",
                                                      "rollout_batch",  "batch_invariant",
                                                      "chat",           "clock",
                                                      "reward_start",   "chat_template"};

class GrpoTask : public Task {
 public:
  GrpoTask(const GrpoConfig& c, const RunSpec& spec, TrainedModel& model, Backend& backend)
      : config_(c),
        spec_(spec),
        model_(model),
        backend_(backend),
        train_(c.data, prompt_spec(), *model.tokenizer, {.context = model.config.context},
               spec.warn),
        rewards_(reward_spec()) {
    if (!c.curriculum.empty()) train_.order_by(c.curriculum, c.seed);
    // If the prompts used a chat template, it defines the end of an answer and is saved with the
    // model.
    model.carry(chat_ ? &chat_->chat : nullptr,
                chat_ ? chat_->source : written_chat_template(model.source->tokenizer()));
    asked_ = train_.tokens_digest(model.ends);
    if (!c.eval_data.empty())
      held_ = std::make_unique<PromptSet>(
          c.eval_data, prompt_spec(), *model.tokenizer,
          PromptLimits{.rows = c.eval_prompts, .context = model.config.context}, spec.warn);
    rewards_.check(train_.rows());
    if (held_) rewards_.check(held_->rows());
  }

  // Tests the reward programs before there is a run folder. False: interrupted by a signal.
  bool probe() { return rewards_.probe(train_.rows()[0], spec_.stop); }

  std::string_view kind() const override { return "grpo"; }
  int64_t steps() const override { return config_.steps; }
  UpdateProgram& update() override { return stepper_->update(); }
  std::string data_digest() const override { return train_.rows_digest(); }
  std::optional<MemoryNeed> memory_need() const override { return stepper_->memory_need(); }

  // Also checks that everything fits in memory, before there is a run folder.
  void make_stepper() {
    int64_t longest = train_.longest();
    if (held_) longest = std::max(longest, held_->longest());
    const int64_t context = std::min(model_.config.context, longest + config_.max_completion);
    model_.config.longest = context;
    spec_.tell(long_rope_note(model_.config));
    // Tokens of prompt and completion, log-probabilities and text.
    const double each = sizeof(Rollout) + double(context) * (sizeof(int32_t) + sizeof(float) + 4);
    expect_host_room("--prompts", double(config_.prompts) * double(config_.group) * each,
                     "completions",
                     fmt::format("--prompts {} x --group {} completions of up to {} tokens",
                                 config_.prompts, config_.group, context),
                     "; lower --prompts, --group or --max-completion");
    stepper_ = std::make_unique<GrpoStepper>(
        GrpoStepSpec{.config = config_,
                     .model = model_.config,
                     .tokenizer = &*model_.tokenizer,
                     .longest_prompt = longest,
                     .stop_ids = model_.ends,
                     .interrupt = spec_.stop,
                     .load_reference = [this](ParamStore& to) { model_.source->load(to); }},
        model_.params, backend_, rewards_);
  }

  void begin(RunState&) override {
    if (const size_t rows = train_.prompts().size(); size_t(config_.prompts) > rows)
      spec_.tell(
          fmt::format("--prompts {} is more than the {} prompts of {}: every step repeats some",
                      config_.prompts, rows, config_.data));
    state_.beta = config_.beta;
    state_.micro_tokens = stepper_->micro_tokens();
  }

  void load(RunState& run, const StateFields& saved, bool) override {
    if (saved.text("asked") != asked_)
      saved.refuse("asked", "the tokenizer and the ends of texts that the run began with",
                   "others");
    state_ = GrpoState::from_json(saved);
    if (state_.beta != 0 && config_.beta == 0)
      saved.refuse("beta", "0, for this run has no reference model", state_.beta);
    rewards_.count_on(state_.rewards, "state/trainer.json");
    stepper_->set_micro_tokens(state_.micro_tokens);
    stepper_->set_logits_bytes(run.logits_bytes);
    stepper_->engine().forget();
  }

  nlohmann::json save() const override {
    nlohmann::json j = state_.to_json();
    j["asked"] = asked_;
    return j;
  }

  std::optional<StepReport> step(StepContext& c) override {
    const std::vector<EncodedPrompt> prompts =
        train_.of_step(c.data_step, config_.prompts, config_.seed);
    RolloutBatch batch;
    try {
      batch = stepper_->roll_out(prompts, c.step, state_);
    } catch (const Interrupted&) {
      rewards_.abandon();
      return {};
    }
    GrpoState after = state_;  // a step that fails leaves the state as it was
    const StepFindings f = stepper_->train_on(std::move(batch), c, after);
    state_ = std::move(after);
    state_.rewards = rewards_.counted();
    if (std::ranges::count(f.advantages.rewarded, 1) > 0)
      state_.last_reward = f.advantages.reward_mean;
    measure(f);
    sample_ = first_group(f, prompts[0].row->prompt, config_.group);
    std::vector<std::string> kept;
    if (keeps_rollouts(c.step + 1, config_.steps))
      kept = rollout_lines(f, prompts, *model_.tokenizer, c.step + 1, config_.group);
    return StepReport{.loss = f.policy.loss,
                      .tokens = f.batch.tokens,
                      .flops = flops_of_step(f, model_.computed()),
                      .lr = f.lr,
                      .more = found_in_step(f, config_, state_, rewards_.names()),
                      .more_perf = split_of_step(f, rewards_),
                      .line = step_line(f, config_),
                      .rollouts = std::move(kept)};
  }

  bool evaluates() const override { return held_ != nullptr; }
  bool evaluates_first() const override { return config_.eval_every > 0; }
  // Scores greedy completions of the held-out prompts.
  std::optional<EvalReport> evaluate(const RunState& run, const ShowProgress&) override {
    const RolloutSpec spec = stepper_->rollout_spec(run.step);
    std::vector<Rollout> made;
    std::vector<GroupRewards> rewards;
    try {
      made = greedy_completions(stepper_->engine(), held_->prompts(), spec);
      std::vector<std::future<GroupRewards>> scores;
      for (const Rollout& r : made)
        scores.push_back(
            rewards_.submit(held_->rows()[r.prompt], {{r.text, r.completion_tokens()}}));
      for (auto& s : scores) rewards.push_back(await_rewards(s, spec));
    } catch (const Interrupted&) {
      rewards_.abandon();
      return {};
    }
    state_.rewards = rewards_.counted();
    if (config_.eval_write) write_completions(made, run.step);
    return report(made, rewards);
  }
  bool at_target(const RunState&) const override {
    return config_.target_exact > 0 && state_.last_exact >= config_.target_exact;
  }

  int64_t sample_every() const override { return config_.sample_every; }
  std::string sample() override { return sample_; }

  // A run fails if no completion had a reward, or (in a finished run) if the rewards of most of
  // them failed.
  void conclude(Ending ending, const fs::path& checkpoint) const override {
    const std::vector<RewardFailures> failures = rewards_.failures();
    for (const std::string& line : closing_warnings(state_, failures)) spec_.tell(line);
    const bool some = state_.unrewarded < state_.completions || evaluations_rewarded_ > 0;
    if (!some && state_.completions > 0)
      fail("grpo", "not one of {} completions had a reward: it {} each time", state_.completions,
           rewards_.failed() > 0 ? "failed" : "was null");
    if (ending != Ending::stopped) expect_rewards_of_most(failures, checkpoint);
  }

  GrpoResult result(const RunResult& run) const {
    GrpoResult r;
    static_cast<RunResult&>(r) = run;
    r.updates = int64_t(state_.version), r.completions = state_.completions;
    r.unrewarded = state_.unrewarded, r.failed_attempts = rewards_.failed_attempts();
    r.reward = state_.last_reward;
    if (state_.last_exact >= 0) r.exact = state_.last_exact;
    if (decode_s_ > 0) r.rollout_tokens_per_s = double(decoded_) / decode_s_;
    if (compared_ > 0) r.logprob_gap = gap_;
    if (train_s_ > 0) r.train_tokens_per_s = double(fed_) / train_s_;
    return r;
  }

 private:
  PromptSpec prompt_spec() {
    return {.form = config_.prompt_form,
            .chat = [this]() -> const ChatTemplate& { return chat_template(); },
            .message = config_.chat,
            .now = config_.now()};
  }
  const ChatTemplate& chat_template() {
    if (!chat_)
      chat_ = run_template(config_.chat_template, model_.source->tokenizer(), *model_.tokenizer);
    return chat_->chat;
  }
  RewardSpec reward_spec() const {
    RewardSpec s = config_.rewards();
    s.warn = spec_.warn;
    return s;
  }

  void measure(const StepFindings& f) {
    const StepSplit& s = f.seconds;
    decode_s_ += s.decode, decoded_ += f.batch.tokens, train_s_ += s.train, fed_ += f.fed;
    if (f.gap.most != 0 && gap_ == 0 && backend_.batch_invariant())
      spec_.tell(fmt::format("sampler and trainer differ by up to {:.2g}, and should not on {}",
                             f.gap.most, backend_.describe()));
    gap_ = LogprobGap::worse(gap_, f.gap.most), compared_ += f.gap.tokens;
  }

  // Whether a completion has the answer of its row, judged by the reward term that knows answers,
  // otherwise by comparing texts. Nothing if the row has no answer.
  std::optional<bool> has_answer(const PromptRow& row, const Rollout& r,
                                 const GroupRewards& rewards) const {
    const auto answer = row.answer();
    if (!answer) return std::nullopt;
    const auto term = rewards_.answer_term();
    if (!term) return trimmed(r.text) == trimmed(*answer);
    const std::vector<double>& had = rewards.parts[*term];
    return !had.empty() && had[0] == 1;
  }

  // The mean reward, and the fraction of correct answers.
  EvalReport report(const std::vector<Rollout>& made, const std::vector<GroupRewards>& rewards) {
    double reward = 0;
    int64_t exact = 0, answers = 0, rewarded = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      if (const auto x = rewards[i].total[0]) reward += *x, ++rewarded;
      if (const auto right = has_answer(held_->rows()[i], made[i], rewards[i]))
        ++answers, exact += *right;
    }
    evaluations_rewarded_ += rewarded;
    EvalReport r{.higher_is_better = true, .name = "eval reward"};
    if (rewarded) r.value = reward / double(rewarded);
    r.found = {{"eval_reward", r.value ? ordered_json(*r.value) : ordered_json()},
               {"eval_prompts", made.size()},
               {"eval_unrewarded", int64_t(made.size()) - rewarded}};
    r.line =
        fmt::format("evaluation: reward {}", r.value ? fmt::format("{:.4f}", *r.value) : "none");
    if (answers == 0) return r;
    state_.last_exact = double(exact) / double(answers);
    r.found["eval_exact"] = state_.last_exact;
    r.line += fmt::format(", exact {:.4f}", state_.last_exact);
    return r;
  }

  // Writes the rows with the model's completions. If a row had a completion, that becomes its
  // reference.
  void write_completions(const std::vector<Rollout>& made, int64_t step) const {
    AtomicFile file(spec_.run / fmt::format("eval-{}.jsonl", step));
    for (const Rollout& r : made) {
      const PromptRow& row = held_->rows()[r.prompt];
      nlohmann::json out = row.row;
      if (out.contains("completion") && !out.contains("reference"))
        out["reference"] = out["completion"];
      out["prompt"] = row.prompt, out["completion"] = r.text;
      using Bad = nlohmann::json::error_handler_t;
      file.write(to_bytes(out.dump(-1, ' ', false, Bad::replace) + "\n"));
    }
    file.commit();
  }

  const GrpoConfig& config_;
  const RunSpec& spec_;
  TrainedModel& model_;
  Backend& backend_;
  std::optional<RunTemplate> chat_;  // loaded when the first prompt needs it
  PromptSet train_;
  std::unique_ptr<PromptSet> held_;  // null: no evaluation
  Rewards rewards_;                  // after the rows that it reads, to be destroyed first
  std::unique_ptr<GrpoStepper> stepper_;
  std::string asked_;  // digest of the prompt tokens and of the tokens that end a completion
  GrpoState state_;
  std::string sample_;
  double decode_s_ = 0, train_s_ = 0, gap_ = 0;                              // of this process
  int64_t decoded_ = 0, fed_ = 0, compared_ = 0, evaluations_rewarded_ = 0;  // tokens, but the last
};

}  // namespace

GrpoResult grpo(const GrpoConfig& c, const RunSpec& spec, Backend& backend) {
  c.check();
  if (c.dtype == TrainDType::fp8) expect_fp8(backend);
  const auto settings = RunSettings::of(free_settings_of_grpo, c);
  expect_settings(spec, settings);
  TrainedModel model(open_base(base_in_run(spec.run, c.model), c.lora), c.lora, backend,
                     storage_dtype(c.dtype), c.offload, c.modules ? Modules::apart : Modules::stay);
  c.modules.check(model.config);
  // The default may exceed a short context.
  if (c.max_completion > model.config.context && c.max_completion != GrpoConfig().max_completion)
    fail_usage("--max-completion", "expected 1 to the model's {} tokens, got {}",
               model.config.context, c.max_completion);
  model.tokenizer = tokenizer_beside(*model.source, model.config);
  // Checkpoints name the model that the run began from. With adapters it is their base.
  if (!model.base) model.base = hold_model(*model.source);
  spec.phases->mark("model");
  GrpoTask task(c, spec, model, backend);
  spec.phases->mark("data");
  if (!task.probe()) {
    RunResult nothing;
    nothing.reason = Ending::stopped;
    return task.result(nothing);
  }
  task.make_stepper();
  spec.phases->mark("plan");
  return task.result(run_task(spec, c, settings, model, task));
}

}  // namespace hearth::inline train
