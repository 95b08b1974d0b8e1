// What libFuzzer calls; compiled once for each target, which HEARTH_FUZZ_ENTRY names. An input that
// takes more than a second of CPU time is a finding; libFuzzer's own clock also counts what other
// processes take.
#include <cstdio>
#include <ctime>

#include "fuzz.h"

namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

struct Slowest {
  double seconds = 0;
  ~Slowest() {
    std::fprintf(stderr, "hearth: slowest input %.3f s, all %.1f s of CPU time\n", seconds,
                 cpu_seconds());
  }
} slowest;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double start = cpu_seconds();
  HEARTH_FUZZ_ENTRY(data, size);
  const double took = cpu_seconds() - start;
  if (took > slowest.seconds) slowest.seconds = took;
  hearth::fuzz::require(took < 1);
  return 0;
}
