// Reads JSON lines with one object each; errors name the file and line.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace hearth::chess {

void for_each_row(const std::filesystem::path&,
                  const std::function<void(const nlohmann::json& row)>&);

const std::string& text_in(const nlohmann::json& row, const char* key);  // throws if absent

}  // namespace hearth::chess
