#include "align/run.h"

#include <cmath>
#include <cstdlib>

#include "align/align_state.h"
#include "align/base.h"
#include "core/clock.h"
#include "data/shards.h"
#include "infer/generation_config.h"
#include "io/checkpoint_dir.h"
#include "io/fields.h"
#include "io/gguf.h"
#include "io/process_memory.h"
#include "train/log.h"
#include "train/run_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int bad_steps_allowed = 3;  // in a row, without a finite gradient

// What may change between the parts of one run without changing what it computes so far.
constexpr std::string_view free_settings_of_alignment[] = {
    "model", "data", "val", "eval_every", "checkpoint_every", "keep", "recompute", "reference",
    // The digest of the examples knows these.
    "clock", "special_tokens", "chat_template"};

std::optional<fs::path> newest_checkpoint(const AlignRunSpec& spec) {
  if (!spec.resume) return {};
  return checkpoint_to_resume(spec.run / "checkpoints", spec.warn);
}

ModelSource open_source(const AlignConfig& c, const std::optional<fs::path>& checkpoint) {
  return open_base(checkpoint && !c.lora.spec() ? *checkpoint : fs::path(c.model), c.lora);
}

int64_t checked_length(const AlignConfig& c, const ModelConfig& model) {
  const int64_t length = c.max_length ? c.max_length : std::min<int64_t>(1024, model.context);
  if (length < 2 || length > model.context)
    fail_usage("--max-length", "expected 2 to the model's {} tokens, got {}", model.context,
               length);
  return length;
}

class AlignRun {
 public:
  AlignRun(const AlignRunSpec& spec, const AlignConfig& c, const ordered_json& settings,
           AlignModel& model, AlignTask& task)
      : spec_(spec),
        config_(c),
        settings_(settings),
        model_(model),
        task_(task),
        base_(base_to_json(model.source, model.config)),
        generation_(read_generation_config(model.source.path())),
        steps_(c.steps ? c.steps : c.epochs * task.steps_per_epoch()),
        update_("align", model.memory,
                {.beta1 = c.beta1, .beta2 = c.beta2, .eps = c.adam_eps, .decay = c.weight_decay}) {}

  RunResult run() {
    const std::string toml =
        "# Written when the run began; `--resume` reads it back.\n" + toml_lines(settings_);
    if (spec_.resume) expect_settings_of_run(spec_.run, toml, free_settings_of_alignment);
    lock_ = open_run_folder(spec_.run, spec_.resume, toml);
    if (!task_.prepare()) return result("stopped");
    begin();
    log_ =
        std::make_unique<RunLog>(spec_.run, state_.log, LogMark{}, steps_, spec_.quiet, spec_.warn);
    if (state_.step == 0 && state_.log.bytes == 0) validate();
    if (last_ && state_.step >= steps_ && spec_.warn)
      spec_.warn(finished_already(spec_.run, state_.step, steps_));
    bool stopped = false;
    while (state_.step < steps_ && !stopped) {
      train_step();
      const bool done = state_.step == steps_;
      if (done || due(config_.eval_every)) validate();
      stopped = (spec_.stop && *spec_.stop) ||
                (spec_.stop_after_step > 0 && state_.step >= spec_.stop_after_step);
      if (done || stopped || improved_ || due(config_.checkpoint_every)) checkpoint();
    }
    log_->sync();
    return result(state_.step == steps_ ? "steps" : "stopped");
  }

 private:
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }

  void begin() {
    for (const Part p : {Part::weight, Part::grad, Part::moment1, Part::moment2})
      model_.params.flat(p);
    // Those that are damaged were named when the model was opened.
    if (const auto found = resumed_checkpoint(spec_.run, spec_.resume, {})) return load(*found);
    if (!model_.config.lora) model_.source.load(model_.params);
    update_.set_state({});
  }

  void load(const fs::path& dir) {
    const std::string where = expect_same_run(dir, {.kind = "align",
                                                    .settings = settings_,
                                                    .free = free_settings_of_alignment,
                                                    .base = base_,
                                                    .data = task_.data_digest()});
    const json j = load_model_checkpoint(dir, model_.config, model_.params);
    state_ = AlignState::from_json(trainer_fields(j, where).object("run"));
    if (!state_.best_step) state_.best_step = best_of_link(spec_.run, state_.step);
    update_.set_state(state_.update);
    skipped_ = int64_t(state_.update.skipped);
    if (state_.step > 0) loss_ = state_.update.loss;
    last_ = dir;
    reconcile(spec_.run, dir, config_.keep);
  }

  void train_step() {
    const auto begin = Clock::now();
    Scalars s;
    s.lr = float(config_.lr *
                 schedule_factor({config_.schedule, steps_, config_.warmup, 0, config_.lr_floor},
                                 state_.step));
    s.clip = config_.clip;
    s.seed_lo = uint32_t(config_.seed), s.seed_hi = uint32_t(config_.seed >> 32);
    s.step = uint32_t(state_.step);
    const StepReport r = task_.train(state_.step, s);
    const UpdateState u = update_.run(s, r.loss);
    ++state_.step, state_.tokens += r.tokens, loss_ = r.loss;
    const double seconds = seconds_since(begin);
    state_.train_seconds += seconds, own_seconds_ += seconds, own_tokens_ += r.tokens;
    const MemoryUse held = model_.memory.backend.memory_use();
    log_->step({.step = state_.step,
                .tokens = state_.tokens,
                .loss = r.loss,
                .lr = s.lr,
                .grad_norm = u.grad_norm,
                .skipped = u.skip != 0,
                .seconds = seconds,
                .tokens_per_s = double(r.tokens) / seconds,
                .memory = held.now ? held.now : resident_bytes(),
                .peak_memory = held.peak ? held.peak : peak_resident_bytes(),
                .more = r.more,
                .more_perf = {{"examples_per_s", double(r.examples) / seconds}}});
    skipped_ = int64_t(u.skipped);
    if (u.streak >= bad_steps_allowed)
      fail("align", "expected finite gradients, got {} steps in a row without; try a lower --lr",
           bad_steps_allowed);
  }

  void validate() {
    const auto begin = Clock::now();
    const std::optional<EvalReport> r = task_.evaluate();
    if (!r) return;
    log_->validation(state_.step, r->loss, seconds_since(begin), r->more);
    if (!std::isfinite(r->loss)) return;
    state_.last_val = r->loss, state_.last_val_step = state_.step;
    improved_ = state_.step > 0 && (!state_.best_val || r->loss < *state_.best_val);
    if (improved_) state_.best_val = r->loss;
  }

  void checkpoint() {
    log_->sync();
    state_.log = log_->log_mark();
    state_.update = update_.state();
    if (improved_) state_.best_step = state_.step;
    json trainer{{"version", 1}, {"align", settings_}, {"run", state_.to_json()}};
    if (model_.config.lora) {
      trainer["base"] = base_;
      trainer["base_path"] = path_from_run(model_.source.path(), spec_.run);
    }
    if (const std::string digest = task_.data_digest(); !digest.empty()) trainer["data"] = digest;
    last_ = save_model_checkpoint(spec_.run,
                                  {.model = model_.config,
                                   .base = fs::absolute(model_.source.path()).string(),
                                   .tokenizer = &model_.tokenizer,
                                   .chat_template = model_.carried_template,
                                   .ends = model_.ends,
                                   .generation = generation_,
                                   .trainer = trainer,
                                   .step = state_.step,
                                   .keep = config_.keep},
                                  model_.params);
    improved_ = false;
  }

  RunResult result(const std::string& reason) const {
    RunResult r;
    r.steps = state_.step, r.tokens = state_.tokens, r.train_loss = loss_,
    r.val_loss = state_.last_val, r.val_step = state_.last_val_step;
    r.train_seconds = state_.train_seconds;
    if (own_seconds_ > 0) r.tokens_per_s = double(own_tokens_) / own_seconds_;
    r.skipped = skipped_;
    r.reason = reason;
    if (last_) r.checkpoint = *last_;
    return r;
  }

  const AlignRunSpec& spec_;
  const AlignConfig& config_;
  const ordered_json& settings_;
  AlignModel& model_;
  AlignTask& task_;
  const json base_;                // of adapters
  const ordered_json generation_;  // generation_config.json of the base; kept in every checkpoint
  int64_t steps_;
  UpdateProgram update_;
  Fd lock_;
  std::unique_ptr<RunLog> log_;
  AlignState state_;
  int64_t skipped_ = 0;
  std::optional<double> loss_;  // of the last step
  double own_seconds_ = 0;      // of this process
  int64_t own_tokens_ = 0;
  bool improved_ = false;
  std::optional<fs::path> last_;
};

}  // namespace

AlignModel::AlignModel(const AlignConfig& c, const AlignRunSpec& spec, Backend& backend)
    : checkpoint(newest_checkpoint(spec)),  // says which are damaged
      source(open_source(c, checkpoint)),
      config(config_in_training(source, c.lora)),
      tokenizer(tokenizer_beside(source, config)),
      chat(run_template(c.chat_template, source.tokenizer(), tokenizer)),
      max_length(checked_length(c, config)),
      params(backend, decoder_params(config), to_dtype(c.dtype)),
      memory(backend, &params) {
  // Before anything else: the reference of DPO is this base. What a checkpoint holds comes later.
  if (config.lora) begin_adapters(source, params, c.seed);
  if (tokenizer.eos() < 0 && spec.warn)
    spec.warn("the tokenizer names no end of a text: none is appended to examples");
}

void carry_template(AlignModel& m, bool rendered) {
  const bool has_own = ChatTemplate::exists(m.source.tokenizer());
  if (rendered) {
    m.carried_template = m.chat.source;
    m.ends = answer_ends_of(m.source, &m.chat.chat, m.tokenizer);
  } else if (has_own) {
    const RunTemplate own = run_template(ChatForm::own, m.source.tokenizer(), m.tokenizer);
    m.carried_template = own.source;
    m.ends = answer_ends_of(m.source, &own.chat, m.tokenizer);
  } else {
    m.ends = answer_ends_of(m.source, nullptr, m.tokenizer);
  }
}

LogprobProgramsSpec programs_spec(const AlignModel& m, const AlignConfig& c) {
  return {.model = m.config,
          .name = "align",
          .dtype = to_dtype(c.dtype),
          .recompute = c.recompute,
          .logits_bytes = m.memory.backend.logits_bytes(),
          .keep_bytes = m.memory.backend.kept_logits_bytes()};
}

ExampleEncoder encoder_of(const AlignModel& m, const AlignConfig& c) {
  return ExampleEncoder(m.tokenizer, m.chat.chat, m.max_length, time_of(c.clock),
                        c.special_tokens ? TextTokens::special : TextTokens::none);
}

void check_config(const AlignConfig& c, const AlignRunSpec& spec) {
  if (c.model.empty()) fail_usage("--model", "expected a model to start from, got none");
  if (c.data.empty()) fail_usage("--data", "expected files to train on, got none");
  if (c.dtype == TrainDType::fp16)
    fail_usage("--dtype", "expected fp32, tf32 or bf16 for alignment, got fp16");
  const auto positive = [](const char* flag, int64_t n) {
    if (n < 1) fail_usage(flag, "expected 1 or more, got {}", n);
  };
  positive("--batch", c.batch), positive("--accumulate", c.accumulate);
  if (c.steps == 0) positive("--epochs", c.epochs);
  if (c.steps < 0) fail_usage("--steps", "expected 0 or more, got {}", c.steps);
  if (!(c.holdout >= 0 && c.holdout < 1))
    fail_usage("--holdout", "expected a share from 0 to below 1, got {}", c.holdout);
  if (c.holdout > 0 && !c.val.empty())
    fail_usage("--holdout", "expected a held-out share or --val, got both");
  UpdateSettings::of(c).check();
  expect_schedule_without_decay(c.schedule);
  expect_new_or_resumed(spec.run, spec.resume);
}

RunResult align(const AlignRunSpec& spec, const AlignConfig& config, const ordered_json& settings,
                AlignModel& model, AlignTask& task) {
  return AlignRun(spec, config, settings, model, task).run();
}

}  // namespace hearth
