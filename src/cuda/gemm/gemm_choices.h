// Which algorithm was the fastest for each product on this card, kept in a file from run to run. A
// run that finds its choices there also finds the bits it had before.
#pragma once

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
  std::array<uint64_t, 8> algo{};  // as cuBLASLt gave it
  float microseconds = 0;
};

class GemmChoices {
 public:
  // The choices of a file, shared by every backend of this process: two that tune for themselves
  // would give two sets of bits.
  static GemmChoices& of(const std::filesystem::path&);
  // Reads what is there; lines that make no sense are left out.
  explicit GemmChoices(std::filesystem::path);
  std::optional<GemmChoice> find(const std::string& key);
  // Keeps a choice, in the file too, unless another process has kept one first: returns the one
  // that all use from now on. A file that cannot be written is said once: the next run tunes again
  // and may have other bits.
  GemmChoice put(const std::string& key, const GemmChoice&);

 private:
  GemmChoice agree(const std::string& key, const GemmChoice&);

  std::mutex mutex_;
  std::filesystem::path path_;
  std::map<std::string, GemmChoice> choices_;
  bool keeps_ = true;  // the file can be written
};

// $HEARTH_CACHE, $XDG_CACHE_HOME/hearth or ~/.cache/hearth; by card, driver and library.
std::filesystem::path choices_file(const std::string& card, size_t library_version);

}  // namespace hearth::cuda
