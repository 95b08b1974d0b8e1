#include "sys/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace hearth::inline sys {

size_t edit_distance(std::string_view a, std::string_view b, Swap swap) {
  // Three rows of the table: distances from a prefix of a to all prefixes of b. The oldest row is
  // needed for swaps.
  std::vector<size_t> older(b.size() + 1), old(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(older, old);
    std::swap(old, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({old[j] + 1, row[j - 1] + 1, old[j - 1] + (a[i - 1] != b[j - 1])});
      if (swap == Swap::one_edit && i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], older[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace hearth::inline sys
