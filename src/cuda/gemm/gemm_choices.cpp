#include "cuda/gemm/gemm_choices.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"

namespace hearth::cuda {
namespace fs = std::filesystem;

namespace {

std::map<std::string, GemmChoice> read_choices(const fs::path& path) {
  std::map<std::string, GemmChoice> r;
  std::ifstream f(path);
  for (std::string line; std::getline(f, line);) {
    std::istringstream in(line);
    std::string key;
    GemmChoice c;
    in >> key >> c.fused >> c.microseconds >> std::hex;
    for (uint64_t& word : c.algo) in >> word;
    if (in) r[key] = c;
  }
  return r;
}

}  // namespace

GemmChoices::GemmChoices(fs::path path) : path_(std::move(path)), choices_(read_choices(path_)) {}

GemmChoices& GemmChoices::of(const fs::path& path) {
  static std::mutex mutex;
  // Never destroyed: backends that outlive main() still write to it.
  static auto& all = *new std::map<fs::path, GemmChoices>;
  const std::lock_guard lock(mutex);
  return all.try_emplace(path, path).first->second;
}

std::optional<GemmChoice> GemmChoices::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = choices_.find(key);
  if (it == choices_.end()) return {};
  return it->second;
}

GemmChoice GemmChoices::put(const std::string& key, const GemmChoice& c) {
  const std::lock_guard lock(mutex_);
  GemmChoice& kept = choices_[key] = c;
  if (!keeps_) return kept;
  try {
    kept = agree(key, c);
  } catch (const Error& e) {
    keeps_ = false;
    say("hearth: choices of matrix products are not kept: {}\n", e.what());
  }
  return kept;
}

// Lines are only ever appended, by one writer at a time; a line cut short by a crash is ignored.
GemmChoice GemmChoices::agree(const std::string& key, const GemmChoice& c) {
  if (path_.empty()) fail("cache", "expected HOME or HEARTH_CACHE to name a folder, got neither");
  make_dirs(path_.parent_path());
  const Fd file = open_file(path_, O_WRONLY | O_CREAT | O_APPEND, "append to the file");
  while (flock(file.get(), LOCK_EX) != 0)
    if (errno != EINTR) fail_errno(path_, "lock the file");
  const std::map<std::string, GemmChoice> others = read_choices(path_);
  if (const auto it = others.find(key); it != others.end()) return it->second;
  const std::string line = fmt::format("\n{} {} {:.1f} {:x}\n", key, int(c.fused), c.microseconds,
                                       fmt::join(c.algo, " "));
  write_all(file, to_bytes(line), path_);
  return c;
}

fs::path choices_file(const std::string& card, size_t library_version) {
  fs::path folder;
  const auto set = [](const char* name) {
    const char* v = std::getenv(name);
    return v && *v ? v : nullptr;
  };
  if (const char* v = set("HEARTH_CACHE"))
    folder = v;
  else if (const char* x = set("XDG_CACHE_HOME"))
    folder = fs::path(x) / "hearth";
  else if (const char* home = set("HOME"))
    folder = fs::path(home) / ".cache" / "hearth";
  else
    return {};  // no folder: put() reports it
  int driver = 0;
  cudaDriverGetVersion(&driver);
  std::string name = card;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  return folder / fmt::format("gemm-{}-driver{}-cublaslt{}.txt", name, driver, library_version);
}

}  // namespace hearth::cuda
