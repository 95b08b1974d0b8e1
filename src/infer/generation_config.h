// generation_config.json of a model's folder: the authors' sampling values. They override our
// defaults; flags and requests override them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "infer/sampler.h"
#include "model/files/folder.h"

namespace hearth::inline infer {

struct GenerationDefaults {
  std::filesystem::path file = {};  // empty: there is none
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {}, max_new_tokens = {};

  // Checks types and ranges; an error names the file and the field.
  static GenerationDefaults from_json(const nlohmann::json&, const std::filesystem::path& file);
  static GenerationDefaults read(const ModelSource&);

  // Sets each field of SamplingSpec whose name is not in `given`. Returns a description of the
  // applied values: "temperature 0.6, top_k 20"; empty: none.
  std::string apply(SamplingSpec&, const std::set<std::string>& given = {}) const;
};

// The folder whose generation_config.json is used: the adapter's if it has one, else the model's;
// empty if neither has one.
std::filesystem::path generation_folder(const ModelSource&);

// The whole object in `dir`; null if there is no such file.
nlohmann::ordered_json read_generation_config(const std::filesystem::path& dir);

// Throws if a file of the model or its adapter is broken.
void check_generation_config(const ModelSource&);

}  // namespace hearth::inline infer
