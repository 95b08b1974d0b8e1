// Names of flags and commands that other programs use.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace hearth::inline cli {

// The flag of the command that a user who wrote `flag` most likely meant: one that has this name in
// another program, or one with a similar spelling. Empty: none. Both include their dashes.
std::string meant_flag(const std::string& flag, const CLI::App& command);

// The same for a flag with one dash, such as `-m` or `-n2`. If two flags are equally likely it
// names both: "--n or --max-tokens".
std::string meant_by_short(const std::string& flag, const CLI::App& command);

// Our name of a command that another program calls `word`. Empty: none.
std::string command_synonym(const std::string& word);

// The command, of those in `names`, that a user who wrote `word` most likely meant. Empty: none.
std::string meant_command(const std::string& word, const std::vector<std::string>& names);

// Makes every flag whose value is a type of numbers take the names that PyTorch, transformers and
// llama.cpp give it, in any case: half, float16 and F16 are fp16. To be called once all flags are
// there.
void allow_type_synonyms(CLI::App&);

}  // namespace hearth::inline cli
