// hearth bench cache: attention of decoding over the paged KV cache, one layer at a time, for
// presets side by side. Prints the time and the bytes of the cache that it reads per second.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/bench.h"
#include "core/exec.h"
#include "diag/peak_flops.h"
#include "model/layer_spec.h"
#include "ops/mla.h"
#include "ops/record.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

struct BenchCacheFlags {
  Common common;
  std::vector<std::string> presets = {"modern-124m", "mla-124m"};
  std::string dtype = "auto";
  std::vector<int64_t> contexts, batches;  // empty: chosen by the device
  int steps = 20;
};

// One call of attention: `batch` sequences of `context` tokens each.
struct CacheCase {
  std::string preset;
  LayerSpec layer;
  DType dtype;
  int64_t context, batch;

  int64_t blocks() const { return batch * ceil_div(context, cache_block); }
  CacheLayout layout() const { return layer.cache(CacheFormat::plain, dtype); }
  int64_t token_bytes() const { return layout().block_bytes() / cache_block; }
  int64_t cache_bytes() const { return blocks() * layout().block_bytes(); }
  // Without the unused end of the last block, and with a window only what it leaves.
  double read_bytes() const {
    const int64_t seen = layer.window ? std::min(layer.window, context) : context;
    return double(batch * seen) * double(token_bytes());
  }
};

// Several layers with caches of their own, so that none of them stays in a cache of the processor.
Tape record_layers(const CacheCase& c, int64_t layers) {
  const LayerSpec& l = c.layer;
  const DType d = c.dtype;
  Tape t(d, "bench");
  t.trains = false;
  const Paged paged{t.state("bench.positions", {1, c.batch}, DType::i32),
                    t.state("bench.sequences", {1, c.batch}, DType::i32),
                    t.state("bench.tables", {c.batch, c.blocks() / c.batch}, DType::i32)};
  const AttnSpec spec{
      .window = l.window, .scale = float(1 / std::sqrt(double(l.qk_dim))), .apart = true};
  for (int64_t i = 0; i < layers; ++i) {
    const Var cache =
        t.state(fmt::format("bench.cache.{}", i), c.layout().shape(c.blocks()), c.layout().dtype);
    Var y;
    if (l.kv_latent) {
      const LatentSpec s = l.latent();
      latent_cached(t, cache, t.state("bench.latent", {1, c.batch, l.kv_latent}, d),
                    t.state("bench.k_rope", {1, c.batch, l.rope_dim}, d), paged, 0, 0);
      y = attention_latent(t, cache, t.state("bench.q", {1, c.batch, s.q_size()}, d),
                           t.state("bench.kv_b", {s.kv_size(), l.kv_latent}, d), paged, s, spec);
    } else {
      const QkvLayout layout = packed_qkv(l.heads, l.kv_heads, l.qk_dim, l.v_dim);
      const Var qkv = t.state("bench.qkv", {1, c.batch, l.qkv_size()}, d);
      y = attention_cached(t, cache, packed(qkv, layout), paged, {}, spec);
    }
    const auto launch = [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); };
    t.push(kernel_op<&Kernels::copy>("copy", launch), {y},
           {t.state("bench.y", t.shape(y), d)});  // keeps the node: unused outputs are dropped
  }
  return t;
}

void fill_inputs(Memory& memory, const CacheCase& c, int64_t layers) {
  std::vector<int32_t> positions(size_t(c.batch), int32_t(c.context - 1)), sequences, tables;
  for (int64_t i = 0; i < c.batch; ++i) sequences.push_back(int32_t(i));
  for (int64_t i = 0; i < c.blocks(); ++i) tables.push_back(int32_t(i));
  StateRef<int32_t>(memory.state, "bench.positions").upload(positions);
  StateRef<int32_t>(memory.state, "bench.sequences").upload(sequences);
  StateRef<int32_t>(memory.state, "bench.tables").upload(tables);
  const auto fill = [&](const std::string& name) {
    if (memory.state.has(name)) fill_random(memory.backend, memory.state.find(name));
  };
  for (const char* name : {"bench.latent", "bench.k_rope", "bench.q", "bench.kv_b", "bench.qkv"})
    fill(name);
  for (int64_t i = 0; i < layers; ++i) fill(fmt::format("bench.cache.{}", i));
}

// Seconds of one layer.
double time_cache(const CacheCase& c, Backend& backend, int steps, int64_t layers) {
  Memory memory(backend, nullptr);
  Exec program(record_layers(c, layers), memory);
  fill_inputs(memory, c, layers);
  for (int i = 0; i < 3; ++i) program.run();
  backend.synchronize();
  double best = INFINITY;
  for (int part = 0; part < 3; ++part) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) program.run();
    backend.synchronize();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    best = std::min(best, spent.count() / double(steps * layers));
  }
  return best;
}

void bench_cache_case(const BenchCacheFlags& f, const CacheCase& c, Backend& backend,
                      double bandwidth) {
  constexpr int64_t most_layers = 16, most_bytes = int64_t(8) << 30;
  const int64_t room = std::min(most_bytes, backend.free_bytes() / 2);
  const std::string shape =
      fmt::format("{} {} context {} batch {}", c.preset, to_string(c.dtype), c.context, c.batch);
  if (c.cache_bytes() > backend.free_bytes() * 9 / 10) {
    return say("hearth: left out {}: it needs a cache of {:.1f} GiB, more than is free\n", shape,
               double(c.cache_bytes()) / double(1 << 30));
  }
  const int64_t layers = std::clamp<int64_t>(room / c.cache_bytes(), 1, most_layers);
  const double seconds = time_cache(c, backend, f.steps, layers);
  const double rate = c.read_bytes() / seconds;
  nlohmann::ordered_json j = bench_line(backend, "cache", shape, 1e-9 * rate, "GB/s");
  j["us"] = 1e6 * seconds, j["token_bytes"] = c.token_bytes(), j["share"] = rate / bandwidth;
  if (f.common.json) return print_json(j);
  fmt::print("{:<44}{:9.1f} us {:8.1f} GB/s  {:4.0f}% of a copy; {} bytes per token and layer\n",
             shape, 1e6 * seconds, 1e-9 * rate, 100 * rate / bandwidth, c.token_bytes());
}

// On a CPU the sizes of a GPU would take minutes.
void choose_sizes(BenchCacheFlags& f, const Backend& backend) {
  const bool card = backend.device_bytes() > 0;
  if (f.contexts.empty())
    f.contexts = card ? std::vector<int64_t>{1024, 8192, 32768} : std::vector<int64_t>{256, 1024};
  if (f.batches.empty())
    f.batches = card ? std::vector<int64_t>{1, 64} : std::vector<int64_t>{1, 4};
}

void bench_cache(BenchCacheFlags& f) {
  for (const int64_t context : f.contexts)
    if (context < 1) fail_usage("--contexts", "expected at least 1 token, got {}", context);
  for (const int64_t batch : f.batches)
    if (batch < 1) fail_usage("--batches", "expected at least 1 sequence, got {}", batch);
  TrainDType dtype = parse_enum<TrainDType>(f.dtype, "--dtype");
  if (dtype == TrainDType::fp8) fail_usage("--dtype", "expected fp32, bf16 or fp16, got fp8");
  const std::unique_ptr<Backend> backend =
      make_backend(f.common, {.fp16 = dtype == TrainDType::fp16});
  resolve_dtype(dtype, *backend);
  choose_sizes(f, *backend);
  const double bandwidth = measure_bandwidth(*backend);
  for (const int64_t batch : f.batches)
    for (const int64_t context : f.contexts)
      for (const std::string& name : f.presets) {
        const std::vector<LayerSpec> layers = layer_specs(preset(name).resolve());
        const auto own = std::ranges::find_if(layers, &LayerSpec::attends);
        if (own == layers.end())
          fail_usage("--presets", "expected models with attention, got {}", name);
        bench_cache_case(f, {name, *own, to_dtype(dtype), context, batch}, *backend, bandwidth);
      }
}

}  // namespace

void add_bench_cache(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("cache", "time attention of decoding over the KV cache");
  auto f = std::make_shared<BenchCacheFlags>();
  add_common(*c, f->common);
  c->add_option("--presets", f->presets, "model presets to compare")
      ->delimiter(',')
      ->capture_default_str();
  c->add_option("--dtype", f->dtype, "compute type: auto, fp32 or bf16; on a GPU also fp16")
      ->capture_default_str();
  c->add_option("--contexts", f->contexts,
                "tokens of each sequence; default: 1024,8192,32768 on a GPU, 256,1024 on the CPU")
      ->delimiter(',');
  c->add_option("--batches", f->batches,
                "sequences that decode together; default: 1,64 on a GPU, 1,4 on the CPU")
      ->delimiter(',');
  c->add_option("--steps", f->steps, "measured steps")->capture_default_str()->check(at_least(1));
  c->callback([f] { bench_cache(*f); });
}

}  // namespace hearth::inline cli
