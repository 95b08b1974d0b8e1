// hearth bench nocap: the time to a validation loss. Each seed is a pretraining run of a recipe in
// a process of its own, so that the time from process start includes opening the device, tuning,
// recording and loading. Validations and checkpoints are not counted.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "cli/bench.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/recipes.h"
#include "cli/signals.h"
#include "formats/json.h"
#include "formats/toml.h"
#include "sys/build_info.h"
#include "sys/clock.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/process/line_process.h"
#include "sys/process/supervisor.h"
#include "sys/terminal.h"
#include "train/config.h"

namespace hearth::inline cli {
namespace fs = std::filesystem;
namespace {

struct BenchNocapFlags {
  Common common;
  std::string recipe = "baseline", dtype;
  std::vector<std::string> data, val;
  std::optional<double> target;  // absent: that of the recipe
  double budget = 0;
  int64_t seeds = 1, seed = 1, steps = 0;
  std::string run;
};

// One validation.
struct CurvePoint {
  int64_t step = 0, tokens = 0;
  double step_seconds = 0;  // training up to here
  double loss = 0;
};

struct SeedResult {
  uint64_t seed = 0;
  bool reached = false;     // the target; true if there is none
  double from_start = 0;    // seconds since the process started, without validations and saving
  double step_seconds = 0;  // the part of it spent in training steps
  nlohmann::ordered_json run = {};  // what pretrain reported; null: it ran out of its budget
  std::vector<CurvePoint> curve = {};
};

bool is_file(const BenchNocapFlags& f) { return f.recipe.ends_with(".toml"); }

std::string name_of(const BenchNocapFlags& f) {
  return is_file(f) || f.recipe.starts_with("nocap-") ? f.recipe : "nocap-" + f.recipe;
}

// A number that the recipe sets; 0: it does not.
template <class T>
T set_by_recipe(const BenchNocapFlags& f, const std::string& key) {
  const std::string name = name_of(f);
  T value = 0;
  for (const TomlItem& item :
       is_file(f) ? read_toml(name) : parse_toml(recipe_named(name).toml, "recipe " + name))
    if (item.key == key) field_from_text(value, item.values, name + ": " + key);
  return value;
}

// What to do about a setting that only the recipe can change.
std::string recipe_remedy(const BenchNocapFlags& f) {
  return is_file(f) ? fmt::format("change it in {}", f.recipe)
                    : fmt::format(
                          "write the recipe to a file (hearth info --recipe {}), change it "
                          "there and pass the file as --recipe my.toml",
                          name_of(f));
}

void check_steps(const BenchNocapFlags& f) {
  const int64_t decay = set_by_recipe<int64_t>(f, "decay_steps");
  if (f.steps > 0 && f.steps < decay)
    fail_usage("--steps",
               "expected at least the {} steps of the recipe's decay_steps, got {}; or {}", decay,
               f.steps, recipe_remedy(f));
}

std::vector<std::string> pretrain_arguments(const BenchNocapFlags& f, int64_t seed,
                                            const fs::path& run) {
  std::vector<std::string> args{"pretrain",   is_file(f) ? "--config" : "--recipe",
                                name_of(f),   "--run",
                                run.string(), "--json",
                                "--device",   f.common.device,
                                "--seed",     std::to_string(seed)};
  const auto add = [&](const char* flag, const std::string& value) {
    args.push_back(flag), args.push_back(value);
  };
  for (const std::string& d : f.data) add("--data", d);
  for (const std::string& v : f.val) add("--val", v);
  add("--target-loss", fmt::format("{}", *f.target));
  if (!f.dtype.empty()) add("--dtype", f.dtype);
  if (f.steps > 0) add("--steps", std::to_string(f.steps));
  if (f.common.threads > 0) add("--threads", std::to_string(f.common.threads));
  if (f.common.memory_limit > 0) add("--memory-limit", fmt::format("{}", f.common.memory_limit));
  return args;
}

// Joins log.jsonl, which has the losses, and perf.jsonl, which has the times.
std::vector<CurvePoint> read_curve(const fs::path& run) {
  std::map<int64_t, double> ms;
  const auto each_line = [&](const char* file, auto&& use) {
    if (!fs::exists(run / file)) return;
    std::istringstream lines(read_file(run / file));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
      if (j.is_object() && j.contains("step")) use(j);  // a killed run may leave half a line
    }
  };
  each_line("perf.jsonl", [&](const nlohmann::json& j) {
    if (j.contains("ms")) ms[j["step"].get<int64_t>()] = j["ms"].get<double>();
  });
  std::vector<CurvePoint> curve = {};
  int64_t tokens = 0;
  each_line("log.jsonl", [&](const nlohmann::json& j) {
    const int64_t step = j["step"].get<int64_t>();
    if (j.contains("tokens")) tokens = j["tokens"].get<int64_t>();
    if (!j.contains("val_loss") || !j["val_loss"].is_number()) return;
    double total = 0;
    for (const auto& [at, took] : ms)
      if (at <= step) total += took;
    curve.push_back({step, tokens, 1e-3 * total, j["val_loss"].get<double>()});
  });
  return curve;
}

double phase(const nlohmann::ordered_json& run, const char* name) {
  return run["seconds"].value(name, 0.0);
}

// `words`: the end of what the run of the seed wrote to stderr.
[[noreturn]] void explain_failure(const BenchNocapFlags& f, int64_t seed,
                                  const std::string& words) {
  const std::string begins = "hearth: [--";
  const size_t end = words.find_last_not_of('\n'), before = words.rfind('\n', end);
  const size_t start = before == words.npos ? 0 : before + 1;
  std::string line = one_line(words.substr(start, end == words.npos ? end : end + 1 - start));
  const bool usage = line.starts_with(begins);
  if (line.starts_with("hearth: ")) line.erase(0, 8);
  const std::string flag = usage ? line.substr(1, line.find(']') - 1) : "";
  static const std::set<std::string> own{"--data", "--val",     "--dtype",       "--steps",
                                         "--seed", "--threads", "--memory-limit"};
  if (usage && !own.contains(flag))
    line += fmt::format("; {} is a setting of the recipe: {}", flag, recipe_remedy(f));
  throw Error("bench nocap", fmt::format("the pretraining run of seed {} failed: {}", seed, line),
              usage);
}

SeedResult run_seed(const BenchNocapFlags& f, int64_t seed, const fs::path& folder,
                    const std::atomic<int>* stop) {
  SeedResult r{.seed = uint64_t(seed)};
  const auto began = Clock::now();
  LineProcess child(supervisor_executable(), pretrain_arguments(f, seed, folder),
                    LineProcess::Stderr::kept);
  std::string line;
  LineProcess::Heard heard = LineProcess::Heard::late;
  const double most = f.budget > 0 ? f.budget : 30 * 24 * 3600.0;
  while (heard == LineProcess::Heard::late && seconds_since(began) < most) {
    if (*stop) stop_benchmark_if_signalled(f.run);  // throws, which removes runs that are not kept
    heard = child.hear(line, deadline_in(std::min(0.2, most - seconds_since(began))));
  }
  r.from_start = seconds_since(began);
  r.curve = read_curve(folder);
  if (heard == LineProcess::Heard::late) return r;
  if (heard != LineProcess::Heard::line) explain_failure(f, seed, child.last_words());
  r.run = nlohmann::ordered_json::parse(line);
  r.from_start -= phase(r.run, "evaluate") + phase(r.run, "save") + phase(r.run, "sample");
  r.step_seconds = phase(r.run, "first_steps") + phase(r.run, "steps");
  r.reached = *f.target <= 0 || r.run["reason"] == "target" ||
              (!r.curve.empty() && r.curve.back().loss <= *f.target);
  return r;
}

nlohmann::ordered_json json_of(const BenchNocapFlags& f, const SeedResult& r) {
  nlohmann::ordered_json j{
      {"bench", "nocap"},
      {"device", r.run.is_null() ? f.common.device : r.run["device"].get<std::string>()},
      {"commit", build_info().commit},
      {"recipe", f.recipe},
      {"seed", r.seed},
      {"target", *f.target > 0 ? nlohmann::ordered_json(*f.target) : nullptr},
      {"reached", r.reached},
      {"value", r.from_start},
      {"unit", "seconds from process start, validations excluded"},
      {"step_seconds", r.step_seconds}};
  if (!f.dtype.empty()) j["dtype"] = f.dtype;
  if (!r.run.is_null())
    for (const char* key : {"steps", "tokens", "val_loss", "tokens_per_s", "seconds", "skipped"})
      j[key] = r.run[key];
  for (const CurvePoint& p : r.curve)
    j["curve"].push_back({{"step", p.step},
                          {"tokens", p.tokens},
                          {"step_seconds", p.step_seconds},
                          {"val_loss", p.loss}});
  return j;
}

void show(const BenchNocapFlags& f, const SeedResult& r) {
  if (f.common.json) return print_json(json_of(f, r));
  fmt::print("seed {}\n  {:>6} {:>12} {:>9} {:>8}\n", r.seed, "step", "tokens", "seconds",
             "val loss");
  for (const CurvePoint& p : r.curve)
    fmt::print("  {:>6} {:>12} {:>9.2f} {:>8.4f}\n", p.step, p.tokens, p.step_seconds, p.loss);
  if (r.run.is_null())
    fmt::print("  stopped after its budget of {:g} s\n", f.budget);
  else
    fmt::print("  {}{:.2f} s from process start, {:.2f} s of them in steps\n",
               *f.target <= 0 ? ""
               : r.reached    ? "target reached: "
                              : "target not reached: ",
               r.from_start, r.step_seconds);
}

// A variable that sets a flag of pretrain would change what the recipe measures, without a trace.
void expect_no_overrides(const CLI::App& command) {
  const CLI::App* pretrain = command.get_parent()->get_parent()->get_subcommand("pretrain");
  for (const CLI::Option* o : pretrain->get_options())
    for (const std::string& name : o->get_lnames()) {
      const std::string variable = environment_name("--" + name);
      if (command.get_option_no_throw("--" + name) || !std::getenv(variable.c_str())) continue;
      fail_usage(variable,
                 "this variable would change the recipe: unset it, or copy the recipe, change the "
                 "copy and pass it as --recipe my.toml");
    }
}

void bench_nocap(BenchNocapFlags f) {
  if (!f.target) f.target = set_by_recipe<double>(f, "target_loss");
  check_steps(f);
  if (!f.dtype.empty()) parse_enum<TrainDType>(f.dtype, "--dtype");
  const std::atomic<int>* stop = count_stop_signals();
  const RunPlace place(f.run, "hearth-nocap");
  double sum = 0, worst = 0;
  int64_t reached = 0;
  for (int64_t seed = f.seed; seed < f.seed + f.seeds; ++seed) {
    say("hearth: pretraining with seed {}\n", seed);
    const SeedResult r = run_seed(f, seed, place.of(fmt::format("seed-{}", seed)), stop);
    show(f, r);
    sum += r.from_start, worst = std::max(worst, r.from_start), reached += r.reached;
  }
  if (f.seeds > 1 && !f.common.json)
    fmt::print(
        "{}mean {:.2f} s, worst {:.2f} s\n",
        *f.target > 0 ? fmt::format("{} of {} seeds reached the target; ", reached, f.seeds) : "",
        sum / double(f.seeds), worst);
}

}  // namespace

void add_bench_nocap(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("nocap", "time pretraining from process start to a loss");
  auto f = std::make_shared<BenchNocapFlags>();
  add_common(*c, f->common);
  c->add_option("--recipe", f->recipe,
                "baseline (500 steps), full (the whole benchmark), fast, or a .toml file of "
                "pretrain's settings; hearth info --recipe nocap-fast prints one")
      ->capture_default_str();
  c->add_option("--data", f->data, "token files to train on")->required();
  c->add_option("--val", f->val, "token files to validate on")->required();
  c->add_option("--target", f->target,
                "validation loss to stop at; 0: the recipe's whole length; default: the recipe's "
                "target_loss, if it has one")
      ->check(between(0, 100));
  c->add_option("--dtype", f->dtype,
                "compute type, instead of the recipe's; a GPU without FP8 needs bf16 for fast");
  c->add_option("--budget", f->budget, "seconds after which a run is stopped; 0: none")
      ->check(between(0, 1e9));
  c->add_option("--seeds", f->seeds, "number of runs, each with its own seed")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--seed", f->seed, "seed of the first run")->capture_default_str();
  c->add_option("--steps", f->steps, "steps, instead of the recipe's")->check(at_least(0));
  c->add_option("--run", f->run, "folder to keep the runs in; without it they are deleted");
  c->callback([f, c] {
    expect_no_overrides(*c);
    bench_nocap(*f);
  });
}

}  // namespace hearth::inline cli
