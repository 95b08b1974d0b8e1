#include "cli/constraint_flags.h"

#include "sys/files/files.h"

namespace hearth::inline cli {

void ConstraintFlags::add(CLI::App& c) {
  CLI::Option* schema = c.add_option("--json-schema", json_schema,
                                     "file with a JSON schema: the text is JSON that matches it");
  c.add_option("--regex", regex, "regular expression that the whole text matches")
      ->excludes(schema);
}

ConstraintSpec ConstraintFlags::spec() const {
  if (!json_schema.empty())
    return {.kind = ConstraintSpec::Kind::json_schema,
            .text = read_file(json_schema),
            .where = json_schema};
  if (!regex.empty())
    return {.kind = ConstraintSpec::Kind::regex, .text = regex, .where = "--regex"};
  return {};
}

}  // namespace hearth::inline cli
