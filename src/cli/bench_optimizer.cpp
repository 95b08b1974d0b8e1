// hearth bench optimizer: the update of a model's weights by itself, on random gradients. Prints
// its time beside the least that memory bandwidth and matrix products allow.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/bench.h"
#include "cli/model_flags.h"
#include "diag/peak_flops.h"
#include "model/decoder.h"
#include "optim/update_program.h"
#include "sys/error.h"

namespace hearth::inline cli {
namespace {

struct BenchOptimizerFlags {
  Common common;
  std::string preset = "gpt2", optimizer = "adamw", group = "all";
  std::string dtype = "auto";
  bool offload = false, profile = false;
  int steps = 20;
  FieldFlags<ModelConfig> model;
};

// The model's parameters, or those of one group.
std::vector<ParamSpec> parameters_of(const BenchOptimizerFlags& f) {
  std::vector<ParamSpec> specs = decoder_params(model_over_preset(f.preset, f.model).resolve());
  if (f.group == "all") return specs;
  const std::optional<Group> only = group_named(f.group);
  if (!only)
    fail_usage("--group", "expected all, matrix, head, embedding or vector, got '{}'", f.group);
  std::erase_if(specs, [&](const ParamSpec& p) { return p.group != *only; });
  if (specs.empty())
    fail_usage("--group", "expected a group that has parameters in {}, got {}", f.preset, f.group);
  return specs;
}

// What an update must move at least: each gradient is read for the norm and once more, each weight
// is written, state and masters (or else weights) are read and written.
double least_bytes(const ParamStore& store) {
  int64_t bytes = 2 * store.part_bytes(Part::grad) + store.part_bytes(Part::weight);
  bytes += store.has_master() ? 2 * store.part_bytes(Part::master) : store.part_bytes(Part::weight);
  for (size_t i = 0; i < store.slots().size(); ++i) bytes += 2 * store.part_bytes(slot_part(i));
  return double(bytes);
}

double product_flops(const ParamStore& store, const UpdateSpec& spec) {
  double flops = 0;
  for (const Optimizer& o : make_optimizers(spec))
    if (o.product_flops) flops += o.product_flops(store);
  return flops;
}

struct TimedUpdate {
  double seconds = 0, wall = 0;  // per update: launched one after another; each waited for
  Profile profile;
};

TimedUpdate time_update(ParamStore& store, const UpdateSpec& spec, int steps) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  Backend& backend = store.backend();
  Memory memory(backend, &store);
  make_training_buffers(store, spec);
  UpdateProgram update("bench", memory, spec);
  update.set_state({});
  update.set_loss(1);
  fill_random(backend, store.flat(Part::grad));
  Scalars scalars;
  scalars.lr = 1e-4f, scalars.clip = 1, scalars.momentum = 0.95f;
  for (int i = 0; i < 3; ++i) update.run(scalars);  // tunes products, captures the graph
  if (update.state().skip) fail("bench", "the update was skipped: its gradients are not finite");
  TimedUpdate t;
  std::vector<double> each;
  for (int i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    update.run(scalars);
    backend.synchronize();
    each.push_back(since(begin));
  }
  std::nth_element(each.begin(), each.begin() + int64_t(each.size() / 2), each.end());
  t.wall = each[each.size() / 2];
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) update.run(scalars);
  backend.synchronize();
  t.seconds = since(begin) / steps;
  update.run(scalars, &t.profile);
  return t;
}

void bench_optimizer(const BenchOptimizerFlags& f) {
  TrainDType dtype = parse_enum<TrainDType>(f.dtype, "--dtype");
  const std::unique_ptr<Backend> backend = make_backend(
      f.common, {.tf32 = dtype == TrainDType::tf32, .fp16 = dtype == TrainDType::fp16});
  resolve_dtype(dtype, *backend);
  const UpdateSpec spec{.optimizer = parse_enum<OptimizerKind>(f.optimizer, "--optimizer"),
                        .exact_f32 = dtype == TrainDType::fp32};
  ParamStore store(*backend, parameters_of(f), to_dtype(dtype), f.offload);
  store.initialise(1);
  const TimedUpdate t = time_update(store, spec, f.steps);
  const double bytes = least_bytes(store), flops = product_flops(store, spec);
  const DType products = to_dtype(dtype) == DType::f16 ? DType::bf16 : to_dtype(dtype);
  const double bandwidth = measure_bandwidth(*backend);
  const double peak = flops > 0 ? measure_peak(*backend, products) : 0;
  const double floor = bytes / bandwidth + (flops > 0 ? flops / peak : 0);

  const std::string shape =
      fmt::format("{} {} {} {}{}", name_over_preset(f.preset, f.model), enum_name(dtype),
                  f.optimizer, f.group, f.offload ? " offload" : "");
  nlohmann::ordered_json j = bench_line(*backend, "optimizer", shape, 1e3 * t.seconds, "ms");
  j["parameters"] = store.count();
  j["waited_ms"] = 1e3 * t.wall;
  j["floor_ms"] = 1e3 * floor;
  j["share"] = floor / t.seconds;
  j["bytes"] = bytes, j["gb_per_s"] = 1e-9 * bytes / t.seconds;
  j["bandwidth_gb_per_s"] = 1e-9 * bandwidth;
  if (flops > 0) {
    j["product_tflop"] = 1e-12 * flops, j["tflops"] = 1e-12 * flops / t.seconds;
    j["peak_tflops"] = 1e-12 * peak;
  }
  j["memory_bytes"] = peak_bytes(*backend);
  if (f.profile)
    for (const auto& [name, seconds] : t.profile) j["profile_ms"][name] = 1e3 * seconds;
  if (f.common.json) return print_json(j);
  fmt::print(
      "{}: {:.3f} ms per update of {:.1f}M parameters, {:.0f}% of the speed limit: {:.3f} ms",
      shape, 1e3 * t.seconds, 1e-6 * double(store.count()), 100 * floor / t.seconds, 1e3 * floor);
  fmt::print(" for {:.2f} GB at {:.0f} GB/s", 1e-9 * bytes, 1e-9 * bandwidth);
  if (flops > 0) fmt::print(" and {} at {}/s", flop_text(flops), flop_text(peak));
  fmt::print("\n");
  for (const auto& [name, seconds] : t.profile)
    if (f.profile) fmt::print("  {:<18}{:9.3f} ms\n", name, 1e3 * seconds);
}

}  // namespace

void add_bench_optimizer(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("optimizer", "time the optimizer's update by itself");
  auto f = std::make_shared<BenchOptimizerFlags>();
  add_common(*c, f->common);
  c->add_option("--preset", f->preset, "model preset")->capture_default_str();
  c->add_option("--optimizer", f->optimizer, optimizer_help)->capture_default_str();
  c->add_option("--dtype", f->dtype,
                "type of the weights: auto, fp32 or bf16; on a GPU also tf32 or fp16")
      ->capture_default_str();
  c->add_option(
       "--group", f->group,
       "update only these parameters: matrix (those that Muon updates), head, embedding or "
       "vector")
      ->capture_default_str();
  c->add_flag("--offload", f->offload, "keep optimizer state and master weights in host memory");
  c->add_flag("--profile", f->profile,
              "print the time of each kind of op, including the wait until it has finished");
  c->add_option("--steps", f->steps, "measured updates")->capture_default_str()->check(at_least(1));
  f->model.add(*c, ModelConfig{}, model_group);
  c->callback([f] { bench_optimizer(*f); });
}

}  // namespace hearth::inline cli
