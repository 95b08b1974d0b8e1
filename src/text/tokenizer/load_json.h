// Shared by the two readers of tokenizer.json: access to JSON members, with errors that name them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sys/error.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

// A required member of a required type.
template <class F>
const nlohmann::json& json_member(const std::string& where, const nlohmann::json& object,
                                  const char* key, F is, const char* kind) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || !((*it).*is)())
    fail(where, "expected \"{}\" to be {}, got {}", key, kind,
         it == object.end() ? "nothing" : it->type_name());
  return *it;
}

inline std::string json_type(const nlohmann::json& component) {
  if (!component.is_object() || !component.contains("type") || !component["type"].is_string())
    return component.is_null() ? "null" : component.dump().substr(0, 60);
  return component["type"].get<std::string>();
}

inline bool json_flag(const nlohmann::json& object, const char* key, bool otherwise) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it == object.end() || !it->is_boolean() ? otherwise : it->get<bool>();
}

inline std::string json_string(const nlohmann::json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it == object.end() || !it->is_string() ? std::string() : it->get<std::string>();
}

// A token id: a whole number within the range of a vocabulary.
inline int32_t json_id(const std::string& where, const nlohmann::json& id,
                       const std::string& token) {
  if (!id.is_number_integer())
    fail(where, "expected a number for token \"{}\", got {}", token, id.type_name());
  const auto value = id.get<int64_t>();
  if (value < 0 || value >= most_ids)
    fail(where, "expected ids in [0, {}), got {} for token \"{}\"", most_ids, id.dump(), token);
  return int32_t(value);
}

// Reads normalizer, pre_tokenizer, decoder and post_processor into parts.text and parts.saved. An
// unsupported component is an error that names its path.
void read_components(VocabularyParts& parts, const nlohmann::json& file);

}  // namespace hearth::inline text
