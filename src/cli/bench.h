// Shared by the benchmarks: the line each prints with --json, and the peak memory.
#pragma once

#include "cli/commands.h"

namespace hearth::inline cli {

// A JSON object with bench, device, commit, shape, value and unit; callers add more fields.
nlohmann::ordered_json bench_line(const Backend&, const std::string& what, const std::string& shape,
                                  double value, const std::string& unit);

// Peak memory of the process: of the GPU for a GPU backend, else of the host.
int64_t peak_bytes(const Backend&);

void add_bench_infer(CLI::App& bench);
void add_bench_grpo(CLI::App& bench);
void add_bench_nocap(CLI::App& bench);
void add_bench_optimizer(CLI::App& bench);
void add_bench_moe(CLI::App& bench);

}  // namespace hearth::inline cli
