// Writes the seeds of all targets: FOLDER/<target>/<number>.
#include <cstdio>

#include "fuzz.h"
#include "sys/files/files.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: hearth_fuzz_seeds FOLDER\n", stderr), 2;
  for (const hearth::fuzz::Target& target : hearth::fuzz::targets()) {
    const std::filesystem::path dir = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(dir);
    size_t number = 0;
    for (const std::string& seed : target.seeds())
      hearth::write_file_atomic(dir / std::to_string(number++), seed);
  }
}
