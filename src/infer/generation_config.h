// generation_config.json of a model's folder: the values that its authors sample it with. They win
// over our defaults; what a flag or a request says wins over them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "infer/sampler.h"
#include "model/files/folder.h"

namespace hearth {

struct GenerationDefaults {
  std::filesystem::path file = {};  // empty: there is none
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {}, max_new_tokens = {};

  // Checks types and ranges; an error names the file and the field.
  static GenerationDefaults from_json(const nlohmann::json&, const std::filesystem::path& file);
  static GenerationDefaults read(const ModelSource&);

  // Writes each value into its field of SamplingSpec, but for those whose names are in `given`.
  // Says what it wrote: "temperature 0.6, top_k 20"; empty: nothing.
  std::string apply(SamplingSpec&, const std::set<std::string>& given = {}) const;
};

// The folder whose generation_config.json counts: the adapter's where it has one, else the model's;
// empty where neither has.
std::filesystem::path generation_folder(const ModelSource&);

// The whole object in `dir`; null where there is no such file.
nlohmann::ordered_json read_generation_config(const std::filesystem::path& dir);

}  // namespace hearth
