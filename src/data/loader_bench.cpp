// Measures the speed of the loader alone.
#include <chrono>

#include "data/loader.h"

namespace hearth::inline data {

LoaderRate bench_loader(const LoaderSpec& spec, double seconds) {
  using clock = std::chrono::steady_clock;
  Loader loader(spec);
  Batch b;
  for (int i = 0; i < spec.prefetch; ++i) loader.next(b);
  const int64_t stalls = loader.stalls();
  LoaderRate rate;
  const auto begin = clock::now();
  double elapsed = 0;
  do {
    loader.next(b);
    ++rate.batches;
    elapsed = std::chrono::duration<double>(clock::now() - begin).count();
  } while (elapsed < seconds);
  rate.tokens_per_s = double(rate.batches * spec.batch * spec.seq) / elapsed;
  rate.stalls = loader.stalls() - stalls;
  return rate;
}

}  // namespace hearth::inline data
