// The fastest algorithm for each product on this GPU, kept in a file between runs. A run that finds
// its choices there also reproduces its earlier bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace hearth::cuda {

struct GemmChoice {
  bool fused = true;
  // cuBLASLt's opaque algorithm; zeros and then the number of a variant: our own kernel
  // gemm_hopper.
  std::array<uint64_t, 8> algo{};
  float microseconds = 0;
  bool own() const {
    return std::all_of(algo.begin(), algo.end() - 1, [](uint64_t word) { return word == 0; });
  }
  int variant() const { return int(algo.back()); }  // of our own kernel
};

class GemmChoices {
 public:
  // The choices of a file, shared by all backends of this process: two backends that tuned
  // separately could get different bits.
  static GemmChoices& of(const std::filesystem::path&);
  // Reads the file; malformed lines are ignored.
  explicit GemmChoices(std::filesystem::path);
  std::optional<GemmChoice> find(const std::string& key);
  // Stores a choice, also in the file, unless another process has stored one first. Returns the
  // choice that everyone uses from now on. A file that cannot be written is reported once; the next
  // run then tunes again and may get different bits.
  GemmChoice put(const std::string& key, const GemmChoice&);

 private:
  GemmChoice agree(const std::string& key, const GemmChoice&);

  std::mutex mutex_;
  std::filesystem::path path_;
  std::map<std::string, GemmChoice> choices_;
  bool keeps_ = true;  // false once the file could not be written
};

// In $HEARTH_CACHE, $XDG_CACHE_HOME/hearth or ~/.cache/hearth, by GPU, driver and library.
std::filesystem::path choices_file(const std::string& card, size_t library_version);

}  // namespace hearth::cuda
