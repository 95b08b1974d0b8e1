#include "cli/recipes.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline cli {

std::span<const Recipe> recipes() {
  static constexpr Recipe all[] = {
#include "cli/recipe_files.inc"
  };
  return all;
}

std::string recipe_names() {
  std::string names;
  for (const Recipe& r : recipes()) names += (names.empty() ? "" : ", ") + std::string(r.name);
  return names;
}

const Recipe& recipe_named(const std::string& name) {
  const auto it = std::ranges::find(recipes(), name, &Recipe::name);
  if (it == recipes().end())
    fail_usage("--recipe", "expected one of {}, got {}", recipe_names(), in_quotes(name));
  return *it;
}

}  // namespace hearth::inline cli
