// What the benchmarks share: the line each prints with --json, and memory as it was used.
#pragma once

#include "cli/commands.h"

namespace hearth {

// bench, device, commit, shape, value and unit; more may be added.
nlohmann::ordered_json bench_line(const Backend&, const std::string& what, const std::string& shape,
                                  double value, const std::string& unit);

// What the process held at most: of the card, or of the machine.
int64_t peak_bytes(const Backend&);

void add_bench_infer(CLI::App& bench);
void add_bench_grpo(CLI::App& bench);

}  // namespace hearth
