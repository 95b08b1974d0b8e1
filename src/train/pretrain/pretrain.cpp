#include "train/pretrain/pretrain.h"

#include "data/cursor_state.h"
#include "data/shards.h"
#include "data/validation_batches.h"
#include "formats/run_folder.h"
#include "optim/fp8_scales.h"
#include "optim/tied_head.h"
#include "sys/error.h"
#include "train/pretrain/batch_shape.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_shapes = 1 << 20;

// Settings that do not affect what a run has computed so far.
constexpr std::string_view free_settings_of_pretraining[] = {
    "model",   "data",     "val",          "tokenizer",     "eval_tokens",  "eval_documents",
    "workers", "prefetch", "sample_every", "sample_tokens", "sample_prompt"};

class PretrainTask : public Task {
 public:
  PretrainTask(const PretrainSpec& spec, TrainedModel& model, Backend& backend)
      : spec_(spec),
        config_(spec.train),
        model_(model),
        budget_(MemoryBudget::for_run(backend)),
        logits_bytes_(logits_chunk_bytes(backend)),
        terms_(backend) {
    check_everything();
  }

  std::string_view kind() const override { return "pretrain"; }
  int64_t steps() const override { return config_.steps; }
  UpdateProgram& update() override { return programs_->update(); }
  std::optional<MemoryNeed> memory_need() const override {
    return hearth::memory_need(programs_->spec());
  }

  void begin(RunState& state) override {
    data_ = fingerprint_of(parse_sources(config_.data));
    for (const BatchShape& s : shapes_) batches_.push_back(s.B);
    state.logits_bytes = logits_bytes_;
    cursor_seq_ = shape_.T;
    make_loader(cursor_);
    if (shape_.tied && config_.model.empty()) tie_now(model_.memory, TiedSide::table);
    prepare_programs();
  }

  void load(RunState& state, const StateFields& saved, bool moves_on) override {
    expect_same_shares(state.total);
    const std::string began = saved.text("data");
    batches_ = saved.integers("batches", max_shapes, 1);
    expect_data(began);
    logits_bytes_ = state.logits_bytes;
    shapes_ = batch_shapes(model_.config, config_, budget_, logits_bytes_, batches_);
    shape_ = shape_at(std::max<int64_t>(0, state.step - 1));  // a due evaluation uses it
    if (!moves_on) {
      cursor_ = cursor_of(saved.object("cursor"));
      // Earlier versions did not save the length; it was that of the last step.
      cursor_seq_ = saved.has("cursor_seq") ? saved.integer("cursor_seq", 1) : shape_.T;
    }
    make_loader(cursor_for(shape_.T));
    prepare_programs();
  }

  nlohmann::json save() const override {
    return {{"cursor", cursor_to_json(cursor_)},
            {"cursor_seq", cursor_seq_},
            {"data", data_},
            {"batches", batches_}};
  }

  std::optional<StepReport> step(StepContext& c) override {
    follow_schedules(c.step);
    micro_batches_.resize(size_t(shape_.micro_batches));
    int64_t targets = 0;
    for (Batch& b : micro_batches_) {
      loader_->next(b);
      targets += b.count;
    }
    Scalars s = c.scalars;
    s.inv_targets = 1 / float(targets);
    s.share = 1 / float(micro_batches_.size());
    for (size_t i = 0; i < micro_batches_.size(); ++i) {
      s.micro = uint32_t(i);
      programs_->micro(micro_batches_[i], s, i == 0);
    }
    programs_->send_terms(terms_);
    c.guard.update(programs_->update(), s);
    // Last, so that a failed step leaves them unchanged.
    cursor_ = micro_batches_.back().next, cursor_seq_ = shape_.T;
    StepReport r;  // the loss is read with the update
    r.complete = [this](StepReport& report) {
      report.terms = terms_.take();
      if (!terms_.expert_load().empty()) report.more["expert_load"] = terms_.expert_load();
    };
    r.tokens = shape_.micro_batches * shape_.B * shape_.T;
    r.flops = train_flops_per_token(programs_->spec().model, shape_.T) * double(r.tokens);
    if (!cursor_.sources.empty()) {
      std::vector<int64_t> tokens;
      for (const SourceCursor& source : cursor_.sources) tokens.push_back(source.tokens);
      r.more = {{"source_tokens", tokens}};
    }
    return r;
  }

  bool evaluates() const override { return !config_.val.empty(); }
  bool evaluates_first() const override { return config_.eval_every > 0; }
  std::optional<EvalReport> evaluate(const RunState& state, const ShowProgress& progress) override {
    double sum = 0;
    int64_t count = 0;
    LossMeans terms;
    bool stopped = false;
    each_validation([&](const Batch& b) {
      if ((stopped = spec_.stopped())) return false;
      sum += programs_->evaluate(b) * double(b.count);
      count += b.count;
      terms.add(programs_->evaluated_terms(), b.count);
      progress(fmt::format("step {}  validating: {} tokens of at most {}", state.step, count,
                           config_.eval_tokens));
      return true;
    });
    if (stopped) return {};
    return loss_report(sum / double(count), terms.means());
  }
  bool at_target(const RunState& state) const override {
    return config_.target_loss > 0 && state.last_eval && *state.last_eval <= config_.target_loss;
  }

  int64_t sample_every() const override { return spec_.sample ? config_.sample_every : 0; }
  std::string sample() override { return spec_.sample(model_.params); }

 private:
  // A schedule in shares of the run would go back to what a longer run has at this step.
  void expect_same_shares(int64_t total) const {
    if (total == config_.steps) return;
    for (const auto& [flag, text] : {std::pair{"--seq", &config_.seq},
                                     {"--tokens-per-step", &config_.tokens_per_step},
                                     {"--window-schedule", &config_.window_schedule},
                                     {"--long-window-schedule", &config_.long_window_schedule},
                                     {"--mtp-loss-schedule", &config_.mtp_loss_schedule},
                                     {"--further-loss-schedule", &config_.further_loss_schedule},
                                     {"--head-schedule", &config_.head_schedule}})
      if (text->find('%') != text->npos)
        fail_usage("--steps",
                   "this run's {} is in shares of its {} steps, so the run cannot be made longer; "
                   "begin a new run from its weights with --model",
                   flag, total);
  }

  // Checks everything that the run will need before its first step, so that a shape that does not
  // fit, a damaged file or a missing tokenizer costs no training.
  void check_everything() {
    shapes_ = batch_shapes(model_.config, config_, budget_, logits_bytes_);
    for (const BatchShape& s : shapes_) {
      shape_ = s;
      make_loader(cursor_);
      if (!config_.val.empty()) each_validation([](const Batch&) { return false; });
      tokens_checked_ = true;
    }
    shape_ = shapes_.front();
  }

  const BatchShape& shape_at(int64_t step) const {
    size_t i = shapes_.size() - 1;
    while (shapes_[i].first_step > step) --i;
    return shapes_[i];
  }

  // Warns if the data has changed. A run may continue with other data, but its results are then not
  // those of an uninterrupted run.
  void expect_data(const std::string& began) {
    data_ = fingerprint_of(parse_sources(config_.data));
    if (data_ != began)
      spec_.tell(
          "the data is not what the run was trained on so far: it goes on at the same place "
          "of other files");
  }

  void prepare_programs() {
    programs_ = std::make_unique<Programs>(
        program_spec(model_.config, config_, shape_, logits_bytes_), model_.memory);
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
    s.vocab = tokens_checked_ ? 0 : model_.config.vocab;
    s.document_mask = config_.document_mask;
    s.document_start = int32_t(config_.document_start);
    return s;
  }

  void each_validation(const std::function<bool(const Batch&)>& use) const {
    each_validation_batch(
        loader_spec(config_.val),
        {.tokens = config_.eval_tokens, .whole_documents = config_.eval_documents}, use);
  }

  void make_loader(const Cursor& from) {
    LoaderSpec s = loader_spec(config_.data);
    s.order = config_.order;
    s.seed = config_.seed;
    loader_.reset();
    loader_ = std::make_unique<Loader>(s, from);
  }

  // Where sequences of T tokens begin. The shuffled order counts windows, and windows of another
  // length are others: it then begins the next epoch.
  Cursor cursor_for(int64_t T) const {
    const bool counts_others = config_.order == LoaderSpec::Order::shuffled && T != cursor_seq_;
    return counts_others ? cursor_.next_epoch() : cursor_;
  }

  // Applies the schedules of batches, lengths, windows, weights of losses and the head.
  void follow_schedules(int64_t step) {
    const BatchShape& next = shape_at(step);
    if (next == shape_) return;
    const bool same_batch = next.B == shape_.B && next.T == shape_.T;
    shape_ = next;
    if (!same_batch) make_loader(cursor_for(shape_.T));
    programs_->reshape(program_spec(model_.config, config_, shape_, logits_bytes_));
  }

  const PretrainSpec& spec_;
  const TrainConfig& config_;
  TrainedModel& model_;
  const MemoryBudget budget_;
  int64_t logits_bytes_;  // of a chunk: a resumed run keeps what it began with
  std::vector<BatchShape> shapes_;
  BatchShape shape_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Programs> programs_;
  LossQueue terms_;
  Cursor cursor_;
  int64_t cursor_seq_ = 0;        // tokens per sequence of the step that the cursor follows
  std::string data_;              // fingerprint of the files that the cursor refers to
  std::vector<int64_t> batches_;  // micro-batch size of each shape
  std::vector<Batch> micro_batches_;
  bool tokens_checked_ = false;  // every token of every file was checked against the vocabulary
};

// Source of the initial weights and of the files that checkpoints carry: --model, or the checkpoint
// of a resumed run, since --model may no longer exist by then.
std::optional<ModelSource> source_of(const PretrainSpec& spec) {
  if (spec.train.model.empty()) return {};
  const auto checkpoint = resumed_checkpoint(spec.run, spec.resume, {});
  return open_base(checkpoint ? *checkpoint : fs::path(spec.train.model), {});
}

// Loads the tokenizer of --tokenizer, or else of --model. The chat template and generation settings
// of --model go into every checkpoint.
void add_tokenizer(TrainedModel& m, const std::string& tokenizer) {
  const fs::path beside = m.source ? m.source->tokenizer() : fs::path();
  if (tokenizer.empty() && beside.empty()) return;
  m.tokenizer = Tokenizer::load(tokenizer.empty() ? beside : fs::path(tokenizer));
  expect_savable(*m.tokenizer,
                 "give --tokenizer another kind, such as a Hugging Face folder or tokenizer.json");
  if (beside.empty()) return;
  std::optional<ChatTemplate> chat;
  if (ChatTemplate::exists(beside)) chat = ChatTemplate::load(beside);
  m.carry(chat ? &*chat : nullptr, written_chat_template(beside));
}

}  // namespace

fs::path tokenizer_of(const PretrainSpec& spec) {
  if (!spec.train.tokenizer.empty()) return spec.train.tokenizer;
  const std::optional<ModelSource> source = source_of(spec);
  return source ? source->tokenizer() : fs::path();
}

RunResult pretrain(const PretrainSpec& spec, Backend& backend) {
  spec.train.check();
  // A run of an earlier version may have begun without a step size; it continues as it began.
  if (!has_step_size(spec.train) && !resumed_checkpoint(spec.run, spec.resume, {}))
    fail_usage(
        "--batch",
        "the size of a step is not set: pass --batch (sequences per step) or "
        "--tokens-per-step, which --batch 0 divides into the largest micro-batches that fit");
  PretrainSpec whole = spec;  // with defaults filled in, for config.toml
  if (whole.train.eval_tokens == 0)
    whole.train.eval_tokens = default_eval_tokens(first_step_tokens(spec.model, spec.train));
  for (const std::string& note : late_changes(spec.train)) whole.notes.push_back(note);
  whole.model = for_length(whole.model, longest_sequence(spec.model, spec.train));
  whole.tell(long_rope_note(whole.model));
  const auto settings = RunSettings::of(free_settings_of_pretraining, whole.train, whole.model);
  expect_settings(whole, settings);
  if (whole.resume) expect_model_of_run(whole.run, whole.train.model);
  if (whole.train.dtype == TrainDType::fp8) expect_fp8(backend);
  TrainedModel model(whole.model, source_of(whole), backend, storage_dtype(whole.train.dtype),
                     whole.train.offload);
  add_tokenizer(model, whole.train.tokenizer);
  spec.phases->mark("model");
  PretrainTask task(whole, model, backend);
  spec.phases->mark("data");
  return run_task(whole, whole.train, settings, model, task);
}

}  // namespace hearth::inline train
