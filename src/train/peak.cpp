#include "train/peak.h"

#include <algorithm>
#include <chrono>

#include "core/exec.h"
#include "ops/record.h"

namespace hearth {

double measure_gemm(Backend& backend, DType d, const GemmShape& s, int repeats) {
  Tape t(d, "gemm");
  const Var a = t.param("a", {s.ta ? s.k : s.m, s.ta ? s.m : s.k}, Init::uniform(1), Group::matrix);
  const Var b = t.param("b", {s.tb ? s.n : s.k, s.tb ? s.k : s.n}, Init::uniform(1), Group::matrix);
  const Var c = t.result("c", {s.m, s.n}, d);
  record_gemm(t, c, {}, a, b, {}, {}, {.ta = s.ta, .tb = s.tb});
  ParamStore store(backend, t.params, d);
  store.initialise(1);
  Memory memory(backend, &store);
  Exec product(std::move(t), memory);
  product.run();  // touches the memory, grows the scratch
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    product.run();
    backend.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return 2.0 * double(s.m) * double(s.n) * double(s.k) / best;
}

double measure_peak(Backend& backend, DType d) {
  return measure_gemm(backend, d, {.m = 768, .n = 768, .k = 768}, 5);
}

}  // namespace hearth
