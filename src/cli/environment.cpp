#include "cli/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

constexpr std::string_view prefix = "HEARTH_";

// Variables that are not flags (docs/commands.md, "Environment variables").
constexpr std::string_view other_variables[] = {
    "ISA", "PIN", "CACHE", "GRAPH", "DEPENDENT_LAUNCH", "SOME", "HOPPER", "RACECHECK"};

// Beginnings of the variables that the build, its scripts and the tests read. Those often run the
// program in their own environment.
constexpr std::string_view build_variables[] = {"CUDA",    "SANITIZE",   "UNITY",    "WERROR",
                                                "TEST_",   "FAULT",      "FILE_",    "PARITY_",
                                                "STRESS_", "GRPO_CASES", "LOSS_DUMP"};

void add_flags(const CLI::App& app, std::vector<std::string>& known) {
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) known.push_back(environment_name("--" + name));
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    add_flags(*sub, known);
}

}  // namespace

std::string environment_name(const std::string& flag) {
  std::string s = std::string(prefix) + flag.substr(2);
  for (char& c : s) c = c == '-' ? '_' : char(std::toupper(static_cast<unsigned char>(c)));
  return s;
}

void warn_about_unknown_variables(const CLI::App& app) {
  std::vector<std::string> known;
  for (char** at = environ; *at; ++at) {
    const std::string_view entry = *at, name = entry.substr(0, entry.find('='));
    if (!name.starts_with(prefix)) continue;
    if (known.empty()) {
      for (const std::string_view other : other_variables)
        known.push_back(std::string(prefix) + std::string(other));
      add_flags(app, known);
    }
    const auto is_of_build = [&](std::string_view begin) {
      return name.substr(prefix.size()).starts_with(begin);
    };
    if (std::ranges::find(known, name) != known.end() ||
        std::ranges::any_of(build_variables, is_of_build))
      continue;
    say_problem(
        fmt::format("the environment variable {} is not known and has no effect; the nearest is {}",
                    name, nearest(name, known)));
  }
}

}  // namespace hearth::inline cli
