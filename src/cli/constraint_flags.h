// The flags --json-schema and --regex of commands that write text.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "grammar/constraint.h"

namespace hearth::inline cli {

struct ConstraintFlags {
  std::string json_schema, regex;  // a file; a pattern

  void add(CLI::App&);
  // What the flags ask for, also if their values are empty; reads the file.
  ConstraintSpec spec() const;

 private:
  const CLI::Option *schema_ = nullptr, *regex_ = nullptr;
};

}  // namespace hearth::inline cli
