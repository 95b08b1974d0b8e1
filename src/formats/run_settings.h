// RunSettings: the settings of a run, and the one rule by which a resumed run has to agree with
// those it began with. config.toml and every checkpoint hold them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/fields.h"

namespace hearth::inline formats {

struct RunSettings {
  nlohmann::ordered_json values = {};    // the whole config of the task
  nlohmann::ordered_json defaults = {};  // of the same settings
  // Settings that a resumed run may change, besides those that every run may.
  std::vector<std::string_view> free = {};

  // The fields of some configs.
  template <class... Config>
  static RunSettings of(std::span<const std::string_view> free, const Config&... configs) {
    RunSettings s{.free = {free.begin(), free.end()}};
    (s.values.update(fields_to_json(configs)), ...);
    (s.defaults.update(fields_to_json(Config{})), ...);
    return s;
  }

  // The text of config.toml: a comment, and a line "key = value" for each setting.
  std::string toml() const;
};

// Throws an error that names the settings in which `now` differs from those that a run began with:
// - a free setting may change;
// - `steps` and `epochs` may grow, which extends the run;
// - a setting that the run lacks is newer than the run, which did what the default does;
// - all others have to be equal; numbers are compared by value, since config.toml may be edited.
// `remedy` ends the error.
void expect_same_settings(const nlohmann::json& began, const RunSettings& now,
                          const std::string& where, const std::string& remedy = {});

// The same for the run in a folder, by its config.toml.
void expect_settings_of_run(const std::filesystem::path& run, const RunSettings&);

// Throws if the run in the folder began from a model in another place than `model`, which is empty
// if the run began from random weights. For runs that take their weights from their checkpoints and
// would ignore another model.
void expect_model_of_run(const std::filesystem::path& run, const std::string& model);

// Writes what a resumed run has changed into its config.toml: a greater length, and the settings
// that every run may change, except for paths. So a later --resume alone continues in the same way.
void write_changes(const std::filesystem::path& run, const RunSettings&);

}  // namespace hearth::inline formats
