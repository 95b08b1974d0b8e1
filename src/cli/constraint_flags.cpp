#include "cli/constraint_flags.h"

#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline cli {

void ConstraintFlags::add(CLI::App& c) {
  CLI::Option* schema = c.add_option("--json-schema", json_schema,
                                     "file with a JSON schema: the text is JSON that matches it");
  regex_ = c.add_option("--regex", regex, "regular expression that the whole text matches")
               ->excludes(schema);
  schema_ = schema;
}

ConstraintSpec ConstraintFlags::spec() const {
  const auto given = [](const CLI::Option* option) { return option && option->count() > 0; };
  if (given(schema_) && json_schema.empty())
    fail_usage("--json-schema", "expected a file, got an empty name");
  if (given(schema_) && json_schema.starts_with('{'))
    fail_usage("--json-schema", "expected a file, got a schema: write it to a file and name that");
  if (given(schema_))
    return {.kind = ConstraintSpec::Kind::json_schema,
            .text = read_file(json_schema),
            .where = json_schema};
  if (given(regex_))
    return {.kind = ConstraintSpec::Kind::regex, .text = regex, .where = "--regex"};
  return {};
}

}  // namespace hearth::inline cli
