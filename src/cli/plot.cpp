// hearth plot: a chart of logged values of one or more runs, as SVG or in the terminal.
#include "board/plot.h"

#include <algorithm>

#include "board/run_list.h"
#include "board/run_store.h"
#include "cli/commands.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/progress.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

namespace fs = std::filesystem;

struct PlotFlags {
  std::vector<std::string> runs;
  std::string out, x = "step";
  std::vector<std::string> keys;
  bool log = false, log_x = false, terminal = false, force = false;
  int64_t width = 960, height = 540;
};

constexpr size_t most_lines = 64;  // of a chart

XAxis axis_named(const std::string& name) {
  if (name == "step") return XAxis::step;
  if (name == "tokens") return XAxis::tokens;
  if (name == "time") return XAxis::time;
  fail_usage("--x", "expected step, tokens or time, got {}", name);
}

// What a run minimises or maximises, with its evaluation.
std::vector<std::string> default_keys(const LogFacts& facts) {
  const auto& logged = facts.log_keys;
  const auto has = [&](const char* key) { return std::ranges::find(logged, key) != logged.end(); };
  if (has("reward")) return {"reward", "eval_reward"};
  return {"loss", "val_loss"};
}

std::string name_of(const std::string& run) {
  const fs::path p = fs::absolute(run).lexically_normal();
  return p.has_filename() ? p.filename().string() : p.parent_path().filename().string();
}

// The lines of one run; a key that only some runs have is left out for the others.
std::vector<PlotLine> lines_of(const PlotFlags& f, const std::string& run, size_t points) {
  if (!fs::is_regular_file(fs::path(run) / "log.jsonl"))
    fail(run, "expected a run folder with a log.jsonl, got none");
  RunStore store(run);
  const LogFacts facts = store.facts();
  std::vector<PlotLine> lines;
  std::vector<std::string> missing;
  for (const std::string& key : f.keys.empty() ? default_keys(facts) : f.keys) {
    const Series s = store.series(key, axis_named(f.x), {.points = points});
    if (!s.x.empty())
      lines.push_back({f.runs.size() == 1 ? key : name_of(run) + ": " + key, s});
    else if (!f.keys.empty())
      missing.push_back(key);
  }
  if (lines.empty())
    fail(run, "expected one of the keys {}, got none; the run has logged {}, {}",
         fmt::join(f.keys.empty() ? default_keys(facts) : f.keys, ", "),
         fmt::join(facts.log_keys, ", "), fmt::join(facts.perf_keys, ", "));
  if (!missing.empty()) say("hearth: {} has not logged {}\n", run, fmt::join(missing, ", "));
  return lines;
}

void run_plot(const PlotFlags& f) {
  axis_named(f.x);
  if (!f.out.empty() && fs::path(f.out).extension() != ".svg")
    fail_usage("--out", "expected a file name that ends in .svg, got {}: charts are SVG only",
               f.out);
  const size_t points = f.terminal ? 400 : size_t(std::max<int64_t>(100, f.width));
  std::vector<PlotLine> lines;
  for (const std::string& run : f.runs)
    for (PlotLine& line : lines_of(f, run, points)) lines.push_back(std::move(line));
  if (lines.size() > most_lines)
    fail_usage("plot", "expected at most {} lines in a chart, got {}", most_lines, lines.size());
  if (f.terminal) {
    for (const PlotLine& line : lines)
      put(terminal_curve(line.series, line.label, int64_t(terminal_width()), 10));
    return;
  }
  if (!f.out.empty()) expect_new(f.out, f.force);
  const std::string svg = svg_chart(lines, {.x_label = f.x == "time" ? "seconds" : f.x,
                                            .y_label = f.keys.size() == 1 ? f.keys[0] : "",
                                            .log_x = f.log_x,
                                            .log_y = f.log,
                                            .width = f.width,
                                            .height = f.height});
  if (f.out.empty()) return put(svg);
  write_file_atomic(f.out, svg);
  put(fmt::format("wrote {} with {}\n", f.out, counted(int64_t(lines.size()), "curve")));
}

}  // namespace

void add_plot(CLI::App& app) {
  CLI::App* c = app.add_subcommand("plot", "draw logged values of runs as an SVG chart");
  auto f = std::make_shared<PlotFlags>();
  c->add_option("run", f->runs, "run folders; several are drawn over each other")
      ->required()
      ->expected(1, 64);
  c->add_option("--out", f->out, "SVG file to write; without it the chart goes to stdout");
  add_force(*c, f->force);
  c->add_option("--keys", f->keys,
                "values of log.jsonl or perf.jsonl, separated by commas; without it the loss, or "
                "the reward")
      ->delimiter(',');
  c->add_option("--x", f->x, "x axis: step, tokens or time")->capture_default_str();
  c->add_flag("--log", f->log, "logarithmic y axis");
  c->add_flag("--log-x", f->log_x, "logarithmic x axis");
  c->add_flag("--terminal", f->terminal, "print curves of characters instead");
  c->add_option("--width", f->width, "width of the picture in pixels")
      ->check(between(200, 10000))
      ->capture_default_str();
  c->add_option("--height", f->height, "height of the picture in pixels")
      ->check(between(100, 10000))
      ->capture_default_str();
  c->callback([f] { run_plot(*f); });
}

}  // namespace hearth::inline cli
