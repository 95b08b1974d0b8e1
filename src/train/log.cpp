#include "train/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace hearth::inline train {
namespace {

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string clock_text(double seconds) {
  const int64_t s = int64_t(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

constexpr std::string_view val_prefix = "val_";  // prefix of validation terms in log.jsonl

std::string text_of(const std::vector<LossValue>& terms) {
  std::string text;
  for (const LossValue& l : terms) text += fmt::format("  {} {:.4g}", l.name, l.value);
  return text;
}

}  // namespace

EvalReport loss_report(double loss, const std::vector<LossValue>& terms,
                       const nlohmann::ordered_json& more) {
  EvalReport r{.value = loss, .found = {{"val_loss", loss}}};
  r.line = fmt::format("validation loss {:.4f}{}", loss, text_of(terms));
  for (const LossValue& l : terms) r.found[fmt::format("{}{}", val_prefix, l.name)] = l.value;
  if (!more.is_object()) return r;
  r.found.update(more);
  for (const auto& [name, value] : more.items())
    r.line += fmt::format("  {} {:.4f}", name, value.get<double>());
  return r;
}

std::string progress_line(const StepRecord& r, int64_t total_steps, double seconds_left,
                          const std::string& last_eval) {
  const std::string found = r.line.empty() ? fmt::format("loss {:.4f}", r.loss) : r.line;
  const size_t first = std::min(found.find("  "), found.size());
  std::string line = fmt::format("step {}/{}  {}  eta {}  {:.0f} tok/s{}", r.step, total_steps,
                                 found.substr(0, first), clock_text(seconds_left), r.tokens_per_s,
                                 found.substr(first)) +
                     text_of(r.terms);
  if (!last_eval.empty()) line += "  " + last_eval;
  line += fmt::format("  lr {:.2e}", r.lr);
  if (r.grad_norm) line += fmt::format("  |g| {:.2f}", *r.grad_norm);
  if (r.flops > 0) line += fmt::format("  {:.1f} GFLOP/s", r.flops * 1e-9);
  if (r.mfu > 0) line += fmt::format(" ({:.0f}% of measured peak)", 100 * r.mfu);
  return line;
}

RunLog::RunLog(const std::filesystem::path& run, const LogMark& log, const LogMark& samples,
               int64_t total_steps, bool quiet, const std::function<void(const std::string&)>& warn,
               int64_t done)
    : log_(run / "log.jsonl", log),
      samples_(run / "samples.jsonl", samples),
      perf_(run / "perf.jsonl"),
      rollouts_(run / "rollouts.jsonl", done),
      events_(run / "tensorboard"),
      total_steps_(total_steps),
      status_(!quiet) {
  for (const MarkedLog* file : {&log_, &samples_})
    if (warn && !file->trouble().empty()) warn(file->trouble());
}

void RunLog::step(const StepRecord& r) {
  nlohmann::ordered_json j{{"step", r.step}, {"tokens", r.tokens}, {"loss", r.loss}};
  for (const LossValue& l : r.terms) j[l.name] = l.value;
  j["lr"] = r.lr;
  if (r.grad_norm) j["grad_norm"] = *r.grad_norm;
  if (r.skipped) j["skipped"] = true;
  if (r.spike) j["spike"] = true;
  if (r.more.is_object()) j.update(r.more);
  for (const std::string& line : r.rollouts) rollouts_.append(line);
  log_.append(j.dump());
  nlohmann::ordered_json p{
      {"step", r.step}, {"ms", 1e3 * r.seconds}, {"tokens_per_s", r.tokens_per_s}};
  if (r.flops > 0) p["tflops"] = r.flops * 1e-12, p["mfu"] = r.mfu;
  p["memory_bytes"] = r.memory, p["peak_memory_bytes"] = r.peak_memory;
  nlohmann::ordered_json device = nlohmann::ordered_json::object();
  if (r.device) {
    device = {{"celsius", r.device->celsius},
              {"watts", r.device->watts},
              {"utilisation", r.device->utilisation}};
    p.update(device), p["device_memory_bytes"] = r.device->memory_bytes;
  }
  if (r.more_perf.is_object()) p.update(r.more_perf);
  perf_.append(p.dump());
  const double now = wall_time();
  const auto events_of = [&](const char* group, const nlohmann::ordered_json& values) {
    constexpr std::string_view only_in_files[] = {
        "step", "tokens", "ms", "memory_bytes", "peak_memory_bytes", "device_memory_bytes"};
    for (const auto& [name, value] : values.items())
      if (value.is_number() && std::ranges::find(only_in_files, name) == std::end(only_in_files) &&
          !device.contains(name))
        events_.scalar(fmt::format("{}/{}", group, name), r.step, value.get<float>(), now);
  };
  events_of("train", j);
  events_of("perf", p);
  const auto gib = [](int64_t bytes) { return float(double(bytes) / (1 << 30)); };
  events_.scalar("perf/memory_gib", r.step, gib(r.memory), now);
  for (const auto& [name, value] : device.items())
    events_.scalar("device/" + name, r.step, value.get<float>(), now);
  if (r.device) events_.scalar("device/memory_gib", r.step, gib(r.device->memory_bytes), now);
  if (seconds_since(flushed_) > 1) flush_events();  // at most once a second, for live viewers
  progress_of(r);
}

void RunLog::progress_of(const StepRecord& r) {
  const bool first = average_ == 0, last = r.step == total_steps_;
  average_ = first ? r.seconds : 0.9 * average_ + 0.1 * r.seconds;
  if (!first && !last && !status_.due()) return;
  status_.show_now(
      progress_line(r, total_steps_, average_ * double(total_steps_ - r.step), last_eval_));
}

void RunLog::progress(const std::string& line) {
  if (status_.due()) status_.show_now(line);
}

void RunLog::checkpoint(int64_t step, double seconds) {
  perf_.append(nlohmann::ordered_json{{"step", step}, {"checkpoint_ms", 1e3 * seconds}}.dump());
}

void RunLog::evaluation(int64_t step, const EvalReport& r, double seconds) {
  nlohmann::ordered_json j{{"step", step}};
  j.update(r.found);
  log_.append(j.dump());
  perf_.append(nlohmann::ordered_json{{"step", step}, {"eval_ms", 1e3 * seconds}}.dump());
  for (const auto& [name, value] : r.found.items())
    if (value.is_number()) {
      const std::string tag = name.starts_with(val_prefix) ? name.substr(val_prefix.size()) : name;
      events_.scalar(fmt::format("{}/{}", r.higher_is_better ? "eval" : "val", tag), step,
                     value.get<float>(), wall_time());
    }
  if (r.value) last_eval_ = fmt::format("{} {:.4f} (step {})", r.name, *r.value, step);
  note(fmt::format("step {}  {}", step, r.line));
}

void RunLog::sample(int64_t step, const std::string& text) {
  using nlohmann::json;
  const nlohmann::ordered_json j{{"step", step}, {"text", text}};
  samples_.append(j.dump(-1, ' ', false, json::error_handler_t::replace));
  events_.text("sample", step, text, wall_time());
  note(fmt::format("step {}  sample: {}", step, text));
}

void RunLog::phases(int64_t step, const nlohmann::ordered_json& seconds) {
  perf_.append(nlohmann::ordered_json{{"step", step}, {"seconds", seconds}}.dump());
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

}  // namespace hearth::inline train
