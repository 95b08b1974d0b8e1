#include "train/trainer.h"

#include <cmath>

#include "core/clock.h"
#include "core/error.h"
#include "data/shards.h"
#include "io/checkpoint_dir.h"
#include "io/fields.h"
#include "io/files.h"
#include "io/process_memory.h"
#include "io/terminal.h"
#include "train/bad_steps.h"
#include "train/log.h"
#include "train/run_folder.h"
#include "train/validation.h"

namespace hearth {
namespace fs = std::filesystem;

namespace {

constexpr double memory_share = 0.9;  // of what is free, for a run to use

std::string toml_text(const RunSpec& s) {
  return "# Written when the run began; `--resume` reads it back.\n" +
         toml_lines(fields_to_json(s.train)) + "\n# The model.\n" +
         toml_lines(fields_to_json(s.model));
}

class Run {
 public:
  Run(const RunSpec& spec, Backend& backend)
      : spec_(spec),
        config_(spec.train),
        backend_(backend),
        store_(backend, decoder_params(spec.model), to_dtype(spec.train.dtype), spec.train.offload),
        memory_(backend, &store_) {}

  RunResult run() {
    expect_new_or_resumed(spec_.run, spec_.resume);
    room_ = {int64_t(memory_share * double(backend_.free_bytes())), backend_.logits_bytes(),
             backend_.has_far_memory()};
    check_everything();
    open_folder();
    begin();
    if (!spec_.quiet) say("training on {}\n", backend_.describe());
    log_ = std::make_unique<RunLog>(spec_.run, state_.log, state_.samples, config_.steps,
                                    spec_.quiet, spec_.warn);
    if (state_.step == 0 && state_.log.bytes == 0 && !config_.val.empty() && config_.eval_every)
      validate();
    std::string reason = at_target() ? "target" : "steps";
    if (last_checkpoint_ && (reason == "target" || state_.step >= config_.steps))
      warn(finished_already(spec_.run, state_.step, config_.steps));
    while (state_.step < config_.steps && reason == "steps") {
      if (!train_step()) continue;  // went back to a checkpoint
      const bool done = state_.step == config_.steps;
      if (due(config_.eval_every) || (done && !config_.val.empty())) validate();
      if (spec_.sample && due(config_.sample_every)) sample();
      if (at_target())
        reason = "target";
      else if ((spec_.stop && *spec_.stop) || at_stop())
        reason = "stopped";
      const bool good = state_.update.streak == 0;
      // Else for the next validation to find, if there is to be one.
      improved_ = improved_ && (good || done || reason == "target");
      if (done || reason != "steps" || (good && (improved_ || checkpoint_is_due()))) checkpoint();
    }
    log_->sync();
    return result(reason);
  }

 private:
  bool at_target() const {
    return config_.target_loss > 0 && state_.last_val > 0 && state_.last_val <= config_.target_loss;
  }
  bool at_stop() const { return spec_.stop_after_step > 0 && state_.step >= spec_.stop_after_step; }
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }

  // One that falls due in a row of bad steps waits for its end: nothing could go back to it.
  bool checkpoint_is_due() const {
    const int64_t every = config_.checkpoint_every;
    return every > 0 && state_.step / every > std::max<int64_t>(0, state_.good_step) / every;
  }

  // What a run will need at any of its steps, asked for before the first: a shape that does not
  // fit, a damaged file or a missing tokenizer costs no training.
  void check_everything() {
    if (!config_.tokenizer.empty()) tokenizer_ = Tokenizer::load(config_.tokenizer);
    if (const std::string why =
            backend_.refuses_heads(spec_.model.head_dim, to_dtype(config_.dtype));
        !why.empty())
      fail("model", "{}", why);
    shapes_ = batch_shapes(spec_.model, config_, room_);
    for (const BatchShape& s : shapes_) {
      shape_ = s;
      make_loader({});
      if (!config_.val.empty())
        each_validation_batch(loader_spec(config_.val), config_,
                              [](const Batch&) { return false; });
      tokens_checked_ = true;
    }
    shape_ = shapes_.front();
  }

  const BatchShape& shape_at(int64_t step) const {
    size_t i = shapes_.size() - 1;
    while (shapes_[i].first_step > step) --i;
    return shapes_[i];
  }

  // Only after everything that can be checked without it: a bad call leaves no folder behind.
  void open_folder() { lock_ = open_run_folder(spec_.run, spec_.resume, toml_text(spec_)); }

  // Fresh weights, or those of the newest valid checkpoint.
  void begin() {
    for (Part p : {Part::weight, Part::grad, Part::moment1, Part::moment2}) store_.flat(p);
    if (const auto found = resumed_checkpoint(spec_.run, spec_.resume, spec_.warn)) {
      load(*found, false);
      return reconcile(spec_.run, *found, config_.keep);
    }
    for (const std::string& note : spec_.notes) spec_.warn(note);
    state_.data = fingerprint_of(parse_sources(config_.data));
    store_.initialise(config_.seed);
    for (const BatchShape& s : shapes_) state_.batches.push_back(s.B);
    state_.logits_bytes = room_.logits_bytes;
    make_loader({});
    prepare_programs();
    programs_->set_update_state({});
  }

  // `move_on` keeps reading where the data stands now rather than where the checkpoint stood.
  void load(const fs::path& dir, bool move_on) {
    const Cursor now = state_.cursor;
    const int64_t reloads = state_.reloads;
    const LogMark log = state_.log, samples = state_.samples;
    state_ = load_checkpoint(dir, checkpoint_spec(), store_);
    if (!state_.best_step) state_.best_step = best_of_link(spec_.run, state_.step);
    last_checkpoint_ = dir;
    expect_data();
    if (move_on) {
      state_.cursor = now, state_.reloads = reloads + 1;
      state_.log = log, state_.samples = samples;
    }
    room_.logits_bytes = state_.logits_bytes;
    shapes_ = batch_shapes(spec_.model, config_, room_, state_.batches);
    shape_ = shape_at(std::max<int64_t>(0, state_.step - 1));  // the cursor counts in its terms
    make_loader(state_.cursor);
    prepare_programs();
    programs_->set_update_state(state_.update);
  }

  // More data under the same name is a way to go on, yet not the run that it would have been.
  void expect_data() {
    const std::string now = fingerprint_of(parse_sources(config_.data));
    if (!state_.data.empty() && state_.data != now && spec_.warn)
      spec_.warn(
          "the data is not what the run was trained on so far: it goes on at the same place "
          "of other files");
    state_.data = now;
  }

  CheckpointSpec checkpoint_spec() const {
    return {spec_.model, config_, tokenizer_ ? &*tokenizer_ : nullptr};
  }

  void prepare_programs() {
    programs_ = std::make_unique<Programs>(
        program_spec(spec_.model, config_, shape_, room_.logits_bytes), memory_);
  }

  LoaderSpec loader_spec(const std::vector<std::string>& patterns) const {
    LoaderSpec s;
    std::vector<LoaderSource> sources = parse_sources(patterns);
    if (sources.size() == 1 && sources[0].name.empty())
      s.files = std::move(sources[0].files);
    else
      s.mix = std::move(sources);
    s.batch = shape_.B, s.seq = shape_.T;
    s.workers = config_.workers, s.prefetch = config_.prefetch;
    s.vocab = tokens_checked_ ? 0 : spec_.model.vocab;
    s.document_mask = config_.document_mask;
    s.document_start = int32_t(config_.document_start);
    return s;
  }

  void make_loader(const Cursor& at) {
    LoaderSpec s = loader_spec(config_.data);
    s.order = config_.order;
    s.seed = config_.seed;
    loader_.reset();
    loader_ = std::make_unique<Loader>(s, at);
  }

  // Follows the batch and length schedules; a new length re-records the programs.
  void follow_schedules() {
    const BatchShape& next = shape_at(state_.step);
    if (next == shape_) return;
    const bool same_batch = next.B == shape_.B && next.T == shape_.T;
    const bool needs_next = next.micro_batches > 1 && !programs_->spec().accumulates;
    if (next.T != shape_.T && config_.order == LoaderSpec::Order::shuffled)
      state_.cursor = state_.cursor.next_epoch();  // other windows
    shape_ = next;
    if (!same_batch) make_loader(state_.cursor);
    if (!same_batch || needs_next) {
      const UpdateState keep = programs_->update_state();
      prepare_programs();
      programs_->set_update_state(keep);
    }
  }

  // One optimizer step. False when the run went back to a checkpoint instead.
  bool train_step() {
    const auto begin = Clock::now();
    follow_schedules();
    batches_.resize(size_t(shape_.micro_batches));
    int64_t targets = 0;
    for (Batch& b : batches_) {
      loader_->next(b);
      targets += b.count;
    }
    state_.cursor = batches_.back().next;

    Scalars s;
    s.lr = float(config_.lr * schedule_factor({config_.schedule, config_.steps, config_.warmup,
                                               config_.decay_steps, config_.lr_floor},
                                              state_.step));
    s.inv_targets = 1 / float(targets);
    s.clip = config_.clip;
    if (config_.dtype == TrainDType::fp16) s.loss_scale = float(state_.loss_scale);
    s.seed_lo = uint32_t(config_.seed), s.seed_hi = uint32_t(config_.seed >> 32);
    s.step = uint32_t(state_.step);
    for (size_t i = 0; i < batches_.size(); ++i) {
      s.micro = uint32_t(i);
      programs_->micro(batches_[i], s, i == 0);
    }
    // Only a guard against spikes needs the loss before the update: without one a card goes on at
    // once.
    const bool spike = config_.spike_z > 0 && is_spike(state_, config_.spike_z, programs_->loss());
    if (!spike) {
      programs_->update(s);
    } else {
      UpdateState u = programs_->update_state();
      u.loss = float(programs_->loss()), u.skip = 1, u.skipped += 1, u.streak += 1;
      programs_->set_update_state(u);
    }
    state_.update = programs_->update_state();
    state_.spikes = state_.update.streak == 0 ? 0 : state_.spikes + spike;
    const double loss = programs_->loss();
    if (config_.dtype == TrainDType::fp16 && !spike && follow_scale(state_, loss))
      programs_->set_update_state(state_.update);
    if (state_.update.skip == 0 && config_.spike_z > 0) remember_loss(state_, loss);
    state_.step += 1;
    const int64_t tokens = int64_t(batches_.size()) * shape_.B * shape_.T;
    state_.tokens += tokens;
    record({.loss = loss, .lr = s.lr, .spike = spike, .seconds = seconds_since(begin)}, tokens);
    if (state_.update.streak < max_bad_steps) return true;
    go_back();
    return false;
  }

  // Completes what the step itself has put into the record, and logs it.
  void record(StepRecord r, int64_t tokens) {
    train_seconds_ += r.seconds, trained_tokens_ += tokens;
    state_.train_seconds += r.seconds;
    r.step = state_.step, r.tokens = state_.tokens;
    for (const SourceCursor& c : state_.cursor.sources) r.source_tokens.push_back(c.tokens);
    if (!r.spike) r.grad_norm = state_.update.grad_norm;
    r.skipped = state_.update.skip != 0;
    r.tokens_per_s = double(tokens) / r.seconds;
    r.flops = train_flops_per_token(spec_.model, shape_.T) * r.tokens_per_s;
    r.mfu = spec_.peak_flops > 0 ? r.flops / spec_.peak_flops : 0;
    const MemoryUse held = backend_.memory_use();
    r.memory = held.now ? held.now : resident_bytes();
    r.peak_memory = held.peak ? held.peak : peak_resident_bytes();
    r.device = sensed();
    log_->step(r);
  }

  // Sensors are slow to ask: once a second.
  std::optional<DeviceState> sensed() {
    if (sensed_at_ && seconds_since(*sensed_at_) < 1) return {};
    sensed_at_ = Clock::now();
    return backend_.device_state();
  }

  void go_back() {
    const std::string why = why_bad(state_);
    if (state_.good_step < 0)
      fail("train",
           "expected steps to learn from, got {} and no checkpoint to go back to; try a lower --lr "
           "{}",
           why, state_.spikes ? "or a higher --spike-z" : "or a longer --warmup");
    const fs::path good = spec_.run / "checkpoints" / step_name(state_.good_step);
    if (const auto problem = verify_checkpoint(good))
      fail(good.string(), "expected a checkpoint to go back to after {} bad steps in a row, got {}",
           max_bad_steps, *problem);
    warn(fmt::format("{}: going back to {}, past the data that did it", why,
                     good.filename().string()));
    load(good, true);
    go_back_to(spec_.run, good, config_.keep);
    if (state_.reloads > 10)
      fail("train", "expected to recover, got {} after 10 reloads in this run", why);
  }

  // For somebody to read: for want of memory, say, there is none, and the run goes on.
  void sample() {
    std::string text;
    try {
      text = spec_.sample(store_);
    } catch (const std::exception& e) {
      return warn(fmt::format("no sample at step {}: {}", state_.step, e.what()));
    }
    log_->sample(state_.step, text);
  }

  void validate() {
    if (config_.val.empty()) return;
    const auto begin = Clock::now();
    double sum = 0;
    int64_t count = 0;
    each_validation_batch(loader_spec(config_.val), config_, [&](const Batch& b) {
      sum += programs_->evaluate(b) * double(b.count);
      count += b.count;
      log_->validating(state_.step, count, config_.eval_tokens);
      return true;
    });
    const double loss = sum / double(count);
    log_->validation(state_.step, loss, seconds_since(begin));
    if (!std::isfinite(loss)) return;
    state_.last_val = loss, state_.last_val_step = state_.step;
    improved_ = state_.step > 0 && (state_.best_val == 0 || loss < state_.best_val);
  }

  void checkpoint() {
    log_->sync();
    state_.log = log_->log_mark(), state_.samples = log_->samples_mark();
    if (improved_) state_.best_val = state_.last_val, state_.best_step = state_.step;
    if (state_.update.streak == 0) state_.good_step = state_.step;
    last_checkpoint_ = save_checkpoint(spec_.run, checkpoint_spec(), store_, state_);
    improved_ = false;
  }

  RunResult result(const std::string& reason) const {
    RunResult r;
    r.steps = state_.step, r.tokens = state_.tokens;
    if (state_.step > 0) r.train_loss = state_.update.loss;
    if (state_.last_val > 0) r.val_loss = state_.last_val, r.val_step = state_.last_val_step;
    r.train_seconds = state_.train_seconds;
    if (train_seconds_ > 0) r.tokens_per_s = double(trained_tokens_) / train_seconds_;
    r.skipped = int64_t(state_.update.skipped), r.reloads = state_.reloads;
    r.reason = reason;
    if (last_checkpoint_) r.checkpoint = *last_checkpoint_;
    return r;
  }

  void warn(const std::string& line) const {
    if (spec_.warn) spec_.warn(line);
  }

  const RunSpec& spec_;
  const TrainConfig& config_;
  Backend& backend_;
  ParamStore store_;
  Memory memory_;
  Fd lock_;
  Room room_;
  std::vector<BatchShape> shapes_;
  BatchShape shape_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<RunLog> log_;
  RunState state_;
  std::vector<Batch> batches_;
  std::optional<fs::path> last_checkpoint_;
  std::optional<Clock::time_point> sensed_at_;
  bool improved_ = false;        // validation was the best so far, and not saved yet
  bool tokens_checked_ = false;  // every token of every file lies in the vocabulary
  double train_seconds_ = 0;     // of this process
  int64_t trained_tokens_ = 0;
};

}  // namespace

RunResult pretrain(const RunSpec& spec, Backend& backend) {
  spec.train.check();
  RunSpec whole = spec;  // config.toml keeps what was chosen here
  if (whole.train.eval_tokens == 0)
    whole.train.eval_tokens = default_eval_tokens(first_step_tokens(spec.model, spec.train));
  if (spec.resume) expect_settings_of_run(spec.run, toml_text(whole), free_pretrain_settings());
  return Run(whole, backend).run();
}

}  // namespace hearth
