#include "train/run.h"

#include <cmath>

#include "formats/checkpoint_dir.h"
#include "formats/run_folder.h"
#include "optim/fp8_scales.h"
#include "sys/clock.h"
#include "sys/error.h"
#include "sys/process/process_memory.h"
#include "sys/terminal.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/log.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t most_reloads = 10;  // in one run
constexpr int64_t first_steps = 3;    // these build the programs: timed as a separate phase

class Run {
 public:
  Run(const RunSpec& spec, const RunConfig& config, const RunSettings& settings,
      TrainedModel& model, Task& task)
      : spec_(spec),
        config_(config),
        settings_(settings),
        model_(model),
        task_(task),
        backend_(model.memory.backend),
        steps_(task.steps()),
        guard_(state_, model.memory.backend,
               {.spike_z = config.spike_z, .fp16 = config.dtype == TrainDType::fp16}),
        saver_(spec.run, {.warn = spec.warn}),
        scales_(model.memory.backend) {}

  RunResult run() {
    config_.check_run(steps_);
    const bool began = spec_.resume && std::filesystem::exists(spec_.run / "log.jsonl");
    open_folder();
    const auto found = resumed_checkpoint(spec_.run, spec_.resume, spec_.warn);
    if (began && !found)
      spec_.tell(fmt::format("{} has no checkpoint yet: the run starts again at its first step",
                             spec_.run.string()));
    if (found) expect_this_run(*found);  // before prepare() writes anything
    const bool prepared = task_.prepare();
    spec_.phases->mark("prepare");
    if (!prepared) return result(Ending::stopped);
    begin(found);
    spec_.phases->mark("load");
    introduce();
    log_ = std::make_unique<RunLog>(spec_.run, state_.log, state_.samples, steps_, spec_.quiet,
                                    spec_.warn, state_.step);
    spec_.phases->mark("plan");
    const bool finished = last_checkpoint_ && !evaluation_is_due() && is_over();
    evaluate();
    if (finished)
      spec_.tell(fmt::format(
          "{} is already finished ({} of {} steps{}", spec_.run.string(), state_.step, steps_,
          state_.step < steps_ ? ", it reached its target); nothing was done"
                               : "); nothing was done; --steps N makes it longer"));
    std::optional<Ending> ending = ending_here();
    // A run that ends here still leaves a checkpoint, unless it only evaluates. If a resumed run
    // had ended before a due evaluation, that evaluation was just made and is saved.
    if (last_checkpoint_ || (ending && steps_ > 0)) checkpoint(ending ? Last::yes : Last::no);
    if (!ending) plan_snapshot();
    while (!ending) ending = advance();
    saver_.finish();
    log_->sync(), spec_.phases->mark("save");
    log_->phases(state_.step, spec_.phases->to_json());
    if (!finished) task_.conclude(*ending, checkpoint_path());
    return result(*ending);
  }

 private:
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool at_target() const { return task_.at_target(state_); }
  bool is_over() const { return at_target() || state_.step >= steps_; }
  bool at_stop() const {
    return spec_.stopped() || (spec_.stop_after_step && state_.step >= *spec_.stop_after_step);
  }
  // Why the run ends at this step; nothing: it continues. An evaluation that is still due after
  // evaluate() was interrupted by a signal.
  std::optional<Ending> ending_here() const {
    if (at_target()) return Ending::target;
    if (evaluation_is_due()) return Ending::stopped;
    if (state_.step >= steps_) return Ending::steps;
    if (at_stop()) return Ending::stopped;
    return {};
  }
  bool evaluation_is_due() const {
    if (!task_.evaluates() || state_.evaluated == state_.step) return false;
    if (state_.step == 0) return task_.evaluates_first() || steps_ == 0;
    return due(config_.eval_every) || state_.step == steps_;
  }
  // A checkpoint that falls due during a row of bad steps is delayed until the row ends, since the
  // run could not roll back to it.
  bool checkpoint_is_due() const {
    const int64_t every = config_.checkpoint_every;
    return every > 0 && state_.step / every > std::max<int64_t>(0, state_.good_step) / every;
  }

  // Plans the memory for checkpoints that are written beside training. It is allocated when the
  // programs are built and the duration of a step is known, or here if a checkpoint comes earlier.
  void plan_snapshot() {
    first_save_ = config_.next_save(state_.step, steps_, task_.evaluates());
    if (first_save_ == steps_) return;  // save_in_place() needs none
    saver_.plan(model_.config, model_.params);
    if (first_save_ - state_.step <= first_steps + 1) prepare_snapshot(0);
  }
  void prepare_snapshot(double seconds) {
    saver_.prepare(model_.config, model_.params, seconds), spec_.phases->mark("snapshot_memory");
  }

  // Called after all checks that do not need the folder, so that a bad call leaves none behind.
  void open_folder() {
    expect_settings(spec_, settings_);
    lock_ = open_run_folder(spec_.run, spec_.resume, settings_.toml());
  }

  // Throws if the checkpoint belongs to another run. Returns a name of its state for later errors.
  std::string expect_this_run(const fs::path& dir) const {
    return expect_same_run(dir, {.kind = task_.kind(),
                                 .settings = settings_,
                                 .base = model_.base.json(),
                                 .data = task_.data_digest()});
  }

  // Starts with fresh weights, or with the checkpoint that was found.
  void begin(const std::optional<fs::path>& found) {
    make_training_buffers(model_.params, config_.update_spec());
    if (found) load(*found, false), extend();
    write_changes(spec_.run, settings_);
    if (found) return reconcile(spec_.run, *found, config_.keep);
    for (const std::string& note : spec_.notes) spec_.tell(note);
    for (const std::string& odd :
         {config_.oddity(steps_), config_.update_spec().oddity(model_.params),
          model_.config.lora ? std::string() : model_.config.moe.oddity()})
      if (!odd.empty()) spec_.tell(odd);
    model_.begin(config_.seed);
    state_.total = steps_, state_.logits_bytes = logits_chunk_bytes(backend_);
    task_.begin(state_);
    task_.update().set_state({});
  }

  // `moves_on`: the run rolls back after bad steps and skips the data that caused them.
  void load(const fs::path& dir, bool moves_on) {
    const std::string where = expect_this_run(dir);
    const json saved = load_model_checkpoint(dir, model_.config, model_.params);
    const StateFields trainer = trainer_fields(saved, where);
    const RunState now = std::exchange(state_, RunState::from_json(trainer.object("run")));
    if (moves_on) {
      state_.data_step = now.data_step, state_.reloads = now.reloads + 1;
      state_.total = now.total, state_.log = now.log, state_.samples = now.samples;
      state_.train_seconds = now.train_seconds, state_.update.skipped = now.update.skipped;
    }
    task_.load(state_, trainer.object("task"), moves_on);
    restore_fp8_scales(task_.update(), trainer.object("task"));
    task_.update().set_state(state_.update);
    last_checkpoint_ = dir, saved_ = state_.step, saved_evaluation_ = state_.evaluated;
  }

  // A run may be resumed with more steps than it began with, which changes most schedules.
  void extend() {
    const int64_t before = std::exchange(state_.total, steps_);
    if (steps_ < before)
      fail_usage("--steps", "expected at least the {} steps that the run was begun for, got {}",
                 before, steps_);
    if (const std::string change = config_.change(before, steps_, state_.step); !change.empty())
      spec_.tell(change);
  }

  void introduce() const {
    if (spec_.quiet) return;
    say("training on {}\n", backend_.describe());
    if (const auto need = task_.memory_need()) say("memory: {}\n", describe(*need));
  }

  // Makes one step and what is due after it. Returns why the run ends; nothing: it continues.
  std::optional<Ending> advance() {
    if (!step()) {  // the step was rolled back, or a signal came first
      if (!spec_.stopped()) return {};
      checkpoint(Last::yes);
      return Ending::stopped;
    }
    if (due(task_.sample_every())) sample();  // first: an evaluation may fail and be repeated
    evaluate();
    const std::optional<Ending> ending = ending_here();
    if (ending) collect();
    const bool good = state_.update.streak == 0, complete = ending && *ending != Ending::stopped;
    // During a row of bad steps no best checkpoint is saved; the next good evaluation decides.
    improved_ = improved_ && (good || complete);
    if (ending)
      checkpoint(Last::yes);
    else if (good && ((improved_ && config_.save_best) || checkpoint_is_due()))
      checkpoint(Last::no);
    improved_ = false;  // if nothing was saved, these weights are lost
    return ending;
  }

  // A step that was launched and whose results the host has not read yet.
  struct Pending {
    StepReport report;
    int64_t step = 0, tokens = 0;  // totals of the run, including this step
    double lr = 0;
    int64_t updates = 0;    // made by this step
    int64_t in_flight = 0;  // of those: not settled by the guard yet
    Clock::time_point begun;
  };

  // Launches a step and then reads the results of the previous one while this one runs. If the
  // device does not run ahead of the host, the results of this step are read too. False: the run
  // rolled back to a checkpoint, or a signal came first.
  bool step() {
    const auto begin = Clock::now();
    guard_.begin_step();
    StepContext c = step_context(config_, steps_, state_, guard_);
    const int64_t earlier = guard_.in_flight();
    std::optional<StepReport> r = attempt(c);
    if (!r) return false;
    scales_.send(task_.update());
    ++state_.step, ++state_.data_step, state_.tokens += r->tokens;
    const int64_t in_flight = guard_.in_flight() - earlier;
    const double lr = r->lr.value_or(double(c.scalars.lr));
    collect();
    pending_ = Pending{.report = std::move(*r),
                       .step = state_.step,
                       .tokens = state_.tokens,
                       .lr = lr,
                       .updates = guard_.updates(),
                       .in_flight = in_flight,
                       .begun = begin};
    if (!backend_.runs_ahead() || in_flight == 0 || guard_.may_fail() || something_is_due())
      collect();
    if (!guard_.has_failed()) return true;
    go_back();
    return false;
  }

  // Whether something follows that reads the run's state or the weights of exactly this step.
  bool something_is_due() const {
    return due(task_.sample_every()) || evaluation_is_due() || checkpoint_is_due() || is_over() ||
           at_stop();
  }

  // Waits for the results of the step that was launched last, and logs them.
  void collect() {
    if (!pending_) return;
    Pending p = std::move(*pending_);
    pending_.reset();
    guard_.settle(p.in_flight);
    if (p.report.complete) {
      p.report.complete(p.report);
      if (p.report.loss) state_.update.loss = float(*p.report.loss);
    }
    scales_.take(p.report.more);
    const auto now = Clock::now();
    // Steps overlap, so the duration of a step is the time between the ends of consecutive steps.
    const std::chrono::duration<double> took = now - std::max(p.begun, collected_);
    collected_ = now;
    record(p, took.count());
    spec_.phases->mark(++own_steps_ <= first_steps ? "first_steps" : "steps");
    if (own_steps_ == first_steps + 1 && first_save_ < steps_)
      prepare_snapshot(double(first_save_ - p.step) * took.count());
  }

  // If a step throws before it has changed the weights, saves a checkpoint of the steps before it.
  std::optional<StepReport> attempt(StepContext& c) {
    RunState before = state_;
    try {
      return task_.step(c);
    } catch (const std::exception&) {
      if (settle_before_error(before)) checkpoint_before_error();
      throw;
    }
  }

  // Brings the state back to the step before the failed one. Returns whether the weights are too.
  bool settle_before_error(RunState& before) {
    try {
      if (pending_) {
        collect();
        before = state_;
      }
      guard_.settle();
      const bool touched = state_.update.good_steps != before.update.good_steps;
      state_ = before;
      return !touched;
    } catch (const std::exception& e) {  // the error of the step is the one to rethrow
      spec_.tell(e.what());
      return false;
    }
  }

  void checkpoint_before_error() {
    if (state_.step == 0) return;
    try {
      checkpoint(Last::yes);
    } catch (const std::exception& e) {  // the error of the step is the one to rethrow
      spec_.tell(e.what());
    }
  }

  void record(const Pending& p, double seconds) {
    const StepReport& r = p.report;
    const double loss = r.loss.value_or(double(state_.update.loss));
    own_seconds_ += seconds, own_tokens_ += r.tokens, loss_ = loss;
    state_.train_seconds += seconds;
    const MemoryUse held = backend_.memory_use();
    StepRecord out{.step = p.step,
                   .tokens = p.tokens,
                   .loss = loss,
                   .terms = r.terms,
                   .lr = p.lr,
                   .skipped = p.updates > 0 && state_.update.skip != 0,
                   .spike = guard_.spike(),
                   .seconds = seconds,
                   .tokens_per_s = double(r.tokens) / seconds,
                   .flops = r.flops / seconds,
                   .memory = held.now ? held.now : resident_bytes(),
                   .peak_memory = held.peak ? held.peak : peak_resident_bytes(),
                   .device = sensed(),
                   .more = r.more,
                   .more_perf = r.more_perf,
                   .line = r.line,
                   .rollouts = r.rollouts};
    if (!guard_.spike()) out.grad_norm = p.updates ? double(state_.update.grad_norm) : 0;
    if (r.examples) out.more_perf["examples_per_s"] = double(r.examples) / seconds;
    if (spec_.peak_flops > 0) out.mfu = out.flops / spec_.peak_flops;
    log_->step(out);
  }

  // Reading sensors is slow, so at most once a second.
  std::optional<DeviceState> sensed() {
    if (sensed_at_ && seconds_since(*sensed_at_) < 1) return {};
    sensed_at_ = Clock::now();
    return backend_.device_state();
  }

  void go_back() {
    const std::string why = guard_.why();
    if (state_.good_step < 0)
      fail("train",
           "{}, and there is no checkpoint to go back to; try a lower --lr {} in a new run: delete "
           "{} or choose another --run",
           why, state_.spikes ? "or a higher --spike-z" : "or a longer --warmup",
           spec_.run.string());
    saver_.finish();
    const fs::path good = spec_.run / "checkpoints" / step_name(state_.good_step);
    if (const auto problem = verify_checkpoint(good))
      fail(good.string(), "expected a checkpoint to go back to after {} bad steps in a row, got {}",
           max_bad_steps, *problem);
    spec_.tell(fmt::format("{}: going back to {}, past the data that did it", why,
                           good.filename().string()));
    load(good, true);
    go_back_to(spec_.run, good, config_.keep);
    if (state_.reloads > most_reloads)
      fail("train", "gave up after {} reloads: {}", most_reloads, why);
    saved_ = -1;  // the new data position and the reload count are not on disk yet
  }

  // Samples are informational: if one fails, the run continues without it.
  void sample() {
    std::string text;
    try {
      text = task_.sample();
    } catch (const std::exception& e) {
      return spec_.tell(fmt::format("no sample at step {}: {}", state_.step, e.what()));
    }
    log_->sample(state_.step, text);
    spec_.phases->mark("sample");
  }

  void evaluate() {
    if (!evaluation_is_due()) return;
    const auto begin = Clock::now();
    std::optional<EvalReport> r;
    try {
      r = task_.evaluate(state_, [&](const std::string& line) { log_->progress(line); });
    } catch (const std::exception&) {
      checkpoint_before_error();
      throw;
    }
    spec_.phases->mark("evaluate");
    if (!r) return;  // interrupted by a signal
    log_->evaluation(state_.step, *r, seconds_since(begin));
    state_.evaluated = state_.step;
    state_.finite_eval = !r->value || std::isfinite(*r->value);
    if (!r->value || !state_.finite_eval) return;
    state_.last_eval = r->value, state_.last_eval_step = state_.step;
    improved_ = state_.step > 0 &&
                (!state_.best_eval || (r->higher_is_better ? *r->value > *state_.best_eval
                                                           : *r->value < *state_.best_eval));
  }

  enum class Last : bool { no, yes };

  // Skips the save if nothing was learned since the last checkpoint, unless that one has been
  // evaluated since: then it is written again with the result in its state. The last checkpoint of
  // a run is complete when this returns; others are written in the background.
  void checkpoint(Last last) {
    collect();
    if (state_.step == saved_ && state_.evaluated == saved_evaluation_) return;
    state_.log = log_->log_mark(), state_.samples = log_->samples_mark();
    if (improved_) state_.best_eval = state_.last_eval, state_.best_step = state_.step;
    if (state_.update.streak == 0) state_.good_step = state_.step;
    const auto begin = Clock::now();
    last == Last::yes ? saver_.save_in_place(contents(), model_.params)
                      : saver_.save(contents(), model_.params);
    last_checkpoint_ = spec_.run / "checkpoints" / step_name(state_.step);
    saved_ = state_.step, saved_evaluation_ = state_.evaluated, improved_ = false;
    log_->checkpoint(state_.step, seconds_since(begin));
    spec_.phases->mark("save");
  }

  ModelCheckpoint contents() const {
    json trainer{{"version", trainer_version},
                 {std::string(task_.kind()), settings_.values},
                 {"run", state_.to_json()},
                 {"task", task_.save()}};
    save_fp8_scales(trainer["task"], task_.update());
    std::string base;
    if (model_.base) {
      trainer["base"] = model_.base.digest;
      // Relative, so that the base is still found after both have been moved together.
      trainer["base_path"] = fs::relative(model_.base.path, spec_.run).string();
    }
    if (model_.config.lora) base = fs::absolute(model_.base.path).string();
    if (const std::string digest = task_.data_digest(); !digest.empty()) trainer["data"] = digest;
    return {.model = model_.config,
            .base = base,
            .tokenizer = model_.tokenizer ? &*model_.tokenizer : nullptr,
            .chat_template = model_.chat_template,
            .ends = model_.ends,
            .generation = model_.generation,
            .trainer = std::move(trainer),
            .step = state_.step,
            .keep = config_.keep,
            .logs = {spec_.run / "log.jsonl", spec_.run / "samples.jsonl"}};
  }

  fs::path checkpoint_path() const { return last_checkpoint_.value_or(fs::path()); }

  RunResult result(Ending reason) const {
    RunResult r;
    r.steps = state_.step, r.tokens = state_.tokens;
    if (state_.step > 0) r.train_loss = loss_.value_or(state_.update.loss);
    r.val_loss = state_.last_eval, r.train_seconds = state_.train_seconds;
    if (state_.last_eval) r.val_step = state_.last_eval_step;
    if (own_seconds_ > 0) r.tokens_per_s = double(own_tokens_) / own_seconds_;
    r.skipped = int64_t(state_.update.skipped), r.reloads = state_.reloads;
    r.diverged = state_.update.streak > float(state_.spikes) ||
                 !std::isfinite(state_.update.loss) ||
                 (state_.evaluated == state_.step && !state_.finite_eval);
    r.reason = reason, r.checkpoint = checkpoint_path(), r.seconds = spec_.phases->to_json();
    return r;
  }

  const RunSpec& spec_;
  const RunConfig& config_;
  const RunSettings& settings_;
  TrainedModel& model_;
  Task& task_;
  Backend& backend_;
  const int64_t steps_;
  RunState state_;
  StepGuard guard_;
  Fd lock_;
  CheckpointSaver saver_;  // declared after the lock, which it needs until it is destroyed
  Fp8Summaries scales_;    // of the steps in flight
  std::unique_ptr<RunLog> log_;
  std::optional<fs::path> last_checkpoint_;
  int64_t first_save_ = 0;         // the first step that may be saved while training continues
  int64_t saved_ = -1;             // the step of the last checkpoint; -1: none
  int64_t saved_evaluation_ = -1;  // the step of the last evaluation in its state
  bool improved_ = false;          // the last evaluation is the best, and its weights are unsaved
  std::optional<Clock::time_point> sensed_at_;
  std::optional<Pending> pending_;
  Clock::time_point collected_ = {};  // when the results of a step were last read
  std::optional<double> loss_;        // of the last step
  double own_seconds_ = 0;            // of this process, as are the next two
  int64_t own_tokens_ = 0, own_steps_ = 0;
};

}  // namespace

void expect_settings(const RunSpec& spec, const RunSettings& settings) {
  expect_new_or_resumed(spec.run, spec.resume);
  if (spec.resume) expect_settings_of_run(spec.run, settings);
}

RunResult run_task(const RunSpec& spec, const RunConfig& config, const RunSettings& settings,
                   TrainedModel& model, Task& task) {
  return Run(spec, config, settings, model, task).run();
}

}  // namespace hearth::inline train
