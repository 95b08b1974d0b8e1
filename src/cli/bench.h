// Shared by the benchmarks: the line each prints with --json, and the peak memory.
#pragma once

#include <filesystem>

#include "cli/commands.h"

namespace hearth::inline cli {

// A JSON object with bench, device, commit, shape, value and unit; callers add more fields.
nlohmann::ordered_json bench_line(const Backend&, const std::string& what, const std::string& shape,
                                  double value, const std::string& unit);

// A number of FLOPs with the prefix that leaves digits to read: "37.0 GFLOP" or "1.5 TFLOP".
std::string flop_text(double flops);

// Peak memory of the process: of the GPU for a GPU backend, else of the host.
int64_t peak_bytes(const Backend&);

// The folder of a benchmark's runs: a named one, or a temporary one that is deleted at the end.
class RunPlace {
 public:
  // `prefix` begins the name of a temporary folder; it is used if `named` is empty.
  RunPlace(const std::string& named, const char* prefix);
  ~RunPlace();
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;
  std::filesystem::path of(const std::string& run) const { return path_ / run; }
  // A run is not needed any more: deletes it, unless the folder is kept.
  void done(const std::filesystem::path& run) const;

 private:
  bool temporary_;
  std::filesystem::path path_;
};

void add_bench_fp8(CLI::App& bench);
void add_bench_infer(CLI::App& bench);
void add_bench_grpo(CLI::App& bench);
void add_bench_nocap(CLI::App& bench);
void add_bench_optimizer(CLI::App& bench);
void add_bench_moe(CLI::App& bench);
void add_bench_cache(CLI::App& bench);

}  // namespace hearth::inline cli
