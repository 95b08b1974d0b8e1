#include "board/run_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "board/pages.h"
#include "formats/json.h"
#include "http/url.h"
#include "sys/error.h"

namespace hearth::inline board {
namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr std::string_view runs_path = "/api/runs";
constexpr auto parts =
    std::to_array<std::string_view>({"series", "events", "samples", "rollouts", "compare"});
constexpr auto list_age = std::chrono::milliseconds(500);
constexpr size_t most_keys = 64;                   // of a request for series
constexpr uint64_t samples_bytes = 8 << 20;        // read from the end of samples.jsonl
constexpr uint64_t rollouts_bytes = 256ull << 20;  // read of rollouts.jsonl
constexpr size_t most_rollouts = 512;              // of a step

std::string dumped(const ordered_json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> all;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(',', from), text.size());
    if (end > from) all.emplace_back(text.substr(from, end - from));
    from = end + 1;
  }
  return all;
}

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("[{}]", fmt::join(lines, ","));
}

// The step of a line that begins as the run writes it; -1: it has another form.
int64_t step_of(std::string_view line) {
  constexpr std::string_view begin = R"({"step":)";
  int64_t step = -1;
  if (!line.starts_with(begin)) return -1;
  const auto [at, error] =
      std::from_chars(line.data() + begin.size(), line.data() + line.size(), step);
  return error == std::errc{} && at < line.data() + line.size() && *at == ',' ? step : -1;
}

std::string samples(const FoundRun& run, const HttpRequest& r) {
  const size_t count = size_t(query_number(r.query, "last", 200, 1, 10000));
  return fmt::format(R"({{"samples":{}}})",
                     joined(last_lines(run.path / "samples.jsonl", count, samples_bytes)));
}

// The rollouts of the step asked for, or of the last one.
std::string rollouts(const FoundRun& run, const HttpRequest& r) {
  const int64_t asked = int64_t(query_number(r.query, "step", -1, 0, 1e15));
  std::set<int64_t> steps;
  std::vector<std::string> lines;
  int64_t step = asked;
  LineTail(run.path / "rollouts.jsonl")
      .read(
          [&](std::string_view line, uint64_t) {
            const int64_t at = step_of(line);
            if (at < 0) return;
            steps.insert(at);
            if (asked < 0 && at != step) step = at, lines.clear();
            if (at == step && lines.size() < most_rollouts && nlohmann::json::accept(line))
              lines.emplace_back(line);
          },
          rollouts_bytes);
  return fmt::format(R"({{"steps":[{}],"step":{},"rollouts":{}}})", fmt::join(steps, ","),
                     step < 0 ? "null" : std::to_string(step), joined(lines));
}

// Memory by part and wall time by phase, from the last lines of perf.jsonl that have them.
void add_performance(ordered_json& j, const fs::path& run) {
  j["memory"] = j["seconds"] = nullptr;
  for (const std::string& line : last_lines(run / "perf.jsonl", 200, 64 << 10)) {
    ordered_json p;
    try {
      p = parse_ordered_json(line, "perf.jsonl", {.max_depth = 8});
    } catch (const Error&) { continue; }
    if (!p.is_object()) continue;
    if (const auto at = p.find("seconds"); at != p.end() && at->is_object()) j["seconds"] = *at;
    ordered_json memory = ordered_json::object();
    for (const auto& [key, value] : p.items())
      if (key.ends_with("memory_bytes") && value.is_number()) {
        const std::string part =
            key.substr(0, key.size() - std::string_view("memory_bytes").size());
        memory[part.empty() ? "used" : part.substr(0, part.size() - 1)] = value;
      }
    if (!memory.empty()) j["memory"] = std::move(memory);
  }
}

}  // namespace

RunBoard::Target RunBoard::target_of(const HttpRequest& r) {
  const auto none = [&] {
    return HttpError(
        404, fmt::format("[path] expected a route of the board, got {}", in_quotes(r.path)));
  };
  std::string_view path = r.path;
  if (path == runs_path) return {};
  if (!path.starts_with("/api/runs/")) throw none();
  path.remove_prefix(runs_path.size() + 1);
  const size_t slash = std::min(path.find('/'), path.size());
  const auto id = percent_decoded(path.substr(0, slash));
  const std::string part(path.substr(std::min(slash + 1, path.size())));
  const bool known = slash == path.size() || std::ranges::find(parts, part) != parts.end();
  if (!id || id->empty() || !known) throw none();
  return {*id, part};
}

FoundRun RunBoard::find(const std::string& id) const {
  const auto path = run_path(root_, id);
  if (!path)
    throw HttpError(404, fmt::format("[run] expected a run of the board, got {}", in_quotes(id)),
                    "run_not_found");
  return {id, *path};
}

std::string RunBoard::root_name() const {
  std::error_code none;
  const fs::path whole = fs::weakly_canonical(fs::absolute(root_, none), none);
  return whole.has_filename() ? whole.filename().string() : whole.string();
}

std::string RunBoard::summary(const FoundRun& run) { return dumped(summaries_.of(run).json()); }

HttpResponse RunBoard::answer(const HttpRequest& r) {
  const Target t = target_of(r);
  if (t.id.empty()) return api_response(list());
  const FoundRun run = find(t.id);
  if (t.part == "series") return api_response(series(run, r));
  if (t.part == "samples") return api_response(samples(run, r));
  if (t.part == "rollouts") return api_response(rollouts(run, r));
  if (t.part == "compare") return api_response(compare(run, r));
  return api_response(details(run));
}

std::string RunBoard::list() {
  const std::lock_guard lock(list_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!list_.empty() && now - listed_ < list_age) return list_;
  const FoundRuns found = find_runs(root_);
  ordered_json runs = ordered_json::array();
  for (const FoundRun& run : found.runs) runs.push_back(summaries_.of(run).json());
  ordered_json j{{"runs", std::move(runs)}};
  if (found.truncated) j["truncated"] = true;
  if (found.unnamed > 0) j["unnamed"] = found.unnamed;
  list_ = dumped(j);
  listed_ = std::chrono::steady_clock::now();
  return list_;
}

std::string RunBoard::details(const FoundRun& run) {
  const RunConfigText config = read_run_config(run.path);
  const LogFacts facts = stores_.open(run.path)->facts();
  RunSummary summary = summaries_.of(run);
  if (summary.trouble.empty() && facts.bad_lines > 0)
    summary.trouble = fmt::format("log.jsonl has {} lines that cannot be read", facts.bad_lines);
  ordered_json j{{"run", summary.json()},
                 {"config", config.settings},
                 {"config_text", config.text},
                 {"keys", {{"log", facts.log_keys}, {"perf", facts.perf_keys}}},
                 {"steps_logged", facts.lines},
                 {"best", nullptr},
                 {"checkpoints", checkpoints_of(run.path)}};
  if (const auto& b = facts.best)
    j["best"] = {{"step", b->step}, {"value", b->value}, {"key", b->key}};
  add_performance(j, run.path);
  return dumped(j);
}

std::string RunBoard::series(const FoundRun& run, const HttpRequest& r) {
  SeriesQuery q;
  q.keys = split(query_value(r.query, "keys").value_or("loss"));
  if (q.keys.size() > most_keys)
    refuse("keys", "expected at most {} keys, got {}", most_keys, q.keys.size());
  const std::string x = query_value(r.query, "x").value_or("step");
  if (x == "tokens")
    q.x = XAxis::tokens;
  else if (x == "time")
    q.x = XAxis::time;
  else if (x != "step")
    refuse("x", "expected step, tokens or time, got {}", in_quotes(x));
  constexpr double far = 1e300;
  q.part.from = query_number(r.query, "from", -far, -far, far);
  q.part.to = query_number(r.query, "to", far, -far, far);
  q.part.points = size_t(query_number(r.query, "points", 2000, 1, 20000));
  constexpr size_t most_points = 1 << 17;  // of all keys together: about 10 MB of JSON
  if (q.keys.size() * q.part.points > most_points)
    refuse("points", "expected at most {} points for {} keys, got {}", most_points / q.keys.size(),
           q.keys.size(), q.part.points);
  return stores_.open(run.path)->series_json(q);
}

std::string RunBoard::compare(const FoundRun& run, const HttpRequest& r) {
  const FoundRun other = find(query_value(r.query, "with").value_or(""));
  const ordered_json a = read_run_config(run.path).settings;
  const ordered_json b = read_run_config(other.path).settings;
  ordered_json different = ordered_json::array();
  int64_t same = 0;
  const auto value = [](const ordered_json& j, const std::string& key) {
    return j.contains(key) ? j.at(key) : ordered_json();
  };
  const auto add = [&](const std::string& key) {
    if (value(a, key) == value(b, key))
      ++same;
    else
      different.push_back({{"key", key}, {"a", value(a, key)}, {"b", value(b, key)}});
  };
  for (const auto& [key, ignored] : a.items()) add(key);
  for (const auto& [key, ignored] : b.items())
    if (!a.contains(key)) add(key);
  return dumped({{"different", std::move(different)}, {"same", same}});
}

}  // namespace hearth::inline board
