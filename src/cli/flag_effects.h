// Refuses flags that have no effect together with the other settings of a command.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

namespace hearth::inline cli {

// What a user asked for. Files may have settings without an effect, as every config.toml does, so
// only flags of the command line and the environment (`asked`) are refused; a target that nothing
// can reach is refused in files too.
struct AskedFlags {
  const std::vector<std::string>& args;  // merged with the environment and the settings files
  const std::set<std::string>& asked;
  bool of_run = false;  // the rest of `args` is from the run that --resume continues
};

// The value that counts of `--flag X` or `--flag=X`: the last one; empty when absent.
std::string value_of(const std::vector<std::string>& args, const std::string& flag);

// Throws a usage error that names the first flag without an effect.
void expect_effect(const CLI::App& command, const AskedFlags&);

}  // namespace hearth::inline cli
