// hearth bench: measures on this machine and prints each figure beside its limit. With --json every
// line carries device, commit, shape, value and unit.
#include <fmt/format.h>
#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/bench.h"
#include "cli/model_flags.h"
#include "data/shards.h"
#include "diag/lockstep.h"
#include "diag/peak_flops.h"
#include "model/layer_spec.h"
#include "model/lora.h"
#include "sys/build_info.h"
#include "sys/error.h"
#include "sys/process/process_memory.h"
#include "train/pretrain/programs.h"

namespace hearth::inline cli {

nlohmann::ordered_json bench_line(const Backend& b, const std::string& what,
                                  const std::string& shape, double value, const std::string& unit) {
  return {{"bench", what},  {"device", b.describe()}, {"commit", build_info().commit},
          {"shape", shape}, {"value", value},         {"unit", unit}};
}

std::string flop_text(double flops) {
  return flops < 1e12 ? fmt::format("{:.1f} GFLOP", 1e-9 * flops)
                      : fmt::format("{:.1f} TFLOP", 1e-12 * flops);
}

int64_t peak_bytes(const Backend& b) {
  const MemoryUse use = b.memory_use();
  return use.peak ? use.peak : peak_resident_bytes();
}

RunPlace::RunPlace(const std::string& named, const char* prefix)
    : temporary_(named.empty()), path_(named) {
  if (!temporary_) return;
  std::string name = std::filesystem::temp_directory_path() / fmt::format("{}-XXXXXX", prefix);
  if (!mkdtemp(name.data())) fail_errno(name, "make a temporary folder");
  path_ = name;
}

RunPlace::~RunPlace() { done(path_); }

void RunPlace::done(const std::filesystem::path& run) const {
  std::error_code ignored;
  if (temporary_) std::filesystem::remove_all(run, ignored);
}

namespace {

constexpr double gib = 1 << 30;

struct BenchFlags {
  Common common;
  std::string preset = "gpt2";
  std::string dtype = "auto";
  std::string fp8_head = "on", fp8_wgrad = "fp8";
  int64_t batch = 4, seq = 64;
  int steps = 10;
  bool profile = false;
  bool measure = false;
  bool offload = false;
  std::string recompute = "none", optimizer = "adamw";
  std::vector<std::string> data;
  std::string order = "sequential";
  int workers = 2;
  double seconds = 3;
  FieldFlags<ModelConfig> model;
  FieldFlags<LoraConfig> lora;
};

TrainDType dtype_of(const BenchFlags& f) { return parse_enum<TrainDType>(f.dtype, "--dtype"); }

// Also replaces a --dtype of auto, as pretrain does.
std::unique_ptr<Backend> backend_of(BenchFlags& f) {
  TrainDType d = dtype_of(f);
  std::unique_ptr<Backend> backend =
      make_backend(f.common, {.tf32 = d == TrainDType::tf32, .fp16 = d == TrainDType::fp16});
  resolve_dtype(d, *backend);
  f.dtype = enum_name(d);
  return backend;
}

// The model of a run, its adapters and its batch: "gpt2 lora 16 bf16 4x64".
std::string shape_of(const BenchFlags& f, const ProgramSpec& s) {
  return fmt::format("{}{} {} {}x{}", name_over_preset(f.preset, f.model), f.lora.given_text(),
                     f.dtype, s.B, s.T);
}

ProgramSpec spec_of(const BenchFlags& f, const Backend& backend) {
  ModelConfig model = model_over_preset(f.preset, f.model);
  LoraConfig lora;
  f.lora.apply(lora);
  model.lora = lora.spec();
  return {.model = model.resolve(),
          .dtype = storage_dtype(dtype_of(f)),
          .fp8 = Fp8Config{parse_enum<Fp8Head>(f.fp8_head, "--fp8-head"),
                           parse_enum<Fp8Wgrad>(f.fp8_wgrad, "--fp8-wgrad")}
                     .recording(dtype_of(f)),
          .B = f.batch,
          .T = f.seq,
          .recompute = parse_enum<Recompute>(f.recompute, "--recompute"),
          .offload = f.offload,
          .update = {.optimizer = parse_enum<OptimizerKind>(f.optimizer, "--optimizer"),
                     .exact_f32 = dtype_of(f) == TrainDType::fp32},
          .logits_bytes = logits_chunk_bytes(backend)};
}

void expect_not_fp8(const BenchFlags& f) {
  if (dtype_of(f) == TrainDType::fp8)
    fail_usage("--dtype", "fp8 is for bench train and bench fit; choose bf16");
}

struct Timed {
  double seconds;  // median step time
  Profile profile;
};

Timed time_steps(const ProgramSpec& s, Backend& backend, int steps) {
  ParamStore store(backend, decoder_params(s.model), s.dtype, s.offload);
  store.initialise(1);
  Memory memory(backend, &store);
  Programs programs(s, memory);
  const Batch batch = random_batch(s, 1);
  Scalars scalars;
  scalars.lr = 1e-4f, scalars.clip = 1, scalars.inv_targets = 1 / float(batch.count);
  scalars.step = fp8_measured_steps;  // the first steps of a run are slower
  const auto step = [&](Profile* profile = nullptr) {
    programs.profile(profile);
    programs.micro(batch, scalars, true);
    programs.update().run(scalars, profile);
    programs.update().state();  // waits for the step
  };
  step();  // so that every page is mapped before timing
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
  Timed t{times[times.size() / 2], {}};
  step(&t.profile);
  return t;
}

void bench_train(BenchFlags& f) {
  const std::unique_ptr<Backend> backend = backend_of(f);
  const ProgramSpec s = spec_of(f, *backend);
  expect_fit(s, MemoryBudget::for_run(*backend));
  const double peak = measure_peak(*backend, s.dtype);
  const Timed t = time_steps(s, *backend, f.steps);
  const double tokens = double(s.B * s.T) / t.seconds;
  const double flops = tokens * train_flops_per_token(s.model, s.T);
  nlohmann::ordered_json j = bench_line(*backend, "train", shape_of(f, s), tokens, "tokens/s");
  j["recompute"] = f.recompute;
  j["optimizer"] = f.optimizer;
  j["offload"] = f.offload;
  j["context"] = s.model.context;
  j["ms"] = 1e3 * t.seconds;
  j["gflops"] = flops * 1e-9;
  j["mfu"] = flops / peak;
  j["peak_gflops"] = peak * 1e-9;
  j["memory_bytes"] = peak_bytes(*backend);
  if (f.profile)
    for (const auto& [name, seconds] : t.profile) j["profile_ms"][name] = 1e3 * seconds;
  if (f.common.json) return print_json(j);
  fmt::print(
      "{}: {:.1f} tokens/s, {:.1f} ms per step, {:.1f} GFLOP/s, {:.0f}% of the {:.0f} GFLOP/s "
      "measured for a large matrix product\n",
      shape_of(f, s), tokens, 1e3 * t.seconds, flops * 1e-9, 100 * flops / peak, peak * 1e-9);
  if (!f.profile) return;
  double total = 0;
  for (const auto& [name, seconds] : t.profile) total += seconds;
  for (const auto& [name, seconds] : t.profile)
    fmt::print("  {:<18}{:9.2f} ms  {:4.1f}%\n", name, 1e3 * seconds, 100 * seconds / total);
}

// The largest batch whose plan fits in `bytes`, of at most `most` sequences; 0: none.
int64_t largest_fit(ProgramSpec s, int64_t most, int64_t bytes) {
  const auto fits = [&](int64_t B) {
    s.B = B;
    return memory_need(s).total() <= bytes;
  };
  int64_t fit = 0, over = 1;
  while (over <= most && fits(over)) fit = over, over *= 2;
  over = std::min(over, most + 1);
  while (over - fit > 1) {
    const int64_t middle = fit + (over - fit) / 2;
    (fits(middle) ? fit : over) = middle;
  }
  return fit;
}

// A GPU's backend keeps to --memory-limit itself. On the CPU, whose memory it does not limit, a
// plan may still ask what would fit.
MemoryBudget budget_of(const BenchFlags& f, const Backend& backend) {
  const MemoryBudget budget = MemoryBudget::for_run(backend);
  if (f.common.memory_limit == 0 || backend.device_bytes() > 0) return budget;
  const double limit = memory_share::run * f.common.memory_limit * gib;
  return MemoryBudget(std::min(budget.bytes(), int64_t(limit)), budget.host_offload());
}

// The search for the largest batch of `bench fit` ends here, far beyond any useful micro-batch.
constexpr int64_t most_fit_tokens = int64_t(1) << 26;

void bench_fit(BenchFlags& f) {
  const std::unique_ptr<Backend> backend = backend_of(f);
  const ProgramSpec s = spec_of(f, *backend);
  const MemoryNeed need = memory_need(s);
  const MemoryBudget budget = budget_of(f, *backend);
  const int64_t most = std::max<int64_t>(1, most_fit_tokens / s.T);
  const int64_t best = largest_fit(s, most, budget.bytes());
  nlohmann::ordered_json j =
      bench_line(*backend, "fit", shape_of(f, s), double(need.total()), "bytes");
  j["weights"] = need.weights, j["masters"] = need.masters, j["gradients"] = need.gradients;
  j["optimizer_state"] = need.optimizer_state, j["activations"] = need.activations;
  j["tables"] = need.tables;
  j["activation_bound"] = need.activation_bound;
  j["over_bound"] = double(need.activations) / double(need.activation_bound) - 1;
  j["budget"] = budget.bytes();
  j["largest_batch"] = best;
  j["largest_batch_limit"] = best < most ? "memory" : "tokens";
  double measured = 0;
  if (f.measure) {
    expect_fit(s, budget);
    time_steps(s, *backend, 1);
    measured = double(peak_bytes(*backend));
    j["process_peak"] = measured;
    j["over_plan"] = measured / double(need.total()) - 1;
  }
  if (f.common.json) return print_json(j);
  fmt::print("{}, recompute {}\n{}\n", shape_of(f, s), f.recompute, describe(need));
  fmt::print("activation arena {:.3f} GiB, lower bound {:.3f} GiB, {:.2f}% above\n",
             double(need.activations) / gib, double(need.activation_bound) / gib,
             100 * (double(need.activations) / double(need.activation_bound) - 1));
  fmt::print(
      "largest micro-batch in {:.1f} GiB: {}{}\n", double(budget.bytes()) / gib, best,
      best < most ? "" : fmt::format(" or more: the search ends at {} tokens", most_fit_tokens));
  if (f.measure)
    fmt::print("process peak {:.3f} GiB, {:+.1f}% relative to the plan\n", measured / gib,
               100 * (measured / double(need.total()) - 1));
}

// The layer whose kernels are measured: the first that has all of them.
LayerSpec attending_layer(const ModelConfig& c) {
  const std::vector<LayerSpec> layers = layer_specs(c);
  return *std::ranges::find_if(layers, &LayerSpec::attends);
}

void bench_gemm(BenchFlags& f) {
  expect_not_fp8(f);
  const std::unique_ptr<Backend> backend = backend_of(f);
  const ProgramSpec s = spec_of(f, *backend);
  const ModelConfig& c = s.model;
  const LayerSpec l = attending_layer(c);
  const int64_t M = s.B * s.T;
  const double peak = measure_peak(*backend, s.dtype);
  for (auto [n, k] : {std::pair{l.qkv_size(), c.dim},
                      {c.dim, l.y_size()},
                      {l.up_size(), c.dim},
                      {c.dim, l.hidden},
                      {c.vocab, c.dim}}) {
    // y = x wT; dx = dy w; dw = dyT x
    const std::array<std::pair<const char*, GemmShape>, 3> passes{{
        {"forward", {M, n, k, false, true}},
        {"dx", {M, k, n, false, false}},
        {"dw", {n, k, M, true, false}},
    }};
    for (const auto& [pass, shape] : passes) {
      const double rate = measure_gemm(*backend, s.dtype, shape, f.steps);
      const std::string text = fmt::format("{} {}x{}x{}", pass, shape.m, shape.n, shape.k);
      nlohmann::ordered_json j =
          bench_line(*backend, "gemm", f.dtype + " " + text, rate * 1e-9, "GFLOP/s");
      j["share"] = rate / peak;
      if (f.common.json)
        print_json(j);
      else
        fmt::print("{:<28}{:9.1f} GFLOP/s  {:4.0f}% of the peak measured for a large product\n",
                   text, rate * 1e-9, 100 * rate / peak);
    }
  }
}

void bench_attention(BenchFlags& f) {
  expect_not_fp8(f);
  const std::unique_ptr<Backend> backend = backend_of(f);
  const ProgramSpec s = spec_of(f, *backend);
  const ModelConfig& c = s.model;
  Tape t(s.dtype, "attention");
  const LayerSpec l = attending_layer(c);
  const Var qkv = t.input("qkv", {s.B, s.T, l.qkv_size()}, s.dtype);
  t[qkv].needs_grad = true;
  const Var y = attention(t, packed(qkv, packed_qkv(l.heads, l.kv_heads, l.qk_dim, l.v_dim)), {},
                          {.window = c.window, .scale = float(1 / std::sqrt(double(l.qk_dim)))});
  const Var dy = t.input("dy", t.shape(y), s.dtype);
  t.add_grad(y, dy);
  differentiate(t);
  const Var dqkv = t.grad(qkv);  // keeps the node: unused outputs are dropped
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); }),
         {dqkv}, {t.result("dqkv", t.shape(dqkv), s.dtype)});
  Memory memory(*backend, nullptr);
  Exec program(std::move(t), memory);
  for (const char* name : {"attention.qkv", "attention.dy"})
    fill_random(*backend, memory.state.find(name));
  program.run();
  Profile best;
  for (int i = 0; i < f.steps; ++i) {
    Profile p;
    program.run(&p);
    for (const auto& [name, seconds] : p)
      best[name] = best.contains(name) ? std::min(best[name], seconds) : seconds;
  }
  // Products over the keys that the causal mask and the window leave: of q and k 1 forward and 3
  // backward, of v 1 and 2.
  const double pairs = double(s.B * l.heads * s.T) * mean_keys(s.T, c.window);
  for (auto [name, columns] : {std::pair{"attention", l.qk_dim + l.v_dim},
                               {"attention_bwd", 3 * l.qk_dim + 2 * l.v_dim}}) {
    const double rate = 2 * pairs * double(columns) / best.at(name);
    const std::string dim =
        l.v_dim == l.qk_dim ? fmt::format("{}", l.qk_dim) : fmt::format("{}/{}", l.qk_dim, l.v_dim);
    const std::string shape =
        fmt::format("{} {}x{} heads {}/{} dim {}{}", f.dtype, s.B, s.T, l.heads, l.kv_heads, dim,
                    c.window ? fmt::format(" window {}", c.window) : "");
    nlohmann::ordered_json j = bench_line(*backend, name, shape, rate * 1e-9, "GFLOP/s");
    j["ms"] = 1e3 * best.at(name);
    if (f.common.json)
      print_json(j);
    else
      fmt::print("{:<16}{}: {:.1f} GFLOP/s, {:.2f} ms\n", name, shape, rate * 1e-9,
                 1e3 * best.at(name));
  }
}

void bench_data_loader(BenchFlags& f) {
  LoaderSpec s;
  s.files = expand_globs(f.data);
  s.batch = f.batch, s.seq = f.seq;
  s.workers = f.workers;
  s.order = parse_enum<LoaderSpec::Order>(f.order, "--order");
  const LoaderRate r = bench_loader(s, f.seconds);
  const std::unique_ptr<Backend> backend = make_backend(f.common);
  nlohmann::ordered_json j =
      bench_line(*backend, "loader", fmt::format("{} {}x{}", f.order, s.batch, s.seq),
                 r.tokens_per_s, "tokens/s");
  j["stalls"] = r.stalls, j["batches"] = r.batches;
  if (f.common.json) return print_json(j);
  fmt::print("loader, {} {} x {}: {:.1f}M tokens/s\n", f.order, s.batch, s.seq,
             r.tokens_per_s * 1e-6);
}

void add_model_flags(CLI::App& c, BenchFlags& f) {
  c.add_option("--preset", f.preset, "model preset")->capture_default_str();
  f.model.add(c, ModelConfig{}, model_group);
}

void add_steps(CLI::App& c, BenchFlags& f, const char* help) {
  c.add_option("--steps", f.steps, help)->capture_default_str()->check(at_least(1));
}

// The flags of a training step as a whole.
void add_training_flags(CLI::App& c, BenchFlags& f) {
  c.add_option("--dtype", f.dtype,
               "compute type: auto, fp32, bf16 or fp8; on a GPU also tf32 or fp16")
      ->capture_default_str();
  c.add_option("--fp8-head", f.fp8_head,
               "with --dtype fp8: on: the products of the head are fp8 too; off: bf16")
      ->capture_default_str();
  c.add_option("--fp8-wgrad", f.fp8_wgrad,
               "with --dtype fp8: type of the products for weight gradients: fp8, bf16")
      ->capture_default_str();
  c.add_option("--recompute", f.recompute, "gradient checkpointing: none, light or block")
      ->capture_default_str();
  c.add_option("--optimizer", f.optimizer, optimizer_help)->capture_default_str();
  c.add_flag("--offload", f.offload, "keep optimizer state and master weights in host memory");
  f.lora.add(c, LoraConfig{}, "Adapters");
}

// The flags of kernels that are timed by themselves.
void add_kernel_flags(CLI::App& c, BenchFlags& f) {
  f.dtype = "fp32";
  c.add_option("--dtype", f.dtype, "compute type: auto, fp32 or bf16; on a GPU also tf32 or fp16")
      ->capture_default_str();
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "benchmark this machine");
  bench->require_subcommand(1);
  // A pipe or file gets each row when it is measured.
  bench->preparse_callback([](size_t) { std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); });
  const auto command = [bench](const char* name, const char* help, void (*run)(BenchFlags&)) {
    CLI::App* c = bench->add_subcommand(name, help);
    auto f = std::make_shared<BenchFlags>();
    add_common(*c, f->common);
    c->add_option("--batch", f->batch, "sequences per batch")
        ->capture_default_str()
        ->check(between(1, 1 << 26));
    c->add_option("--seq", f->seq, "tokens per sequence")
        ->capture_default_str()
        ->check(between(1, 1 << 26));
    c->callback([f, run] { run(*f); });
    return std::pair{c, f};
  };
  const auto on_model = [&](const char* name, const char* help, void (*run)(BenchFlags&)) {
    auto [c, f] = command(name, help, run);
    add_model_flags(*c, *f);
    return std::pair{c, f};
  };
  auto [train, tf] = on_model("train", "time training steps on random tokens", bench_train);
  add_training_flags(*train, *tf);
  add_steps(*train, *tf, "measured steps");
  train->add_flag("--profile", tf->profile, "print the time spent in each kind of op");
  auto [fit, ff] =
      on_model("fit", "plan the memory of a run and find the largest batch", bench_fit);
  add_training_flags(*fit, *ff);
  fit->add_flag("--measure", ff->measure, "run a step and compare its peak memory with the plan");
  auto [gemm, gf] = on_model("gemm", "time the matrix products of a model", bench_gemm);
  add_kernel_flags(*gemm, *gf);
  gf->steps = 5;
  add_steps(*gemm, *gf, "measured runs of each product; the fastest counts");
  auto [attention, af] =
      on_model("attention", "time attention, forward and backward", bench_attention);
  add_kernel_flags(*attention, *af);
  add_steps(*attention, *af, "measured runs; the fastest counts");
  add_bench_fp8(*bench);
  add_bench_infer(*bench);
  add_bench_grpo(*bench);
  add_bench_nocap(*bench);
  add_bench_optimizer(*bench);
  add_bench_moe(*bench);
  add_bench_cache(*bench);
  auto [loader, lf] = command("loader", "time loading batches from token files", bench_data_loader);
  loader->add_option("--data", lf->data, "token files to read")->required();
  loader->add_option("--order", lf->order, "order of the data: sequential or shuffled")
      ->capture_default_str();
  loader->add_option("--workers", lf->workers, "loader threads")->capture_default_str();
  loader->add_option("--seconds", lf->seconds, "duration of the measurement in seconds")
      ->capture_default_str();
}

}  // namespace hearth::inline cli
