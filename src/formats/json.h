// Strict JSON parsing: one value, no duplicate keys, bounded size and depth. Errors are one line
// with line and column.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline formats {

struct JsonLimits {
  size_t max_bytes = size_t(1) << 30;
  size_t max_depth = 64;
};

// `where` names the source in errors, usually a path.
nlohmann::json parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});
// The same, but objects keep the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          JsonLimits limits = {});
// The same for one line of a file of JSON lines: `where` is "file:line", to which errors add the
// column.
nlohmann::json parse_json_line(std::string_view line, std::string_view where);
nlohmann::ordered_json parse_ordered_json_line(std::string_view line, std::string_view where);
// A file larger than the limit is rejected before it is read.
nlohmann::json read_json(const std::filesystem::path&,
                         JsonLimits limits = {.max_bytes = small_file_limit});

// A name from a file for use in a one-line message: quoted, escaped and truncated.
std::string in_quotes(std::string_view);

// The candidate with the smallest edit distance (insert, delete, replace, swap neighbours) from
// `key`, the first among equals; empty without candidates. Only the start of a long key is
// compared.
std::string nearest(std::string_view key, std::span<const std::string_view> candidates);
std::string nearest(std::string_view key, std::span<const std::string> candidates);

// nearest() if it is likely to be meant: at most a third of the key's letters differ, but one
// always may; else empty.
std::string near(std::string_view key, std::span<const std::string_view> candidates);
std::string near(std::string_view key, std::span<const std::string> candidates);

}  // namespace hearth::inline formats
