// ExampleTask: what SFT and DPO share. Both go through a fixed set of examples in epochs, validate
// on a held-out share, and save the model with the chat template it was trained through.
#pragma once

#include "data/examples/examples.h"
#include "data/examples/templates.h"
#include "sys/error.h"
#include "train/examples/batches.h"
#include "train/examples/example_config.h"
#include "train/logprob_programs.h"
#include "train/run.h"

namespace hearth::inline train {

// The model in training with the template that its examples go through.
struct AlignModel : TrainedModel {
  // The newest valid checkpoint of a run that is resumed, else what the config names; with adapters
  // always that, their base.
  AlignModel(const AlignConfig&, const RunSpec&, Backend&);
  // Lets checkpoints carry what the model is trained with: the run's template where any row that is
  // trained on was `rendered` by it, else the model's own or none.
  void carry_template(bool rendered);

  RunTemplate chat;
  int64_t max_length;  // of an example
  bool resumed;        // there is a checkpoint to go on from
};

LogprobProgramsSpec programs_spec(const AlignModel&, const AlignConfig&, const LossConfig& = {});
ExampleEncoder encoder_of(const AlignModel&, const AlignConfig&);

// Checks what can be checked of a config without its model and its data.
void check_config(const AlignConfig&, const RunSpec&, const nlohmann::ordered_json& settings);

class ExampleTask : public Task {
 public:
  // `items` are what a batch is counted in: rows, or pairs.
  struct Shape {
    size_t items = 0;
    int64_t rows_per_item = 1;
    bool documents = false;  // rows are packed
    bool nll = false;        // trained by nll programs, with dropout
    LossConfig losses = {};  // of those
    bool reference = false;  // a reference model is asked at every step
  };
  ExampleTask(const AlignConfig&, AlignModel&, const Shape&);

  int64_t steps() const override {
    return config_.steps ? config_.steps : config_.epochs * order_.steps_per_epoch();
  }
  UpdateProgram& update() override {
    if (!update_) update_.emplace("align", model_.memory, config_.update_spec());
    return *update_;
  }
  std::span<const std::string_view> free_settings() const override;
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
  // Places in the items of the data that step `data_step` trains on.
  std::vector<size_t> chosen(int64_t data_step) const { return order_.of(data_step); }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  size_t micro_batch() const { return size_t(micro_); }
  // Calls use(begin, end) for each micro-batch of n items.
  template <class Use>
  void each_micro_batch(size_t n, Use use) const {
    for (size_t at = 0; at < n; at += size_t(micro_)) use(at, std::min(n, at + size_t(micro_)));
  }

  AlignModel& model_;
  LogprobPrograms programs_;

 private:
  MemoryNeed need(int64_t micro) const;
  int64_t fitting_micro_batch() const;

  const AlignConfig& config_;
  Shape shape_;
  std::optional<UpdateProgram> update_;  // made when first used: a plan counts its buffers as free
  StepOrder order_;
  int64_t micro_ = 1;          // items of a micro-batch
  int64_t planned_micro_ = 0;  // what `planned_` is of
  MemoryNeed planned_;
};

// An error where no row is left to learn from; what was cut or left out is said, and why.
template <class T>
void expect_examples(const RunSpec& spec, const Examples<T>& e, const char* what,
                     int64_t max_length) {
  std::vector<std::string> lines;
  const auto left_out = [&](int64_t rows, const std::string& why) {
    if (rows) lines.push_back(fmt::format("{} of {} rows left out: {}", rows, e.read, why));
  };
  left_out(e.unanswered, "no turn of the assistant in them");
  left_out(e.blank, "no text to learn in them");
  left_out(e.cut_off, fmt::format("their prompts fill all {} tokens of --max-length", max_length));
  left_out(e.equal, "both answers are equal");
  if (e.kept.empty())
    fail(what, "expected rows with something to learn, got {}",
         lines.empty() ? "none" : fmt::format("{}", fmt::join(lines, "; ")));
  if (e.cut)
    lines.push_back(fmt::format("{} of {} rows cut at {} tokens", e.cut, e.read, max_length));
  for (const std::string& line : lines) spec.tell(fmt::format("{}: {}", what, line));
  if (e.spelled)
    spec.tell(
        fmt::format("{}: {} of {} rows spell a special token, the first in {}: they are "
                    "learned as characters; --special-tokens takes them for the tokens",
                    what, e.spelled, e.read, e.spelled_in));
}

}  // namespace hearth::inline train
