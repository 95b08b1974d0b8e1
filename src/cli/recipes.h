// Recipes: settings files for pretraining that are built into the program (recipes/ in the source).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hearth::inline cli {

struct Recipe {
  std::string_view name, toml;
};

// The group, in a command's help, of a --recipe whose settings become flags of that command.
inline constexpr const char* recipe_group = "Recipe";

std::span<const Recipe> recipes();
// Throws an error that lists the names if there is none of this name.
const Recipe& recipe_named(const std::string& name);
// "nocap-baseline, nocap-fast"
std::string recipe_names();

}  // namespace hearth::inline cli
