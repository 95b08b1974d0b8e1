// hearth bench moe: the grouped products of one layer of experts, forward and backward, on random
// tokens. Prints each beside the time that the matrix product rate and the memory bandwidth of this
// machine allow. Where Hopper has kernels of its own it also measures those for consumer GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "cli/bench.h"
#include "cuda/backend.h"
#include "diag/peak_flops.h"
#include "formats/fields.h"
#include "sys/error.h"

namespace hearth::inline cli {
namespace {

struct BenchMoeFlags {
  Common common;
  std::string dtype = "auto";
  int64_t tokens = 65536, dim = 768, hidden = 512, experts = 64, top_k = 4;
  bool glu = true;
  bool both = true;
  int steps = 20;
};

// Which experts random tokens choose, as the kernels see it: rows sorted by expert.
struct Routing {
  explicit Routing(const BenchMoeFlags& f) : offsets(size_t(f.experts + 1)) {
    std::mt19937 random{1};
    std::vector<std::vector<int32_t>> tokens_of(size_t(f.experts));
    std::vector<size_t> order(size_t(f.experts));
    std::iota(order.begin(), order.end(), size_t(0));
    for (int64_t t = 0; t < f.tokens; ++t)
      for (int64_t j = 0; j < f.top_k; ++j) {
        std::uniform_int_distribution<size_t> any(size_t(j), order.size() - 1);
        std::swap(order[size_t(j)], order[any(random)]);
        tokens_of[order[size_t(j)]].push_back(int32_t(t));
      }
    for (size_t e = 0; e < tokens_of.size(); ++e) {
      gather.insert(gather.end(), tokens_of[e].begin(), tokens_of[e].end());
      offsets[e + 1] = int32_t(gather.size());
    }
  }
  std::vector<int32_t> offsets, gather;
};

// A tensor with memory of its own.
struct BenchTensor {
  BenchTensor(Backend& b, Shape s, DType d)
      : memory(b, s.numel() * size_of(d), "bench moe"), t{memory.data(), s, d} {
    if (d != DType::i32) fill_random(b, t);
  }
  BenchTensor(Backend& b, const std::vector<int32_t>& x)
      : BenchTensor(b, {int64_t(x.size())}, DType::i32) {
    b.upload(t.data, x.data(), t.bytes());
  }
  operator const Tensor&() const { return t; }
  Buffer memory;
  Tensor t;
};

struct BenchLayer {
  BenchLayer(Backend& b, const BenchMoeFlags& f, DType d)
      : backend(b),
        routing(f),
        rows(f.tokens * f.top_k),
        wide(f.glu ? 2 * f.hidden : f.hidden),
        offsets(b, routing.offsets),
        gather(b, routing.gather),
        x(b, {f.tokens, f.dim}, d),
        up(b, {rows, wide}, d),
        h(b, {rows, f.hidden}, d),
        y(b, {rows, f.dim}, d),
        w_up(b, {f.experts, wide, f.dim}, d),
        w_down(b, {f.experts, f.dim, f.hidden}, d),
        dw_up(b, {f.experts, wide, f.dim}, DType::f32),
        dw_down(b, {f.experts, f.dim, f.hidden}, DType::f32) {}

  Backend& backend;
  Routing routing;
  int64_t rows, wide;
  BenchTensor offsets, gather, x, up, h, y, w_up, w_down, dw_up, dw_down;

  void forward(const Tensor& c, const Tensor& a, const Tensor& b, bool gathers, bool tb) const {
    backend.kernels().grouped_gemm(backend.stream(), {.c = c,
                                                      .a = a,
                                                      .b = b,
                                                      .offsets = offsets,
                                                      .gather = gathers ? gather.t : Tensor{},
                                                      .tb = tb});
  }
  void weights(const Tensor& db, const Tensor& dc, const Tensor& a, bool gathers) const {
    backend.kernels().grouped_gemm_weights(
        backend.stream(),
        {.db = db, .dc = dc, .a = a, .offsets = offsets, .gather = gathers ? gather.t : Tensor{}});
  }
};

struct BenchProduct {
  std::string name, pass;  // pass: forward, dA or dW
  int64_t N, K;
  double bytes;  // that it must move at least
  std::function<void()> run;
};

// x is gathered going in, and so is the gradient of the layer's result coming back.
std::vector<BenchProduct> products_of(const BenchLayer& l, const BenchMoeFlags& f) {
  const auto bytes = [](std::initializer_list<Tensor> all) {
    double n = 0;
    for (const Tensor& t : all) n += double(t.bytes());
    return n;
  };
  return {
      {"up", "forward", l.wide, f.dim, bytes({l.x, l.w_up, l.up}),
       [&l] { l.forward(l.up, l.x, l.w_up, true, true); }},
      {"down", "forward", f.dim, f.hidden, bytes({l.h, l.w_down, l.y}),
       [&l] { l.forward(l.y, l.h, l.w_down, false, true); }},
      {"down dA", "dA", f.hidden, f.dim, bytes({l.x, l.w_down, l.h}),
       [&l] { l.forward(l.h, l.x, l.w_down, true, false); }},
      {"up dA", "dA", f.dim, l.wide, bytes({l.up, l.w_up, l.y}),
       [&l] { l.forward(l.y, l.up, l.w_up, false, false); }},
      {"up dW", "dW", l.wide, f.dim, bytes({l.up, l.x, l.dw_up}),
       [&l] { l.weights(l.dw_up, l.up, l.x, true); }},
      {"down dW", "dW", f.dim, f.hidden, bytes({l.y, l.h, l.dw_down}),
       [&l] { l.weights(l.dw_down, l.y, l.h, false); }},
  };
}

double time_product(Backend& backend, const BenchProduct& p, int steps) {
  for (int i = 0; i < 3; ++i) p.run();
  backend.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) p.run();
  backend.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / steps;
}

struct BenchLimits {
  double peak = 0, bandwidth = 0;
};

void print_rate(const BenchMoeFlags& f, const Backend& b, const std::string& what, double flops,
                double seconds, double limit) {
  const std::string shape =
      fmt::format("{} {} tokens, dim {}, hidden {}{}, {} experts, top {}", what, f.tokens, f.dim,
                  f.hidden, f.glu ? " GLU" : "", f.experts, f.top_k);
  nlohmann::ordered_json j = bench_line(b, "moe", shape, 1e-12 * flops / seconds, "TFLOP/s");
  j["ms"] = 1e3 * seconds, j["limit_ms"] = 1e3 * limit, j["share"] = limit / seconds;
  if (f.common.json) return print_json(j);
  fmt::print("{:<24}{:9.3f} ms {:>14}/s  {:4.0f}% of the limit, {:.3f} ms\n", what, 1e3 * seconds,
             flop_text(flops / seconds), 100 * limit / seconds, 1e3 * limit);
}

void time_layer(const BenchMoeFlags& f, Backend& backend, DType dtype, const BenchLimits& limits,
                const std::string& path) {
  const BenchLayer layer(backend, f, dtype);
  struct Sum {
    double flops = 0, seconds = 0, limit = 0;
  };
  std::map<std::string, Sum> sums;
  for (const BenchProduct& p : products_of(layer, f)) {
    const double flops = 2 * double(layer.rows) * double(p.N) * double(p.K);
    const double limit = std::max(flops / limits.peak, p.bytes / limits.bandwidth);
    const double seconds = time_product(backend, p, f.steps);
    print_rate(f, backend, path + p.name, flops, seconds, limit);
    const bool backward = p.pass != "forward";
    for (Sum* s : {&sums[p.pass], backward ? &sums["backward"] : nullptr})
      if (s) s->flops += flops, s->seconds += seconds, s->limit += limit;
  }
  for (const char* pass : {"forward", "dA", "dW", "backward"})
    print_rate(f, backend, fmt::format("{}all {}", path, pass), sums[pass].flops,
               sums[pass].seconds, sums[pass].limit);
}

// Whether the products run on kernels that only Hopper has: in 16 bits, with rows that begin at
// multiples of 16 bytes.
bool on_hopper_kernels(const BenchMoeFlags& f, DType dtype) {
  const int card = chosen_card(f.common);
  return card >= 0 && cuda_card(card).major == 9 && size_of(dtype) == 2 && f.dim % 8 == 0 &&
         f.hidden % 8 == 0;
}

void bench_moe(const BenchMoeFlags& f) {
  if (f.top_k > f.experts)
    fail_usage("--top-k", "expected at most {} experts, got {}", f.experts, f.top_k);
  TrainDType dtype = parse_enum<TrainDType>(f.dtype, "--dtype");
  const BackendWish wish{.fp16 = dtype == TrainDType::fp16};
  BenchLimits limits;
  {
    const std::unique_ptr<Backend> backend = make_backend(f.common, wish);
    resolve_dtype(dtype, *backend);
    limits = {measure_peak(*backend, to_dtype(dtype)), measure_bandwidth(*backend)};
    if (!f.common.json)
      fmt::print("limits: {}/s for a large matrix product, {:.0f} GB/s for a copy\n",
                 flop_text(limits.peak), 1e-9 * limits.bandwidth);
    time_layer(f, *backend, to_dtype(dtype), limits, "");
    if (!f.both || backend->device_bytes() == 0 || !on_hopper_kernels(f, to_dtype(dtype))) return;
  }
  BackendWish consumer = wish;
  consumer.hopper_kernels = false;
  const std::unique_ptr<Backend> backend = make_backend(f.common, consumer);
  time_layer(f, *backend, to_dtype(dtype), limits, "mma.sync ");
}

}  // namespace

void add_bench_moe(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("moe", "time the products of a mixture of experts");
  auto f = std::make_shared<BenchMoeFlags>();
  add_common(*c, f->common);
  const auto count = [&](const char* flag, int64_t& to, const char* help) {
    c->add_option(flag, to, help)->capture_default_str()->check(at_least(1));
  };
  count("--tokens", f->tokens, "tokens of a batch");
  count("--dim", f->dim, "width of the model");
  count("--hidden", f->hidden, "width of an expert");
  count("--experts", f->experts, "experts of the layer");
  count("--top-k", f->top_k, "experts per token");
  c->add_flag("--glu,!--no-glu", f->glu, "the experts have a gate (default: on)");
  c->add_flag("--consumer,!--no-consumer", f->both,
              "on Hopper: measure the kernels for consumer GPUs too (default: on)");
  c->add_option("--dtype", f->dtype, "type of weights and activations: auto, fp32, bf16 or fp16")
      ->capture_default_str();
  c->add_option("--steps", f->steps, "measured runs of each product")
      ->capture_default_str()
      ->check(at_least(1));
  c->callback([f] { bench_moe(*f); });
}

}  // namespace hearth::inline cli
