#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include "sys/files/files.h"

namespace hearth::fuzz {

#define HEARTH_FUZZ_TARGET(name) Target{#name, fuzz_##name, seeds_##name},
std::span<const Target> targets() {
  static constexpr auto all = std::to_array<Target>({
#include "fuzz_targets.inc"
  });
  return all;
}
#undef HEARTH_FUZZ_TARGET

MemoryFolder::MemoryFolder() {
  std::string name =
      access("/dev/shm", W_OK) == 0 ? "/dev/shm/hearth-fuzz-XXXXXX" : "/tmp/hearth-fuzz-XXXXXX";
  if (!mkdtemp(name.data())) fail("fuzz", "expected a folder in memory, got none");
  path_ = name;
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path MemoryFolder::write(std::string_view name, std::string_view bytes) const {
  const std::filesystem::path path = path_ / name;
  write_all(open_file(path, O_WRONLY | O_CREAT | O_TRUNC, "write the file"), to_bytes(bytes), path);
  return path;
}

void MemoryFolder::remove(std::string_view name) const { std::filesystem::remove(path_ / name); }

std::string mutated(std::string input, std::string_view other, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return n ? size_t(random() % n) : 0; };
  constexpr std::array<int64_t, 12> edges = {
      0, 1, -1, 127, 128, 255, 65535, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN};
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(input.size() + 1), length = 1 + below(16);
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] = char(input[at] ^ 1 << below(8));
        break;
      case 1:
        if (at < input.size()) input[at] = char(random());
        break;
      case 2: {
        const size_t width = size_t(1) << below(4);
        if (at + width <= input.size())
          input.replace(at, width, bytes_of(edges[below(edges.size())]).substr(0, width));
        break;
      }
      case 3:
        input.erase(at, length);
        break;
      case 4:
        input.insert(at, input.substr(below(input.size() + 1), length));
        break;
      default:
        input.insert(at, other.substr(below(other.size() + 1), length));
    }
  }
  return input;
}

}  // namespace hearth::fuzz
