// What libFuzzer calls; compiled once for each target, which HEARTH_FUZZ_ENTRY names.
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  HEARTH_FUZZ_ENTRY(data, size);
  return 0;
}
