// RunSummary: what a run is and how far it is, from config.toml and the ends of its logs.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "board/line_numbers.h"
#include "board/line_tail.h"
#include "board/run_list.h"
#include "formats/checkpoint_dir.h"
#include "formats/fields.h"
#include "formats/run_folder.h"
#include "formats/toml.h"
#include "model/decoder.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline board {
namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr size_t config_limit = 1 << 20;  // bytes
constexpr uint64_t log_tail_bytes = 128 << 10;
constexpr uint64_t perf_tail_bytes = 64 << 10;

// The text of a small file; empty if there is none or it is too large.
std::string small_file(const fs::path& path) {
  std::string text;
  const Fd fd = open_plainly(path);
  if (!fd) return text;
  // From this descriptor: the path might be a link by now.
  text.resize(config_limit + 1);
  size_t n = 0;
  for (ssize_t k = 1; k > 0 && n < text.size(); n += size_t(std::max<ssize_t>(k, 0)))
    k = pread(fd.get(), text.data() + n, text.size() - n, off_t(n));
  text.resize(n > config_limit ? 0 : n);
  return text;
}

ordered_json typed(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  const char *begin = text.data(), *end = begin + text.size();
  int64_t whole = 0;
  if (const auto [at, e] = std::from_chars(begin, end, whole); e == std::errc{} && at == end)
    return whole;
  double x = 0;
  if (const auto [at, e] = std::from_chars(begin, end, x);
      e == std::errc{} && at == end && std::isfinite(x))
    return x;
  return text;
}

std::string task_of(const ordered_json& s) {
  const auto has = [&](const char* key) { return s.contains(key); };
  if (has("reward") && has("group")) return "grpo";
  if (has("label_smoothing") && has("reference")) return "dpo";
  if (has("max_length") && has("epochs")) return "sft";
  if (has("seq") && has("tokens_per_step")) return "pretrain";
  return "unknown";
}

std::optional<double> number_in(const ordered_json& s, const char* key) {
  const auto at = s.find(key);
  return at != s.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

// The model that a pretraining run's settings describe; nothing if they are incomplete.
std::optional<ModelConfig> model_in(const ordered_json& s) {
  ModelConfig m;
  nlohmann::json own = nlohmann::json::object();
  for (const std::string& name : field_names(m))
    if (s.contains(name)) own[name] = s.at(name);
  if (!own.contains("dim") || !own.contains("layers")) return {};
  // A file may claim anything; a model beyond these limits cannot be one that runs here.
  for (const auto& value : own)
    if (value.is_number_integer() && (value < 0 || value > 10'000'000)) return {};
  if (own["layers"] > 4096) return {};
  try {
    fields_from_json(m, own, "config.toml");
    return m.resolve();
  } catch (const std::exception&) { return {}; }
}

void describe_model(RunSummary& r, const ordered_json& s) {
  if (const auto at = s.find("model"); at != s.end() && at->is_string() && !at->empty())
    r.model = at->get<std::string>();
  if (r.task != "pretrain") return;
  const auto m = model_in(s);
  if (!m) return;
  if (r.model.empty()) r.model = fmt::format("{} layers of width {}", m->layers, m->dim);
  try {
    r.params = count_params(*m);
  } catch (const Error&) {}  // resolve() accepts models that the decoder refuses
}

// The last value of each key in the lines at the end of a log.
std::map<std::string, double> last_numbers(const fs::path& path, uint64_t bytes, bool& damaged) {
  std::map<std::string, double> last;
  std::error_code none;
  const uintmax_t size = fs::file_size(path, none);
  if (none || size == 0) return last;
  LineNumbers numbers;
  LineTail tail(path, size > bytes ? size - bytes : 0);
  int64_t good = 0, bad = 0;
  tail.read(
      [&](std::string_view line, uint64_t) {
        numbers.read(line) ? ++good : ++bad;
        for (const auto& [key, value] : numbers.items()) last[std::string(key)] = value;
      },
      bytes);
  damaged = good == 0 && (bad > 0 || size > max_line_bytes);
  return last;
}

std::optional<double> found_in(const std::map<std::string, double>& last, const char* key) {
  const auto at = last.find(key);
  return at != last.end() && std::isfinite(at->second) ? std::optional(at->second) : std::nullopt;
}

// The planned steps of a run whose length its settings give in epochs.
std::optional<int64_t> planned_steps(const fs::path& run) {
  std::error_code none;
  const std::string name = fs::read_symlink(run / "latest", none).filename().string();
  if (!parse_step_name(name)) return {};
  try {
    const auto j = parse_json(small_file(run / "checkpoints" / name / "state" / "trainer.json"),
                              "trainer.json", {.max_depth = 16});
    const auto at = nlohmann::json::json_pointer("/run/total");
    if (j.contains(at) && j.at(at).is_number_integer()) return j.at(at).get<int64_t>();
  } catch (const Error&) {}
  return {};
}

bool is_finished(const RunSummary& r, const ordered_json& s,
                 const std::map<std::string, double>& log) {
  if (r.steps && r.step >= *r.steps) return true;
  const double loss = number_in(s, "target_loss").value_or(0);
  if (loss > 0 && r.val_loss && *r.val_loss <= loss) return true;
  const double exact = number_in(s, "target_exact").value_or(0);
  const auto had = found_in(log, "eval_exact");
  return exact > 0 && had && *had >= exact;
}

RunSummary read_summary(const FoundRun& run) {
  RunSummary r{.id = run.id, .name = fs::path(run.id).filename().string()};
  const RunConfigText config = read_run_config(run.path);
  const ordered_json& s = config.settings;
  r.task = task_of(s);
  describe_model(r, s);
  bool damaged = false, ignored = false;
  const auto log = last_numbers(run.path / "log.jsonl", log_tail_bytes, damaged);
  const auto perf = last_numbers(run.path / "perf.jsonl", perf_tail_bytes, ignored);
  if (const auto step = found_in(log, "step"); step && std::abs(*step) < 1e15)
    r.step = int64_t(*step);
  r.loss = found_in(log, "loss"), r.val_loss = found_in(log, "val_loss");
  r.reward = found_in(log, "reward");
  r.tokens_per_s = found_in(perf, "tokens_per_s"), r.mfu = found_in(perf, "mfu");
  const auto steps = number_in(s, "steps");
  if (steps && *steps > 0 && *steps < 1e15)
    r.steps = int64_t(*steps);
  else
    r.steps = planned_steps(run.path);
  if (!config.trouble.empty())
    r.state = "damaged", r.trouble = config.trouble;
  else if (damaged)
    r.state = "damaged", r.trouble = "log.jsonl has no readable line at its end";
  else
    r.state = is_finished(r, s, log) ? "finished" : "stopped";
  return r;
}

}  // namespace

RunConfigText read_run_config(const fs::path& run) {
  RunConfigText c;
  c.text = small_file(run / "config.toml");
  if (c.text.empty()) {
    c.trouble = "config.toml is missing, empty or too large";
    return c;
  }
  try {
    for (const TomlItem& item : parse_toml(c.text, "config.toml")) {
      const std::string key = item.section.empty() ? item.key : item.section + "." + item.key;
      ordered_json value = ordered_json::array();
      for (const std::string& v : item.values) value.push_back(typed(v));
      c.settings[key] = item.values.size() == 1 ? value[0] : value;
    }
  } catch (const Error& e) { c.trouble = one_line(e.what()); }
  return c;
}

ordered_json RunSummary::json() const {
  const auto known = [](const auto& x) { return x ? ordered_json(*x) : ordered_json(); };
  const auto text = [](const std::string& s) {
    return s.empty() ? ordered_json() : ordered_json(s);
  };
  const auto time = [](int64_t s) { return s ? ordered_json(rfc3339(s)) : ordered_json(); };
  return {{"id", id},
          {"name", name},
          {"task", task},
          {"state", state},
          {"step", step},
          {"steps", known(steps)},
          {"updated", time(updated)},
          {"started", time(started)},
          {"loss", known(loss)},
          {"val_loss", known(val_loss)},
          {"reward", known(reward)},
          {"tokens_per_s", known(tokens_per_s)},
          {"mfu", known(mfu)},
          {"params", known(params)},
          {"model", text(model)},
          {"trouble", text(trouble)}};
}

RunSummary RunSummaries::of(const FoundRun& run) {
  Stamp stamp;
  int64_t updated = 0, started = 0;
  for (const char* name : {"config.toml", "log.jsonl", "perf.jsonl", "latest"}) {
    struct stat s {};
    if (lstat((run.path / name).c_str(), &s) != 0) s = {};
    for (const int64_t part : {int64_t(s.st_size), int64_t(s.st_mtim.tv_sec),
                               int64_t(s.st_mtim.tv_nsec), int64_t(s.st_ino)})
      stamp.push_back(part);
    updated = std::max(updated, int64_t(s.st_mtim.tv_sec));
    if (std::string_view(name) == "config.toml") started = int64_t(s.st_mtim.tv_sec);
  }
  std::optional<RunSummary> known;
  {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(run.path);
    if (at != known_.end() && at->second.stamp == stamp) known = at->second.summary;
  }
  if (!known) {
    known = read_summary(run);
    const std::lock_guard lock(mutex_);
    if (known_.size() > 2 * RunLimits().runs) known_.clear();  // of runs that were deleted
    known_[run.path] = {stamp, *known};
  }
  known->id = run.id, known->updated = updated, known->started = started;
  if (is_running(run.path)) known->state = "running";
  return *known;
}

}  // namespace hearth::inline board
