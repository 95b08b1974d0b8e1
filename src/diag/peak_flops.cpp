#include "diag/peak_flops.h"

#include <algorithm>
#include <chrono>

#include "core/exec.h"
#include "ops/record.h"

namespace hearth::inline diag {

void fill_random(Backend& backend, Tensor all) {
  const int64_t block = std::min<int64_t>(all.numel(), 1 << 20), size = size_of(all.dtype);
  ParamStore drawn(backend, {{"block", {block}, Init::uniform(1), Group::vector}}, all.dtype);
  drawn.initialise(1);
  std::vector<std::byte> host(size_t(block * size));
  backend.download(host.data(), drawn.flat(Part::weight).data, block * size);
  for (int64_t at = 0; at < all.numel(); at += block)
    backend.upload(all.data + at * size, host.data(), std::min(block, all.numel() - at) * size);
}

double measure_gemm(Backend& backend, DType d, const GemmShape& s, int repeats) {
  Tape t(d, "gemm");
  const Var a = t.param("a", {s.ta ? s.k : s.m, s.ta ? s.m : s.k}, Init::uniform(1), Group::matrix);
  const Var b = t.param("b", {s.tb ? s.n : s.k, s.tb ? s.k : s.n}, Init::uniform(1), Group::matrix);
  const Var c = t.result("c", {s.m, s.n}, d);
  record_gemm(t, {.c = c, .a = a, .b = b, .spec = {.ta = s.ta, .tb = s.tb}});
  ParamStore store(backend, t.params, d);
  fill_random(backend, store.flat(Part::weight));
  Memory memory(backend, &store);
  Exec product(std::move(t), memory);
  product.run();  // warm-up: touches memory, grows scratch, selects the algorithm
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
  constexpr double long_enough = 5e-4;  // seconds; launch overhead is then negligible
  constexpr int64_t largest = 12288, roomy = int64_t(4) << 30;
  double rate = 0;
  // A GPU starts at a size that is long enough even on a fast one: it tunes the product of each
  // size, and a run waits for that.
  const bool gpu = backend.device_bytes() > 0 && backend.free_bytes() > roomy;
  for (int64_t n = gpu ? largest / 2 : 768; n <= largest; n *= 2) {
    rate = std::max(rate, measure_gemm(backend, d, {.m = n, .n = n, .k = n}, 5));
    if (2.0 * double(n) * double(n) * double(n) / rate > long_enough) break;
  }
  return rate;
}

double measure_bandwidth(Backend& backend) {
  const int64_t n = int64_t(backend.has_host_offload() ? 256 : 32) << 20;
  const Buffer from(backend, n * 4, "bandwidth"), to(backend, n * 4, "bandwidth");
  const Tensor x{from.data(), {n}, DType::f32}, y{to.data(), {n}, DType::f32};
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    backend.kernels().copy(backend.stream(), {.y = y, .x = x});
    backend.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, double(8 * n) / took.count());
  }
  return best;
}

}  // namespace hearth::inline diag
