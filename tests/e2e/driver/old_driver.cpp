// Stands in for the driver's library of a machine whose driver is older than this build: it answers
// how old it is and has nothing else.
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 12020;
  return 0;
}
int cuGetProcAddress_v2(const char* name, void** address, int, unsigned long, int* status) {
  *address = nullptr;
  if (!std::strcmp(name, "cuInit")) *address = reinterpret_cast<void*>(&cuInit);
  if (!std::strcmp(name, "cuDriverGetVersion"))
    *address = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (!std::strcmp(name, "cuGetProcAddress"))
    *address = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  if (status) *status = *address ? 0 : 1;
  return *address ? 0 : 500;
}
}
