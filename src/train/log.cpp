#include "train/log.h"

#include <fmt/format.h>

#include <chrono>

namespace hearth {
namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string clock_text(double seconds) {
  const int64_t s = int64_t(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& run, const LogMark& log, const LogMark& samples,
               int64_t total_steps, bool quiet, const std::function<void(const std::string&)>& warn)
    : log_(run / "log.jsonl", log),
      samples_(run / "samples.jsonl", samples),
      perf_(run / "perf.jsonl"),
      events_(run / "tensorboard"),
      total_steps_(total_steps),
      status_(!quiet) {
  for (const MarkedLog* file : {&log_, &samples_})
    if (warn && !file->trouble().empty()) warn(file->trouble());
}

void RunLog::step(const StepRecord& r) {
  nlohmann::ordered_json j{{"step", r.step}, {"tokens", r.tokens}, {"loss", r.loss}, {"lr", r.lr}};
  if (r.grad_norm) j["grad_norm"] = *r.grad_norm;
  if (r.skipped) j["skipped"] = true;
  if (r.spike) j["spike"] = true;
  if (!r.source_tokens.empty()) j["source_tokens"] = r.source_tokens;
  if (r.more.is_object()) j.update(r.more);
  log_.append(j.dump());
  nlohmann::ordered_json p{
      {"step", r.step}, {"ms", 1e3 * r.seconds}, {"tokens_per_s", r.tokens_per_s}};
  if (r.flops > 0) p["tflops"] = r.flops * 1e-12, p["mfu"] = r.mfu;
  p["memory_bytes"] = r.memory, p["peak_memory_bytes"] = r.peak_memory;
  if (r.device) {
    p["celsius"] = r.device->celsius, p["watts"] = r.device->watts;
    p["utilisation"] = r.device->utilisation;
    p["device_memory_bytes"] = r.device->memory_bytes;
  }
  if (r.more_perf.is_object()) p.update(r.more_perf);
  perf_.append(p.dump());
  const double now = wall_time();
  events_.scalar("train/loss", r.step, float(r.loss), now);
  events_.scalar("train/lr", r.step, float(r.lr), now);
  if (r.grad_norm) events_.scalar("train/grad_norm", r.step, float(*r.grad_norm), now);
  for (const auto& [name, value] : r.more.items())
    if (value.is_number()) events_.scalar("train/" + name, r.step, value.get<float>(), now);
  events_.scalar("perf/tokens_per_s", r.step, float(r.tokens_per_s), now);
  if (r.flops > 0) events_.scalar("perf/mfu", r.step, float(r.mfu), now);
  if (seconds_since(flushed_) > 1) flush_events();  // for who watches; steps may be many a second
  progress(r);
}

void RunLog::progress(const StepRecord& r) {
  const bool first = average_ == 0, last = r.step == total_steps_;
  average_ = first ? r.seconds : 0.9 * average_ + 0.1 * r.seconds;
  if (!first && !last && !status_.due()) return;
  std::string line = fmt::format("step {}/{}  loss {:.4f}", r.step, total_steps_, r.loss);
  if (last_val_ > 0) line += fmt::format("  val {:.4f} (step {})", last_val_, last_val_step_);
  line += fmt::format("  lr {:.2e}", r.lr);
  if (r.grad_norm) line += fmt::format("  |g| {:.2f}", *r.grad_norm);
  line += fmt::format("  {:.0f} tok/s", r.tokens_per_s);
  if (r.flops > 0) line += fmt::format("  {:.1f} GFLOP/s", r.flops * 1e-9);
  if (r.mfu > 0) line += fmt::format(" ({:.0f}% of measured peak)", 100 * r.mfu);
  line += fmt::format("  eta {}", clock_text(average_ * double(total_steps_ - r.step)));
  status_.show_now(line);
}

void RunLog::validating(int64_t step, int64_t tokens, int64_t most) {
  if (status_.due())
    status_.show_now(
        fmt::format("step {}  validating: {} tokens of at most {}", step, tokens, most));
}

void RunLog::validation(int64_t step, double loss, double seconds,
                        const nlohmann::ordered_json& more) {
  last_val_ = loss, last_val_step_ = step;
  nlohmann::ordered_json j{{"step", step}, {"val_loss", loss}};
  if (more.is_object()) j.update(more);
  log_.append(j.dump());
  perf_.append(nlohmann::ordered_json{{"step", step}, {"val_ms", 1e3 * seconds}}.dump());
  events_.scalar("val/loss", step, float(loss), wall_time());
  std::string line = fmt::format("step {}  validation loss {:.4f}", step, loss);
  for (const auto& [name, value] : more.items()) {
    events_.scalar("val/" + name, step, value.get<float>(), wall_time());
    line += fmt::format("  {} {:.4f}", name, value.get<double>());
  }
  note(line);
}

void RunLog::evaluation(int64_t step, const nlohmann::ordered_json& found, double seconds) {
  nlohmann::ordered_json j{{"step", step}};
  j.update(found);
  log_.append(j.dump());
  perf_.append(nlohmann::ordered_json{{"step", step}, {"eval_ms", 1e3 * seconds}}.dump());
  for (const auto& [name, value] : found.items())
    if (value.is_number()) events_.scalar("eval/" + name, step, value.get<float>(), wall_time());
}

void RunLog::sample(int64_t step, const std::string& text) {
  using nlohmann::json;
  const nlohmann::ordered_json j{{"step", step}, {"text", text}};
  samples_.append(j.dump(-1, ' ', false, json::error_handler_t::replace));
  events_.text("sample", step, text, wall_time());
  note(fmt::format("step {}  sample: {}", step, text));
}

void RunLog::note(const std::string& line) { status_.finish(line); }

void RunLog::sync() {
  log_.sync();
  samples_.sync();
  flush_events();
}

void RunLog::flush_events() {
  events_.flush();
  flushed_ = Clock::now();
}

}  // namespace hearth
