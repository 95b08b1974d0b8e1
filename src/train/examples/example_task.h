// SFT and DPO, and ExampleTask, what they share. Both train for epochs over a fixed set of
// examples, validate on held-out examples, and save the model with the chat template that it was
// trained with.
#pragma once

#include "data/examples/batches.h"
#include "data/examples/examples.h"
#include "data/examples/templates.h"
#include "sys/error.h"
#include "train/examples/example_config.h"
#include "train/logprob_programs.h"
#include "train/run.h"

namespace hearth::inline train {

// Supervised fine-tuning: the model learns the marked tokens of its examples. The loss is the sum
// of their negative log-likelihoods divided by the number of learned tokens of the whole step.
RunResult sft(const SftConfig&, const RunSpec&, Backend&);
// Direct preference optimisation: the policy learns to prefer chosen over rejected completions,
// relative to a fixed reference model.
RunResult dpo(const DpoConfig&, const RunSpec&, Backend&);

// The model in training with the chat template that renders its examples.
struct ExampleModel : TrainedModel {
  // Opens the newest valid checkpoint of a resumed run, otherwise the model that the config names.
  // With adapters it always opens the latter, their base.
  ExampleModel(const ExampleConfig&, const RunSpec&, Backend&, Modules);
  // Sets the template that checkpoints carry: the run's template if any training row was `rendered`
  // with it, otherwise the model's own, if it has one.
  void carry_template(bool rendered);

  RunTemplate chat;
  int64_t max_length;  // tokens per example
};

LogprobProgramsSpec programs_spec(const ExampleModel&, const ExampleConfig&,
                                  const LossConfig& = {});
ExampleEncoder encoder_of(const ExampleModel&, const ExampleConfig&);

// Settings that do not affect what a run has computed so far. The digest of the examples covers the
// last three.
inline constexpr std::string_view free_settings_of_examples[] = {
    "model", "data", "val", "reference", "clock", "special_tokens", "chat_template"};
// Checks what can be checked of a config before its model and its data are loaded.
void check_config(const ExampleConfig&, const RunSpec&, const RunSettings&, const Backend&);

class ExampleTask : public Task {
 public:
  // Batches are counted in `items`: rows (SFT) or pairs (DPO).
  struct Shape {
    size_t items = 0;
    int64_t rows_per_item = 1;
    bool documents = false;                                     // rows are packed
    LogprobPrograms::Kind kind = LogprobPrograms::Kind::first;  // of the programs that train
    LossConfig losses = {};  // of nll_first; of first: that of modules
    bool reference = false;  // a reference model runs in every step
  };
  ExampleTask(const ExampleConfig&, const RunSpec&, ExampleModel&, const Shape&);

  int64_t steps() const override {
    return config_.steps ? config_.steps : config_.epochs * order_.steps_per_epoch();
  }
  UpdateProgram& update() override {
    if (!update_) update_.emplace("examples", model_.memory, update_spec(), config_.fp8_update());
    return *update_;
  }
  std::optional<MemoryNeed> memory_need() const override {
    return micro_ == planned_micro_ ? planned_ : need(micro_);
  }
  void load(RunState& state, const StateFields& saved, bool) override {
    micro_ = saved.integer("micro_batch", 1);
    programs_.set_logits_bytes(state.logits_bytes);
  }
  nlohmann::json save() const override { return {{"micro_batch", micro_}}; }

  bool evaluates_first() const override { return true; }
  bool at_target(const RunState& state) const override {
    return config_.target_loss > 0 && state.last_eval && *state.last_eval <= config_.target_loss;
  }

 protected:
  // Indices of the items that step `data_step` trains on.
  std::vector<size_t> chosen(int64_t data_step) const { return order_.of(data_step); }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  size_t micro_batch() const { return size_t(micro_); }
  // Calls use(begin, end) for each micro-batch of n items.
  template <class Use>
  void each_micro_batch(size_t n, Use use) const {
    for (size_t at = 0; at < n; at += size_t(micro_)) use(at, std::min(n, at + size_t(micro_)));
  }
  // The same until a signal stops the run. Returns whether every micro-batch was used.
  template <class Use>
  bool each_micro_batch_until_stopped(size_t n, Use use) const {
    bool stopped = false;
    each_micro_batch(n, [&](size_t begin, size_t end) {
      stopped = stopped || spec_.stopped();
      if (!stopped) use(begin, end);
    });
    return !stopped;
  }

  // Adds an example to the tokens and FLOPs of a step.
  void count(StepReport& r, const Example& e) const {
    r.tokens += places_of(e);
    r.flops += double(places_of(e)) * train_flops_per_token(model_.computed(), places_of(e));
  }

  const RunSpec& spec_;
  ExampleModel& model_;
  LogprobPrograms programs_;

 private:
  // Selection biases of routers move in SFT only; DPO compares with a reference.
  UpdateSpec update_spec() const {
    UpdateSpec s = config_.update_spec();
    if (shape_.kind == LogprobPrograms::Kind::nll_first)
      s.balance_rate = shape_.losses.balance_rate;
    s.modules_apart = model_.modules == Modules::apart;
    return s;
  }
  MemoryNeed need(int64_t micro) const;
  int64_t fitting_micro_batch(const MemoryBudget&) const;

  const ExampleConfig& config_;
  Shape shape_;
  std::optional<UpdateProgram> update_;  // made on first use: the plan counts its buffers as free
  StepOrder order_;
  int64_t micro_ = 1;          // items per micro-batch
  int64_t planned_micro_ = 0;  // the micro-batch that `planned_` is for
  MemoryNeed planned_;
};

// Throws if no row is left to learn from. Reports how many rows were left out or truncated, and
// why.
template <class T>
void expect_examples(const RunSpec& spec, const Examples<T>& e, const char* what,
                     int64_t max_length) {
  const std::vector<std::string> reasons = e.left_out(max_length);
  if (e.kept.empty())
    fail(e.files, "expected rows with something to learn, got {}",
         reasons.empty() ? "none" : fmt::format("{}", fmt::join(reasons, "; ")));
  for (const auto& lines : {reasons, e.notes(max_length)})
    for (const std::string& line : lines) spec.tell(fmt::format("{}: {}", what, line));
}

// The examples of a run: those of --data, split into trained and held-out ones, and those of --val,
// which are held out too.
template <class T>
struct ExampleData {
  std::vector<T> all;
  Split split;  // indices into `all`
};
// Reads them with read(files, encoder), and gives the model the chat template that its checkpoints
// carry.
template <class T>
ExampleData<T> read_data(const ExampleConfig& c, const RunSpec& spec, ExampleModel& model,
                         Examples<T> (*read)(const std::vector<std::string>&,
                                             const ExampleEncoder&)) {
  const ExampleEncoder encoder = encoder_of(model, c);
  Examples<T> data = read(c.data, encoder);
  expect_examples(spec, data, "data", model.max_length);
  model.carry_template(data.rendered > 0);
  ExampleData<T> d{std::move(data.kept), {}};
  d.split = split_off(d.all.size(), c.holdout, c.seed);
  if (!c.val.empty()) {
    Examples<T> val = read(c.val, encoder);
    expect_examples(spec, val, "val", model.max_length);
    for (T& e : val.kept) {
      d.split.held.push_back(d.all.size());
      d.all.push_back(std::move(e));
    }
  }
  spec.phases->mark("data");
  return d;
}

}  // namespace hearth::inline train
