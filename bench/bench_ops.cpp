// The speed of the op cases at model sizes: forward and backward with the best kernels of this
// machine, with the FLOPs of products and attention and the bytes that every node reads and writes.
#include <benchmark/benchmark.h>

#include <cmath>

#include "op_cases.h"
#include "optim/update.h"

namespace {

using namespace hearth;
using namespace hearth::cases;
using benchmark::Counter;

struct Work {
  double flops = 0, bytes = 0;
};

// Pairs of query and key that the causal mask and the case's own mask allow.
double pairs(const OpCase& c) {
  double n = 0;
  for (int64_t b = 0; b < c.large.B; ++b)
    for (int64_t i = 0; i < c.large.T; ++i)
      for (int64_t j = 0; j <= i; ++j) n += c.sees(b, i, j);
  return n;
}

Work work_of(const OpCase& c, const Tape& t) {
  Work w;
  const auto numel = [&](Var v) { return double(t.shape(v).numel()); };
  for (const Node& n : t.nodes) {
    if (!n.op->launch) continue;
    const std::string name = n.op->name;
    for (const auto* vars : {&n.in, &n.out})
      for (Var v : *vars)
        if (v) w.bytes += numel(v) * double(size_of(t[v].dtype));
    const bool gradient = name == "linear_glu_bwd";  // its product is the second output
    if (name == "linear" || name == "gemm" || name == "linear_glu" || gradient) {
      const double product = numel(n.out[gradient ? 1 : 0]);  // |a| |b| / |product| = K^2
      w.flops += 2 * product * std::sqrt(numel(n.in[0]) * numel(n.in[1]) / product);
    }
    const bool forward = name == "attention";
    if (forward || name == "attention_bwd") {
      const int64_t D = c.large.D, V = c.v_width(D), columns = forward ? D + V : 3 * D + 2 * V;
      w.flops += 2 * pairs(c) * double(c.large.H * columns);
    }
  }
  return w;
}

void set_rates(benchmark::State& state, const Work& w) {
  const auto rate = Counter::kIsIterationInvariantRate;
  if (w.flops > 0) state.counters["FLOP/s"] = Counter(w.flops, rate);
  state.counters["bytes/s"] = Counter(w.bytes, rate, Counter::kIs1024);
}

void bench_case(benchmark::State& state, const OpCase& c, DType dtype) {
  const auto backend = make_cpu_backend(0);
  CaseRun run(*backend, dtype, c, c.large, dtype);
  run.run();
  for (auto _ : state) run.run();
  set_rates(state, work_of(c, run.tape()));
}

void bench_update(benchmark::State& state, DType dtype, OptimizerKind kind) {
  const auto backend = make_cpu_backend(0);
  ParamStore store(*backend, {{"w", {4096, 4096}, Init::uniform(1), Group::matrix}}, dtype);
  store.initialise(1);
  Memory memory(*backend, &store);
  Tape t(dtype);
  record_update(t, store, t.result("loss", {1}, t.acc()), {.optimizer = kind});
  Exec exec(std::move(t), memory);
  store.set(Part::grad, "w", std::vector<float>(size_t(store.count()), 0.01f));
  Scalars s;
  s.lr = 1e-4f, s.clip = 1;
  memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
  exec.run();
  for (auto _ : state) exec.run();
  UpdateState end;
  memory.state.read<UpdateState>("update", std::span(&end, 1));
  if (end.skipped > 0) state.SkipWithError("updates were skipped");
  // The norm reads the gradients; the optimizer reads them again, and reads and writes its state
  // and the weights.
  const double acc = double(store.part_bytes(Part::grad));
  const double weights = double(store.part_bytes(Part::weight));
  double slots = 0;
  for (size_t i = 0; i < store.slots().size(); ++i) slots += double(store.part_bytes(slot_part(i)));
  set_rates(state,
            {0, 2 * acc + 2 * slots + (store.has_master() ? 2 * acc + weights : 2 * weights)});
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("backend", make_cpu_backend(0)->describe());
  for (DType dtype : {DType::f32, DType::bf16}) {
    const auto name = [&](const std::string& op) {
      return op + "/" + std::string(to_string(dtype));
    };
    for (const OpCase& c : op_cases())
      benchmark::RegisterBenchmark(name(c.name).c_str(), bench_case, c, dtype)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    for (size_t i = 0; i < known_optimizers.size(); ++i)
      benchmark::RegisterBenchmark(name(std::string(known_optimizers[i].name)).c_str(),
                                   bench_update, dtype, OptimizerKind(i))
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
}
