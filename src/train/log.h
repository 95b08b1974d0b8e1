// What a run tells: log.jsonl (what was computed: the same bytes in every run of one seed),
// perf.jsonl (how fast, on this machine), TensorBoard events, and a progress line on stderr.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "formats/tensorboard.h"
#include "sys/clock.h"
#include "sys/files/files.h"
#include "sys/progress.h"
#include "train/marked_log.h"
#include "train/task.h"

namespace hearth::inline train {

struct StepRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0;
  std::vector<LossValue> terms = {};  // the other terms of what is minimised
  double lr = 0;
  std::optional<double> grad_norm = {};  // nothing where the gradient was not looked at
  bool skipped = false;
  bool spike = false;  // skipped for its loss alone
  double seconds = 0, tokens_per_s = 0, flops = 0, mfu = 0;
  int64_t memory = 0, peak_memory = 0;  // bytes of this process, on a card where it has one
  std::optional<DeviceState> device = {};
  nlohmann::ordered_json more = {};       // numbers that go with the loss, by name
  nlohmann::ordered_json more_perf = {};  // and with the speed
  std::string line = {};                  // for the progress line, in the place of the loss
};

class RunLog {
 public:
  // Continues log.jsonl and samples.jsonl where a checkpoint has marked them, and tells `warn`
  // where they are not what it recorded. perf.jsonl has no mark: the times of steps that are
  // computed again are measured again. `quiet` leaves stderr alone.
  RunLog(const std::filesystem::path& run, const LogMark& log, const LogMark& samples,
         int64_t total_steps, bool quiet, const std::function<void(const std::string&)>& warn = {});

  void step(const StepRecord&);
  void evaluation(int64_t step, const EvalReport&, double seconds);
  // How long training waited for a checkpoint. What is written beside training does not count.
  void checkpoint(int64_t step, double seconds);
  void progress(const std::string& line);  // of something that takes long
  void sample(int64_t step, const std::string& text);
  // What the wall time went to, at the end of the run.
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
  EventWriter events_;
  int64_t total_steps_;
  StatusLine status_;
  Clock::time_point flushed_ = Clock::now();  // the events
  double average_ = 0;                        // seconds of a step; 0: none yet
  std::string last_eval_;                     // "val 2.3456 (step 100)"
};

}  // namespace hearth::inline train
