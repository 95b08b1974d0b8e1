#include "cuda/gemm_choices.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "io/files.h"

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
  // Never destroyed: backends that outlive main() still save into it.
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

void GemmChoices::put(const std::string& key, const GemmChoice& c) {
  const std::lock_guard lock(mutex_);
  choices_[key] = c;
  changed_ = true;
}

void GemmChoices::save() {
  const std::lock_guard lock(mutex_);
  if (!changed_ || path_.empty()) return;
  changed_ = false;
  choices_.merge(read_choices(path_));  // what another process has chosen meanwhile
  std::string text;
  for (const auto& [key, c] : choices_)
    text += fmt::format("{} {} {:.1f} {:x}\n", key, int(c.fused), c.microseconds,
                        fmt::join(c.algo, " "));
  try {
    make_dirs(path_.parent_path());
    write_file_atomic(path_, text);
  } catch (const Error&) { path_.clear(); }
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
    return {};
  int driver = 0;
  cudaDriverGetVersion(&driver);
  std::string name = card;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  return folder / fmt::format("gemm-{}-driver{}-cublaslt{}.txt", name, driver, library_version);
}

}  // namespace hearth::cuda
