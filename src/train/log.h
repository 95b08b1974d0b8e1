// The logs of a run: log.jsonl (what was computed: the same bytes in every run of one seed),
// perf.jsonl (how fast it was on this machine), TensorBoard events, and a progress line on stderr.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "formats/marked_log.h"
#include "formats/step_lines.h"
#include "formats/tensorboard.h"
#include "sys/clock.h"
#include "sys/files/files.h"
#include "sys/progress.h"
#include "train/task.h"

namespace hearth::inline train {

struct StepRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0;
  std::vector<LossValue> terms = {};  // the loss terms after the first
  double lr = 0;
  std::optional<double> grad_norm = {};  // nothing: the gradient norm was not computed
  bool skipped = false;
  bool spike = false;  // skipped only because its loss was a spike
  double seconds = 0, tokens_per_s = 0, flops = 0, mfu = 0;
  int64_t memory = 0, peak_memory = 0;  // bytes used by this process, on the GPU if it uses one
  std::optional<DeviceState> device = {};
  nlohmann::ordered_json more = {};       // further values for log.jsonl, by name
  nlohmann::ordered_json more_perf = {};  // and for perf.jsonl
  std::string line = {};  // for the progress line, in place of the loss; two spaces between items
  std::vector<std::string> rollouts = {};  // lines for rollouts.jsonl
};

// A narrow terminal cuts the line at its end, so the loss (or the first item of the task's line),
// the time left and the speed come first.
std::string progress_line(const StepRecord&, int64_t total_steps, double seconds_left,
                          const std::string& last_eval);

class RunLog {
 public:
  // Continues log.jsonl and samples.jsonl at the marks of a checkpoint, and calls `warn` if their
  // contents differ from what the checkpoint recorded. perf.jsonl has no mark: steps that are
  // computed again are timed again. rollouts.jsonl continues after `done`, the steps done so far.
  // `quiet` suppresses output to stderr.
  RunLog(const std::filesystem::path& run, const LogMark& log, const LogMark& samples,
         int64_t total_steps, bool quiet, const std::function<void(const std::string&)>& warn = {},
         int64_t done = 0);

  void step(const StepRecord&);
  void evaluation(int64_t step, const EvalReport&, double seconds);
  // How long training waited for a checkpoint, without the time spent writing in the background.
  void checkpoint(int64_t step, double seconds);
  void progress(const std::string& line);  // for long operations, such as an evaluation
  void sample(int64_t step, const std::string& text);
  // Wall time by phase, written at the end of the run.
  void phases(int64_t step, const nlohmann::ordered_json& seconds);
  void note(const std::string& line);  // to stderr, above the progress line

  void sync();
  LogMark log_mark() const { return log_.mark(); }
  LogMark samples_mark() const { return samples_.mark(); }

 private:
  void progress_of(const StepRecord&);
  void flush_events();

  MarkedLog log_, samples_;
  AppendLog perf_;
  StepLines rollouts_;
  EventWriter events_;
  int64_t total_steps_;
  StatusLine status_;
  Clock::time_point flushed_ = Clock::now();  // when the TensorBoard events were last flushed
  double average_ = 0;                        // moving average of seconds per step; 0: none yet
  std::string last_eval_;                     // "val 2.3456 (step 100)"
};

}  // namespace hearth::inline train
