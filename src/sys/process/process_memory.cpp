#include "sys/process/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace hearth::inline sys {

int64_t resident_bytes() {
  std::ifstream f("/proc/self/statm");
  int64_t total = 0, resident = 0;
  f >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return int64_t(u.ru_maxrss) * 1024;
}

}  // namespace hearth::inline sys
