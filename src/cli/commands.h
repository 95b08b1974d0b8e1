// The commands of the program. Each add_* declares one subcommand with its flags on the app and
// leaves a callback that runs it; one file per command.
#pragma once

#include <CLI/CLI.hpp>

namespace hearth {

// Flags every command takes, parsed before the command's callback runs.
struct Common {
  std::string device = "auto";  // auto | cpu | cuda[:i]
  std::string dtype = "fp32";   // fp32 | bf16
  int threads = 0;              // 0: every core
  uint64_t seed = 1;
  bool json = false;
};
void add_common(CLI::App&, Common&);

void add_tokenizer(CLI::App&);
void add_data(CLI::App&);

int run_command_line(int argc, char** argv);

}  // namespace hearth
