#include "train/examples/example_task.h"

#include "formats/run_folder.h"
#include "optim/fp8_scales.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t default_batch = 8;  // items per step, before accumulation

ModelSource open_source(const ExampleConfig& c, const RunSpec& spec) {
  const auto checkpoint = resumed_checkpoint(spec.run, spec.resume, {});
  return open_base(checkpoint && !c.lora.spec() ? *checkpoint : base_in_run(spec.run, c.model),
                   c.lora);
}

int64_t checked_length(const ExampleConfig& c, const ModelConfig& model) {
  const int64_t length = c.max_length ? c.max_length : std::min<int64_t>(1024, model.context);
  if (length < 2 || length > model.context)
    fail_usage("--max-length", "expected 2 to the model's {} tokens, got {}", model.context,
               length);
  return length;
}

int64_t items_per_step(const ExampleConfig& c) {
  return (c.batch ? c.batch : default_batch) * c.accumulate;
}

RunTemplate open_template(TrainedModel& m, ChatForm form) {
  m.tokenizer = tokenizer_beside(*m.source, m.config);
  return run_template(form, m.source->tokenizer(), *m.tokenizer);
}

}  // namespace

ExampleModel::ExampleModel(const ExampleConfig& c, const RunSpec& spec, Backend& backend,
                           Modules modules)
    : TrainedModel(open_source(c, spec), c.lora, backend, storage_dtype(c.dtype), c.offload,
                   modules),
      chat(open_template(*this, c.chat_template)),
      max_length(checked_length(c, config)) {
  config.longest = max_length;
  spec.tell(long_rope_note(config));
  if (tokenizer->eos() < 0)
    spec.tell("the tokenizer names no end of a text: none is appended to examples");
}

void ExampleModel::carry_template(bool rendered) {
  if (rendered) return carry(&chat.chat, chat.source);
  if (!ChatTemplate::exists(source->tokenizer())) return carry(nullptr, {});
  const RunTemplate own = run_template(ChatForm::own, source->tokenizer(), *tokenizer);
  carry(&own.chat, own.source);
}

LogprobProgramsSpec programs_spec(const ExampleModel& m, const ExampleConfig& c,
                                  const LossConfig& losses) {
  return {.model = m.config,
          .name = "examples",
          .dtype = storage_dtype(c.dtype),
          .fp8 = c.fp8.fine_tuning(c.dtype),
          .recompute = c.recompute,
          .modules = losses.mtp_loss > 0,
          .losses = losses,
          .logits_bytes = logits_chunk_bytes(m.memory.backend),
          .keep_bytes = kept_logits_bytes(m.memory.backend)};
}

ExampleEncoder encoder_of(const ExampleModel& m, const ExampleConfig& c) {
  return ExampleEncoder(*m.tokenizer, m.chat.chat, m.max_length, c.now(),
                        c.special_tokens ? TextTokens::special : TextTokens::none);
}

void check_config(const ExampleConfig& c, const RunSpec& spec, const RunSettings& settings,
                  const Backend& backend) {
  if (c.dtype == TrainDType::fp8) expect_fp8(backend);
  if (c.model.empty()) fail_usage("--model", "expected a model to start from, got none");
  if (c.data.empty()) fail_usage("--data", "expected files to train on, got none");
  expect_at_least(0, "--batch", c.batch), expect_at_least(1, "--accumulate", c.accumulate);
  expect_at_least(0, "--steps", c.steps);
  if (c.steps == 0) expect_at_least(1, "--epochs", c.epochs);
  if (!(c.holdout >= 0 && c.holdout < 1))
    fail_usage("--holdout", "expected a share from 0 to below 1, got {}", c.holdout);
  if (c.holdout > 0 && !c.val.empty())
    fail_usage("--holdout", "expected a held-out share or --val, got both");
  expect_at_least(0, "--target-loss", c.target_loss);
  c.check_run(c.steps ? c.steps : max_step);
  expect_settings(spec, settings);
}

ExampleTask::ExampleTask(const ExampleConfig& c, const RunSpec& spec, ExampleModel& model,
                         const Shape& shape)
    : spec_(spec),
      model_(model),
      programs_(programs_spec(model, c, shape.losses), model.memory),
      config_(c),
      shape_(shape),
      order_{shape.items, uint64_t(items_per_step(c)), c.seed} {
  const MemoryBudget budget = MemoryBudget::for_run(model.memory.backend, &model.params);
  micro_ = c.batch ? c.batch : fitting_micro_batch(budget);
  planned_micro_ = micro_, planned_ = need(micro_);
  expect_fit(
      planned_, budget,
      fmt::format("{}--recompute block, a shorter --max-length, --dtype bf16, --lora{} needs "
                  "less memory",
                  micro_ > 1 ? "--batch 0 (the largest that fits), " : "",
                  budget.host_offload() ? " or --offload" : ""));
}

// For a micro-batch in which every position is learned.
MemoryNeed ExampleTask::need(int64_t micro) const {
  const int64_t rows = micro * shape_.rows_per_item;
  MemoryNeed n = LogprobPrograms::need(programs_spec(model_, config_, shape_.losses),
                                       {.B = rows,
                                        .T = model_.max_length,
                                        .rows = rows * model_.max_length,
                                        .documents = shape_.documents},
                                       shape_.kind, update_spec());
  n.offload = config_.offload;
  if (shape_.reference && !model_.config.lora) n.reference = n.weights;
  n.weights += idle_module_bytes(model_.params);
  return n;
}

// The most items that fit, so that a step is cut into few micro-batches.
int64_t ExampleTask::fitting_micro_batch(const MemoryBudget& budget) const {
  int64_t micro = items_per_step(config_);
  while (micro > 1 && !budget.fits(need(micro).total())) micro = (micro + 1) / 2;
  return micro;
}

}  // namespace hearth::inline train
