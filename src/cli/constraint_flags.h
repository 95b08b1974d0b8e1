// The flags --json-schema and --regex of commands that write text.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "grammar/constraint.h"

namespace hearth::inline cli {

struct ConstraintFlags {
  std::string json_schema, regex;  // a file; a pattern

  void add(CLI::App&);
  // What the flags ask for; reads the file.
  ConstraintSpec spec() const;
};

}  // namespace hearth::inline cli
