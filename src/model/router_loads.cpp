#include "model/router_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hearth::inline model {

double load_violation(std::span<const int32_t> load, int64_t experts) {
  double most = 0;
  for (size_t at = 0; at < load.size(); at += size_t(experts)) {
    const auto layer = load.subspan(at, size_t(experts));
    const double sum = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (sum > 0)
      most = std::max(most, double(*std::ranges::max_element(layer)) * double(experts) / sum - 1);
  }
  return most;
}

std::vector<double> relative_loads(std::span<const int32_t> load, int64_t experts) {
  std::vector<double> of(static_cast<size_t>(experts));
  double sum = 0;
  for (size_t i = 0; i < load.size(); ++i) of[i % of.size()] += load[i], sum += load[i];
  for (double& x : of) x = sum > 0 ? std::round(x * double(experts) / sum * 1e4) / 1e4 : 0;
  return of;
}

}  // namespace hearth::inline model
