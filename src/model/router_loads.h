// How the pairs of tokens and experts of a step were shared among the experts, for the log. A load
// is (layers, experts): the pairs that each expert of each layer received.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hearth::inline model {

// How unequal the loads of experts are: the largest load / mean load - 1 of any layer.
double load_violation(std::span<const int32_t> load, int64_t experts);
// The load of each expert over all layers, divided by the mean.
std::vector<double> relative_loads(std::span<const int32_t> load, int64_t experts);

}  // namespace hearth::inline model
