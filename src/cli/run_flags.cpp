#include "cli/run_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "board/plot.h"
#include "board/run_store.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/signals.h"
#include "diag/peak_flops.h"
#include "formats/run_folder.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/progress.h"
#include "sys/terminal.h"

namespace hearth::inline cli {

void RunFlags::add(CLI::App& app, const std::string& length) {
  app.add_option("--run", run, "run folder")->required();
  app.add_flag("--resume", resume,
               "continue the run in the folder bit for bit; " + length + " may be larger");
  app.add_option("--stop-after-step", stop_after_step,
                 "save and exit after this step; 0: before the first")
      ->check(at_least(0));
  app.add_option("--board", board,
                 "port on 127.0.0.1 for a dashboard of the run while it trains; 0: any free port")
      ->check(between(0, 65535));
}

void RunFlags::check_folder() const { expect_new_or_resumed(run, resume); }

bool RunFlags::goes_on() const {
  RunSpec spec;
  place(spec);
  return spec.goes_on();
}

std::unique_ptr<BoardThread> RunFlags::open_board() const {
  if (board < 0) return nullptr;
  HttpConfig config{.port = board, .max_connections = 64, .drain_seconds = 1};
  if (const char* key = std::getenv("HEARTH_API_KEY")) config.api_key = key;
  auto thread = std::make_unique<BoardThread>(config, run);
  say("hearth: the board of {} is on {}\n", run, thread->url());
  return thread;
}

namespace {

// Whether the terminal shows characters beyond ASCII.
bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value && *value) {
      const std::string lower = CLI::detail::to_lower(value);
      return lower.find("utf-8") != lower.npos || lower.find("utf8") != lower.npos;
    }
  return false;
}

}  // namespace

void show_curve(const std::filesystem::path& run) {
  if (!isatty(STDERR_FILENO) || !shows_utf8()) return;
  constexpr int64_t widest = 100, rows = 6;
  RunStore store(run);
  for (const char* key : {"reward", "loss"}) {
    const Series s = store.series(key, XAxis::step, {.points = 400});
    if (s.x.empty()) continue;
    put_stderr(terminal_curve(s, key, std::min(widest, int64_t(terminal_width())), rows));
    return;
  }
}

void RunFlags::place(RunSpec& spec) const {
  spec.run = run, spec.resume = resume;
  if (stop_after_step >= 0) spec.stop_after_step = stop_after_step;
}

void RunFlags::apply(RunSpec& spec, Backend& backend, TrainDType dtype) const {
  place(spec);
  watch(spec, backend, dtype);
}

void RunFlags::explain_ending(const RunResult& r, const std::string& target) const {
  const bool idle = resume && !r.tokens_per_s;  // this process continued a run and made no step
  if (r.reason == Ending::target && !idle) say("hearth: stopped at step {}: {}\n", r.steps, target);
  if (r.reason == Ending::stopped && idle && stop_after_step >= 0 && r.steps >= stop_after_step)
    say("hearth: {} is at step {}, and --stop-after-step is {}: no step was made\n", run, r.steps,
        stop_after_step);
}

void watch(RunSpec& spec, Backend& backend, TrainDType dtype) {
  spec.stop = count_stop_signals();
  spec.warn = [](const std::string& line) { say_problem(line); };
  spec.peak_flops = measure_peak(backend, storage_dtype(dtype));
  spec.phases->mark("measure_peak");
}

void note_shared_files(RunSpec& spec, const std::vector<std::filesystem::path>& train,
                       const std::vector<std::filesystem::path>& val) {
  std::set<std::filesystem::path> trained;
  for (const auto& file : train) trained.insert(std::filesystem::weakly_canonical(file));
  for (const auto& file : val)
    if (trained.contains(std::filesystem::weakly_canonical(file))) {
      spec.notes.push_back(fmt::format(
          "{} is given to both --data and --val: the run trains on what it validates on, so the "
          "validation loss does not show overfitting",
          file.string()));
      return;
    }
}

void expect_finite(const RunResult& r) {
  if (r.reason != Ending::steps || !r.diverged) return;
  fail("train",
       "the run diverged: at its end the loss, the gradient or the validation loss is not finite; "
       "start a new run with a lower --lr or a longer --warmup, and keep --clip above 0; the last "
       "checkpoint is {}",
       r.checkpoint.empty() ? "none" : r.checkpoint.string());
}

nlohmann::ordered_json result_json(const RunResult& r, const Backend& backend) {
  return {{"steps", r.steps},
          {"tokens", r.tokens},
          {"train_loss", json_or_null(r.train_loss)},
          {"val_loss", json_or_null(r.val_loss)},
          {"val_step", json_or_null(r.val_step)},
          {"tokens_per_s", json_or_null(r.tokens_per_s)},
          {"train_seconds", r.train_seconds},
          {"seconds", r.seconds},
          {"skipped", r.skipped},
          {"reloads", r.reloads},
          {"reason", enum_name(r.reason)},
          {"checkpoint", r.checkpoint.string()},
          {"device", backend.describe()}};
}

std::string reached_loss(const RunResult& r, double target_loss) {
  return fmt::format("validation loss {:.4f} reached --target-loss {}", r.val_loss.value_or(0),
                     target_loss);
}

std::string result_line(const RunResult& r) {
  std::string text = fmt::format("{}, {}", counted(r.steps, "step"), counted(r.tokens, "token"));
  if (r.train_loss) text += fmt::format(", loss {:.4f}", *r.train_loss);
  if (r.val_loss) text += fmt::format(", validation {:.4f}", *r.val_loss);
  if (r.val_loss && r.val_step.value_or(r.steps) != r.steps)
    text += fmt::format(" (step {})", *r.val_step);
  if (r.tokens_per_s) text += fmt::format(", {:.0f} tokens/s", *r.tokens_per_s);
  return text + result_end(r);
}

std::string result_end(const RunResult& r) {
  return fmt::format(", {:.1f} s; {}\n", r.train_seconds,
                     r.checkpoint.empty() ? "no checkpoint" : r.checkpoint.string());
}

}  // namespace hearth::inline cli
