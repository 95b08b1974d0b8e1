// JSON read strictly: one value, no duplicate keys, bounded size and depth; an error is one line
// with its line and column.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth {

struct JsonLimits {
  size_t max_bytes = size_t(1) << 30;
  size_t max_depth = 64;
};

// `where` names the source in errors, usually a path.
nlohmann::json parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});
// The same with the members of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          JsonLimits limits = {});
// A file beyond the limit is refused before it is read.
nlohmann::json read_json(const std::filesystem::path&,
                         JsonLimits limits = {.max_bytes = small_file_limit});

// A name from a file as it may stand in a one-line message: quoted, escaped, clipped.
std::string in_quotes(std::string_view);

// The candidate with the fewest edits (insert, delete, replace, swap neighbours) from `key`, the
// first of equals; empty without candidates. Of a long key only the beginning is looked at.
std::string nearest(std::string_view key, std::span<const std::string_view> candidates);
std::string nearest(std::string_view key, std::span<const std::string> candidates);

// The same where it is near enough to be what was meant: no more than a third of the key's letters
// differ, and one may; else empty.
std::string near(std::string_view key, std::span<const std::string> candidates);

}  // namespace hearth
