#include "train/pretrain/batch_shape.h"

#include <algorithm>
#include <array>
#include <set>

#include "sys/error.h"

namespace hearth::inline train {
namespace {

constexpr const char* where = "batch";

// The saved model must have been trained for what it says at the end.
template <class T>
void expect_before_end(const char* flag, const StepsOf<T>& steps, int64_t total) {
  if (const int64_t last = steps.changes().back().first; last >= total)
    fail_usage(flag, "expected changes before the run ends at step {}, got one at step {}", total,
               last);
}

// A schedule of attention windows: the flag, its text and the model's own window.
struct WindowSchedule {
  const char* flag;
  const std::string& text;
  int64_t own;
  int64_t total;  // steps of the run

  Steps steps() const { return Steps::parse(text, flag, total); }
  int64_t at(int64_t step, int64_t T) const {
    if (text.empty()) return -1;
    const int64_t window = steps().at(step);
    if (window < 0 || window > T)
      fail_usage(flag, "expected windows of at most the {} tokens of a sequence, got {} at step {}",
                 T, window, step);
    return window;
  }
  // Checkpoints store the model's own window, so that is what the run has to end with.
  void check() const {
    if (const int64_t last = steps().changes().back().second; last != own)
      fail_usage(flag, "expected a schedule that ends at the model's window {}, got {}", own, last);
    expect_before_end(flag, steps(), total);
  }
};
std::array<WindowSchedule, 2> window_schedules(const ModelConfig& model, const TrainConfig& c) {
  return {{{"--window-schedule", c.window_schedule, model.window, c.steps},
           {"--long-window-schedule", c.long_window_schedule, model.long_window, c.steps}}};
}

// A schedule of the weight of a loss: the flags, its text and the weight that the run ends with.
struct WeightSchedule {
  const char *flag, *own_flag;
  const std::string& text;
  float own;
  bool may_be_zero;
  int64_t total;  // steps of the run

  WeightSteps steps() const { return WeightSteps::parse(text, flag, total); }
  float at(int64_t step) const { return text.empty() ? -1 : steps().at(step); }
  void check() const {
    const WeightSteps all = steps();
    if (const float last = all.changes().back().second; last != own)
      fail_usage(flag, "expected a schedule that ends at {0} {1}, got {2}: give {0} {2} too",
                 own_flag, own, last);
    expect_before_end(flag, all, total);
    for (const auto& [step, weight] : all.changes())
      if (weight == 0 && !may_be_zero)
        fail_usage(flag, "expected weights above 0{}, got 0 at step {}",
                   own_flag == std::string_view("--mtp-loss") ? "" : " with --dtype fp8", step);
  }
};
// Modules without a loss would still decay, and fp8 keeps the scales of all products of a step.
std::array<WeightSchedule, 2> weight_schedules(const TrainConfig& c) {
  return {{{"--mtp-loss-schedule", "--mtp-loss", c.mtp_loss_schedule, c.losses.mtp_loss, false,
            c.steps},
           {"--further-loss-schedule", "--further-loss", c.further_loss_schedule,
            c.losses.further_loss, c.dtype != TrainDType::fp8, c.steps}}};
}

Steps ties_of(const TrainConfig& c) {
  static constexpr std::array<std::string_view, 2> names{"untied", "tied"};
  return Steps::parse(c.head_schedule.empty() ? names[0] : c.head_schedule, "--head-schedule",
                      c.steps, names);
}
void check_ties(const ModelConfig& model, const TrainConfig& c) {
  if (c.head_schedule.empty()) return;
  if (model.tied)
    fail_usage(
        "--head-schedule",
        "needs a model with a head of its own (--tied=false); this one is tied at all times");
  if (model.zero_head && c.model.empty() && ties_of(c).at(0))
    fail_usage("--head-schedule",
               "a run that begins tied begins with the token embedding as its head, so zero_head "
               "has no effect: set --zero-head=false");
}

Steps lengths_of(const TrainConfig& c) { return Steps::parse(c.seq, "--seq", c.steps); }
Steps tokens_of(const TrainConfig& c) {
  return Steps::parse(c.tokens_per_step, "--tokens-per-step", c.steps);
}

BatchShape shape_at(const ModelConfig& model, const TrainConfig& c, int64_t step,
                    const MemoryBudget& budget, int64_t logits_bytes, int64_t chosen) {
  const Steps lengths = lengths_of(c), totals = tokens_of(c);
  const auto length_at = [&](int64_t at) {
    return lengths.at(at) ? lengths.at(at) : model.context;
  };
  BatchShape s;
  s.first_step = step;
  s.T = length_at(step);
  if (s.T > model.context)
    fail_usage("--seq", "expected up to the model's context {}, got {}{}", model.context, s.T,
               c.model.empty() ? fmt::format(": --context {} makes it longer", s.T) : "");
  const auto windows = window_schedules(model, c);
  s.window = windows[0].at(step, s.T), s.long_window = windows[1].at(step, s.T);
  const auto weights = weight_schedules(c);
  s.mtp_loss = weights[0].at(step), s.further_loss = weights[1].at(step);
  // --batch counts sequences of the first length; other lengths keep a micro-batch's tokens.
  if (c.batch) s.B = std::max<int64_t>(1, c.batch * length_at(0) / s.T);
  s.tied = ties_of(c).at(step) == 1;
  int64_t tokens = totals.at(step);
  // Of one micro-batch. If --batch is 0 too, it has one sequence: only runs that earlier versions
  // began get here so.
  if (tokens == 0) tokens = s.B * s.T;
  if (tokens % s.T)
    fail_usage(where, "expected --tokens-per-step to be a multiple of --seq {}, got {}", s.T,
               tokens);
  // All micro-batches of a step, because each is weighted by the targets of the whole step. Tokens,
  // targets, positions and document numbers.
  expect_host_room(totals.at(step) ? "--tokens-per-step" : "--batch",
                   double(tokens) * (c.document_mask ? 4 : 3) * sizeof(int32_t), "tokens",
                   fmt::format("{} tokens", tokens));
  const int64_t sequences = tokens / s.T;
  if (!c.batch) s.B = chosen;
  if (s.B == 0)
    s.B = largest_batch(program_spec(model, c, s, logits_bytes), sequences, budget.left());
  if (s.B == 0) s.B = 1;  // does not fit either: the check below says so, by part
  if (sequences % s.B)
    fail_usage(
        where, "expected --batch to divide the {} sequences of a step, got {}{}", sequences, s.B,
        c.batch && s.B != c.batch ? fmt::format(" (--batch {} at --seq {})", c.batch, s.T) : "");
  expect_fit(program_spec(model, c, s, logits_bytes), budget);
  s.micro_batches = sequences / s.B;
  return s;
}

}  // namespace

bool has_step_size(const TrainConfig& c) {
  const Steps totals = tokens_of(c);
  return c.batch || std::ranges::all_of(totals.changes(),
                                        [](const auto& change) { return change.second > 0; });
}

std::vector<std::string> late_changes(const TrainConfig& c) {
  std::vector<std::string> notes;
  for (const auto& [flag, steps] : {std::pair("--seq", lengths_of(c)),
                                    {"--tokens-per-step", tokens_of(c)},
                                    {"--head-schedule", ties_of(c)}})
    if (const int64_t last = steps.changes().back().first; last > 0 && last >= c.steps)
      notes.push_back(fmt::format(
          "{} has a change at step {}, but the run ends at step {}: only a longer run makes it",
          flag, last, c.steps));
  return notes;
}

int64_t first_step_tokens(const ModelConfig& model, const TrainConfig& c) {
  if (const int64_t tokens = tokens_of(c).at(0)) return tokens;
  const int64_t length = lengths_of(c).at(0);
  return std::max<int64_t>(c.batch, 1) * (length ? length : model.context);
}

int64_t longest_sequence(const ModelConfig& model, const TrainConfig& c) {
  const Steps lengths = lengths_of(c);
  int64_t longest = 0;
  for (const auto& [step, length] : lengths.changes())
    longest = std::max(longest, length ? length : model.context);
  return longest;
}

ProgramSpec program_spec(const ModelConfig& model, const TrainConfig& c, const BatchShape& s,
                         int64_t logits_bytes) {
  UpdateSpec update = c.update_spec();
  update.tied_head = s.tied;
  ModelConfig now = model;
  if (s.window >= 0) now.window = s.window;
  if (s.long_window >= 0) now.long_window = s.long_window;
  LossConfig losses = c.losses;
  if (s.mtp_loss >= 0) losses.mtp_loss = s.mtp_loss;
  if (s.further_loss >= 0) losses.further_loss = s.further_loss;
  return {.model = now,
          .eval_model = model,
          .dtype = storage_dtype(c.dtype),
          .fp8 = c.fp8.recording(c.dtype),
          .B = s.B,
          .T = s.T,
          .recompute = c.recompute,
          .offload = c.offload,
          .documents = c.document_mask,
          .eval_documents = c.document_mask || c.eval_documents,
          .accumulates = s.micro_batches > 1,
          .update = update,
          .losses = losses,
          .logits_bytes = logits_bytes};
}

std::vector<BatchShape> batch_shapes(const ModelConfig& model, const TrainConfig& c,
                                     const MemoryBudget& budget, int64_t logits_bytes,
                                     std::span<const int64_t> chosen) {
  if (c.offload && !budget.host_offload())
    fail_usage(where, "--offload needs a GPU; this run is on the CPU");
  if (c.batch < 0) fail_usage(where, "expected --batch of 0 or more, got {}", c.batch);
  check_ties(model, c);
  std::set<int64_t> steps;
  const auto add = [&](const auto& schedule) {
    for (const auto& [first, value] : schedule.changes()) steps.insert(first);
  };
  add(lengths_of(c)), add(tokens_of(c)), add(ties_of(c));
  for (const WindowSchedule& w : window_schedules(model, c))
    if (!w.text.empty()) w.check(), add(w.steps());
  if (!c.mtp_loss_schedule.empty() && !model.mtp)
    fail_usage("--mtp-loss-schedule", "has no effect: the model has no mtp modules; leave it out");
  for (const WeightSchedule& w : weight_schedules(c))
    if (!w.text.empty()) w.check(), add(w.steps());
  std::vector<BatchShape> shapes;
  for (int64_t step : steps)
    shapes.push_back(shape_at(model, c, step, budget, logits_bytes,
                              shapes.size() < chosen.size() ? chosen[shapes.size()] : 0));
  return shapes;
}

}  // namespace hearth::inline train
