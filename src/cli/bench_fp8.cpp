// hearth bench fp8: training in bf16 and in fp8 side by side. It times steps on random tokens, for
// batches where fp8 pays and for some where it may not. With --data it trains models in both types
// on the same tokens and seeds instead, and compares their validation losses.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "cli/bench.h"
#include "cli/model_flags.h"
#include "cli/signals.h"
#include "diag/lockstep.h"
#include "optim/fp8_scales.h"
#include "sys/build_info.h"
#include "sys/clock.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "train/pretrain/pretrain.h"
#include "train/pretrain/programs.h"

namespace hearth::inline cli {
namespace {

struct Fp8BenchFlags {
  Common common;
  std::vector<std::string> presets{"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "modern-124m"};
  // Those of the RTX 5090 training guide, which reported 0.75, 1.24 and 0.70 times the speed of
  // bf16; and a large batch.
  std::vector<std::string> batches{"4x512", "12x2048", "4x512x8", "64x1024"};
  int steps = 10;
  std::vector<std::string> data, val;
  std::vector<std::string> cases{"gpt2:adamw", "modern-124m:adamw", "modern-124m:normuon"};
  int64_t loss_steps = 300, tokens_per_step = 131072, seeds = 3, seed = 1, eval_tokens = 1 << 20;
  double lr = 6e-4;
  int64_t warmup = -1;
  std::string run;
  FieldFlags<ModelConfig> model;
};

// B sequences of T tokens in each micro-batch of a step.
struct Fp8Batch {
  int64_t B = 1, T = 1, micro = 1;

  static Fp8Batch parse(const std::string& text) {
    std::vector<int64_t> numbers(1);
    bool good = true;
    for (const char *at = text.data(), *end = at + text.size(); good;) {
      const auto [next, error] = std::from_chars(at, end, numbers.back());
      good = error == std::errc() && numbers.back() >= 1 && numbers.back() <= 1 << 24;
      if (next == end) break;
      good = good && *next == 'x' && numbers.size() < 3;
      at = next + 1, numbers.push_back(0);
    }
    if (!good || numbers.size() < 2 || numbers[0] * numbers[1] > 1 << 24)
      fail_usage("--batches", "expected sequences x tokens [x micro-batches], got {}",
                 in_quotes(text));
    return {numbers[0], numbers[1], numbers.size() > 2 ? numbers[2] : 1};
  }
  int64_t tokens() const { return B * T * micro; }
  std::string name() const {
    return micro > 1 ? fmt::format("{} x {}, {} micro-batches", B, T, micro)
                     : fmt::format("{} x {}", B, T);
  }
};

// A line for bench/results, as its README describes.
nlohmann::ordered_json result_line(const Backend& b, const char* subject, const std::string& what,
                                   double value, const char* unit) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", &utc);
  return {{"date", date},       {"device", b.describe()}, {"commit", build_info().commit},
          {"subject", subject}, {"what", what},           {"value", value},
          {"unit", unit}};
}

// --- speed ---

struct Fp8Speed {
  double tokens_per_s = 0;
  double first_s = 0;  // until the end of the first step: recording, allocating, tuning of products
  int64_t bytes = 0;   // as planned
};

struct Fp8Point {
  std::string model;
  Fp8Batch batch;
  bool custom_norms = false;  // other norms than GPT-2's
  Fp8Speed bf16 = {}, fp8 = {};
  double ratio() const { return fp8.tokens_per_s / bf16.tokens_per_s; }
  double memory() const { return double(fp8.bytes) / double(bf16.bytes); }
};

// Nothing: it does not fit in memory.
std::optional<Fp8Speed> speed_of(const ModelConfig& model, const Fp8Batch& b, bool fp8,
                                 Backend& backend, int steps) {
  const ProgramSpec s{.model = model,
                      .dtype = DType::bf16,
                      .fp8 = fp8 ? std::optional(Fp8Recording{}) : std::nullopt,
                      .B = b.B,
                      .T = b.T,
                      .accumulates = b.micro > 1,
                      .logits_bytes = logits_chunk_bytes(backend)};
  Fp8Speed found{.bytes = memory_need(s).total()};
  if (!MemoryBudget::for_run(backend).fits(found.bytes)) return {};
  const auto began = Clock::now();
  ParamStore store(backend, decoder_params(s.model), s.dtype);
  store.initialise(1);
  Memory memory(backend, &store);
  Programs programs(s, memory);
  const Batch batch = random_batch(s, 1);
  Scalars scalars;
  scalars.lr = 1e-4f, scalars.clip = 1;
  scalars.inv_targets = 1 / float(batch.count * b.micro);
  scalars.step = fp8_measured_steps;  // the first steps of a run are slower
  const auto step = [&] {
    for (int64_t i = 0; i < b.micro; ++i) programs.micro(batch, scalars, i == 0);
    programs.update().run(scalars);
    programs.update().state();  // waits for the step
  };
  step();
  found.first_s = seconds_since(began);
  step();  // the second run of a program may capture it
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    step();
    times.push_back(seconds_since(begin));
  }
  std::ranges::nth_element(times, times.begin() + int64_t(times.size() / 2));
  found.tokens_per_s = double(b.tokens()) / times[times.size() / 2];
  return found;
}

constexpr double fp8_gib = 1 << 30;

void show(const Fp8BenchFlags& f, const Backend& backend, const Fp8Point& p) {
  if (!f.common.json)
    return fmt::print("{:<14}{:<28}{:>12.0f}{:>12.0f}{:>7.2f}{:>10.2f}{:>8.2f}{:>9.2f}{:>7.2f}\n",
                      p.model, p.batch.name(), p.bf16.tokens_per_s, p.fp8.tokens_per_s, p.ratio(),
                      double(p.bf16.bytes) / fp8_gib, double(p.fp8.bytes) / fp8_gib, p.bf16.first_s,
                      p.fp8.first_s);
  nlohmann::ordered_json j =
      result_line(backend, "training", fmt::format("{} fp8, {}", p.model, p.batch.name()),
                  p.fp8.tokens_per_s, "tokens/s");
  j["more"] = fmt::format(
      "median of {} steps; {:.2f} GiB planned, bf16 {:.2f}; first step after {:.2f} s, bf16 {:.2f}",
      f.steps, double(p.fp8.bytes) / fp8_gib, double(p.bf16.bytes) / fp8_gib, p.fp8.first_s,
      p.bf16.first_s);
  j["peer"] = "hearth in bf16, same process", j["peer_value"] = p.bf16.tokens_per_s;
  print_json(j);
}

// What the guide says of fp8, and what was measured here.
void show_claims(const std::vector<Fp8Point>& points) {
  const auto range = [&](auto value, auto counts) {
    double low = INFINITY, high = -INFINITY;
    for (const Fp8Point& p : points)
      if (counts(p)) low = std::min(low, value(p)), high = std::max(high, value(p));
    return low > high ? std::string("not measured") : fmt::format("{:.2f} to {:.2f}", low, high);
  };
  const auto all = [](const Fp8Point&) { return true; };
  const auto ratio = [](const Fp8Point& p) { return p.ratio(); };
  fmt::print("\"memory does not fall\": fp8 takes {} of the memory of bf16\n",
             range([](const Fp8Point& p) { return p.memory(); }, all));
  fmt::print(
      "\"custom norms break it\": speed {} of bf16 with RMS norm or QK norm, {} with GPT-2's "
      "layer norm\n",
      range(ratio, [](const Fp8Point& p) { return p.custom_norms; }),
      range(ratio, [](const Fp8Point& p) { return !p.custom_norms; }));
  fmt::print(
      "\"compilation costs 8%\": nothing is compiled; the first step ends after {} s, in bf16 "
      "after {} s\n",
      range([](const Fp8Point& p) { return p.fp8.first_s; }, all),
      range([](const Fp8Point& p) { return p.bf16.first_s; }, all));
}

void compare_speed(const Fp8BenchFlags& f, Backend& backend) {
  std::vector<Fp8Batch> batches;
  for (const std::string& text : f.batches) batches.push_back(Fp8Batch::parse(text));
  std::vector<Fp8Point> points;
  if (!f.common.json)
    fmt::print(
        "{:<14}{:<28}{:>12}{:>12}{:>7}{:>10}{:>8}{:>9}{:>7}\n{:<42}{:>12}{:>12}{:>7}{:>10}"
        "{:>8}{:>9}{:>7}\n",
        "model", "batch", "bf16", "fp8", "ratio", "bf16", "fp8", "bf16", "fp8", "", "tokens/s",
        "tokens/s", "", "GiB", "GiB", "first s", "");
  for (const std::string& preset : f.presets)
    for (const Fp8Batch& batch : batches) {
      ModelConfig model = model_over_preset(preset, f.model);
      model.context = std::max(model.context, batch.T);
      model = model.resolve();
      const auto bf16 = speed_of(model, batch, false, backend, f.steps);
      const auto fp8 = bf16 ? speed_of(model, batch, true, backend, f.steps) : bf16;
      if (!fp8) {
        say("hearth: {}, {}: does not fit in memory\n", preset, batch.name());
        continue;
      }
      points.push_back({.model = name_over_preset(preset, f.model),
                        .batch = batch,
                        .custom_norms = model.norm != Norm::layer || model.qk_norm != QkNorm::none,
                        .bf16 = *bf16,
                        .fp8 = *fp8});
      show(f, backend, points.back());
    }
  if (!f.common.json && !points.empty()) show_claims(points);
}

// --- loss ---

struct Fp8LossCase {
  std::string preset;
  OptimizerKind optimizer = OptimizerKind::adamw;

  static Fp8LossCase parse(const std::string& text) {
    const size_t colon = text.find(':');
    if (colon == text.npos)
      fail_usage("--cases", "expected preset:optimizer, got {}", in_quotes(text));
    return {text.substr(0, colon), parse_enum<OptimizerKind>(text.substr(colon + 1), "--cases")};
  }
};

struct Fp8Mean {
  double mean = 0, deviation = 0;
  explicit Fp8Mean(const std::vector<double>& v) {
    for (const double x : v) mean += x / double(v.size());
    for (const double x : v) deviation += (x - mean) * (x - mean);
    deviation = v.size() > 1 ? std::sqrt(deviation / double(v.size() - 1)) : 0;
  }
};

// The validation loss after the run.
double loss_of(const Fp8BenchFlags& f, const Fp8LossCase& c, TrainDType dtype, int64_t seed,
               const RunPlace& place, Backend& backend, const std::atomic<int>* stop) {
  PretrainSpec spec;
  spec.model = model_over_preset(c.preset, f.model).resolve();
  TrainConfig& t = spec.train;
  t.data = f.data, t.val = f.val, t.seed = uint64_t(seed);
  t.dtype = dtype, t.optimizer = c.optimizer, t.lr = f.lr;
  t.steps = f.loss_steps, t.warmup = f.warmup < 0 ? f.loss_steps / 10 : f.warmup;
  const int64_t tokens = std::min<int64_t>(f.tokens_per_step, 65536);
  t.batch = std::max<int64_t>(1, tokens / spec.model.context);
  t.tokens_per_step = std::to_string(f.tokens_per_step);
  if (t.batch * spec.model.context > f.tokens_per_step) t.seq = std::to_string(f.tokens_per_step);
  t.order = LoaderSpec::Order::shuffled;  // so that seeds see other tokens
  t.eval_every = 0, t.eval_tokens = f.eval_tokens;
  t.checkpoint_every = 0, t.save_best = false;
  spec.run = place.of(
      fmt::format("{}-{}-{}-{}", c.preset, enum_name(c.optimizer), enum_name(dtype), seed));
  spec.quiet = true, spec.stop = stop;
  say("hearth: {} {} in {}, seed {}\n", c.preset, enum_name(c.optimizer), enum_name(dtype), seed);
  const RunResult r = pretrain(spec, backend);
  if (r.reason == Ending::stopped) stop_benchmark_if_signalled(f.run);
  place.done(spec.run);
  if (!r.val_loss) fail("bench fp8", "expected a validation loss of {}, got none", c.preset);
  return *r.val_loss;
}

std::string losses_text(const std::vector<double>& v) {
  std::string all;
  for (const double x : v) all += fmt::format("{}{:.4f}", all.empty() ? "" : ", ", x);
  return all;
}

void compare_loss(const Fp8BenchFlags& f, Backend& backend) {
  if (f.val.empty()) fail_usage("--val", "expected token files to validate on, got none");
  std::vector<Fp8LossCase> cases;
  for (const std::string& text : f.cases) {
    cases.push_back(Fp8LossCase::parse(text));
    model_over_preset(cases.back().preset, f.model).resolve();  // throws before the first run
  }
  const std::atomic<int>* stop = count_stop_signals();
  const RunPlace place(f.run, "hearth-fp8");
  for (const Fp8LossCase& c : cases) {
    std::vector<double> bf16, fp8, gaps;
    for (int64_t seed = f.seed; seed < f.seed + f.seeds; ++seed) {
      bf16.push_back(loss_of(f, c, TrainDType::bf16, seed, place, backend, stop));
      fp8.push_back(loss_of(f, c, TrainDType::fp8, seed, place, backend, stop));
      gaps.push_back(fp8.back() - bf16.back());
    }
    const Fp8Mean a(bf16), b(fp8), gap(gaps);
    const std::string what = fmt::format("loss of {} with {} in fp8, {} steps of {} tokens",
                                         name_over_preset(c.preset, f.model),
                                         enum_name(c.optimizer), f.loss_steps, f.tokens_per_step);
    if (!f.common.json) {
      fmt::print(
          "{}\n  bf16  {:.4f} +- {:.4f}  ({})\n  fp8   {:.4f} +- {:.4f}  ({})\n"
          "  gap  {:+.4f} +- {:.4f}\n",
          what, a.mean, a.deviation, losses_text(bf16), b.mean, b.deviation, losses_text(fp8),
          gap.mean, gap.deviation);
      continue;
    }
    nlohmann::ordered_json j = result_line(backend, "quality", what, b.mean, "nats");
    j["more"] = fmt::format(
        "gap {:+.4f} +- {:.4f}; fp8 {} (+- {:.4f}), bf16 {} (+- {:.4f}); seeds {} to {}", gap.mean,
        gap.deviation, losses_text(fp8), b.deviation, losses_text(bf16), a.deviation, f.seed,
        f.seed + f.seeds - 1);
    j["peer"] = "hearth in bf16, same tokens and seeds", j["peer_value"] = a.mean;
    j["lower_is_better"] = true;
    print_json(j);
  }
}

void bench_fp8(const Fp8BenchFlags& f) {
  const std::unique_ptr<Backend> backend = make_backend(f.common);
  expect_fp8(*backend);
  f.data.empty() ? compare_speed(f, *backend) : compare_loss(f, *backend);
}

}  // namespace

void add_bench_fp8(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand(
      "fp8", "compare training in fp8 with bf16: speed and memory, or with --data the loss");
  auto f = std::make_shared<Fp8BenchFlags>();
  add_common(*c, f->common);
  c->add_option("--preset", f->presets, "model presets to time")
      ->delimiter(',')
      ->capture_default_str();
  c->add_option("--batches", f->batches,
                "batches to time: sequences x tokens [x micro-batches of a step]")
      ->delimiter(',')
      ->capture_default_str();
  c->add_option("--steps", f->steps, "measured steps")->capture_default_str()->check(at_least(1));
  c->add_option("--data", f->data, "token files: train on them and compare the losses instead");
  c->add_option("--val", f->val, "with --data: token files to validate on");
  c->add_option("--cases", f->cases, "with --data: models to train, each preset:optimizer")
      ->delimiter(',')
      ->capture_default_str();
  c->add_option("--loss-steps", f->loss_steps, "with --data: steps of a run")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--tokens-per-step", f->tokens_per_step, "with --data: tokens per step")
      ->capture_default_str()
      ->check(at_least(2));
  c->add_option("--seeds", f->seeds, "with --data: number of runs of each case and type")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--seed", f->seed, "with --data: the first seed")->capture_default_str();
  c->add_option("--lr", f->lr, "with --data: peak learning rate")->capture_default_str();
  c->add_option("--warmup", f->warmup, "with --data: warmup steps; -1: a tenth of the run")
      ->capture_default_str();
  c->add_option("--eval-tokens", f->eval_tokens, "with --data: validation tokens")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--run", f->run,
                "with --data: folder to keep the runs in; without it they are deleted");
  f->model.add(*c, ModelConfig{}, model_group);
  c->callback([f] { bench_fp8(*f); });
}

}  // namespace hearth::inline cli
