#include "tasks/chess/rows.h"

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "tasks/chess/split.h"

namespace hearth::chess {

void for_each_row(const std::filesystem::path& path,
                  const std::function<void(const nlohmann::json&)>& body) {
  const std::string all = read_file(path, rows_file_limit);
  int64_t number = 0;
  for (const std::string_view line : split(all, '\n')) {
    ++number;
    if (line.empty()) continue;
    try {
      const nlohmann::json row = parse_json(line, "json");
      if (!row.is_object()) fail("json", "expected an object, got {}", in_quotes(line));
      body(row);
    } catch (const Error& e) { fail(fmt::format("{}:{}", path.string(), number), "{}", e.what()); }
  }
}

const std::string& text_in(const nlohmann::json& row, const char* key) {
  if (!row.contains(key) || !row[key].is_string())
    fail("json", "expected a string in \"{}\", got {}", key,
         row.contains(key) ? in_quotes(row[key].dump()) : "none");
  return row[key].get_ref<const std::string&>();
}

}  // namespace hearth::chess
