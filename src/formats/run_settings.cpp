#include "formats/run_settings.h"

#include <algorithm>

#include "formats/json.h"
#include "formats/run_folder.h"
#include "formats/toml.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/utf8.h"

namespace hearth::inline formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The settings that determine the length of a run.
constexpr const char* lengths[] = {"steps", "epochs"};

bool grew(const std::string& key, const json& began, const json& now) {
  return std::ranges::find(lengths, key) != std::end(lengths) && began.is_number() && now > began;
}

std::string setting_text(const json& value) {
  if (value.is_array())
    return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ","));
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return text.empty() || value.is_null() ? "none" : text;
}

// The values of a file, with the types of those in `like`; a TOML value is text.
json settings_in(const fs::path& file, const nlohmann::ordered_json& like) {
  json found = json::object();
  for (const TomlItem& item : read_toml(file)) {
    if (!like.contains(item.key)) continue;
    const auto& typed = like.at(item.key);
    if (typed.is_array() || item.values.size() != 1) {
      found[item.key] = item.values;
      continue;
    }
    const json parsed = json::parse(item.values[0], nullptr, false);
    found[item.key] = typed.is_string() || parsed.is_discarded() ? json(item.values[0]) : parsed;
  }
  return found;
}

// What a run began with: a setting that it lacks is newer than the run, which did what the default
// does.
json value_before(const json& began, const RunSettings& now, const std::string& key) {
  if (began.contains(key)) return began.at(key);
  return now.defaults.contains(key) ? json(now.defaults.at(key)) : json();
}

// Settings that do not affect what a run has computed so far.
bool free_in_every_run(std::string_view key) {
  constexpr std::string_view all[] = {"eval_every", "checkpoint_every", "save_best",  "keep",
                                      "recompute",  "offload",          "target_loss"};
  return std::ranges::find(all, key) != std::end(all);
}

}  // namespace

std::string RunSettings::toml() const {
  for (const auto& [key, value] : values.items())
    for (const json& v : value.is_array() ? json(value) : json::array({value}))
      if (v.is_string() && !is_utf8(v.get_ref<const std::string&>()))
        fail_usage(key, "expected UTF-8, as config.toml is written in, got {}",
                   in_quotes(v.get_ref<const std::string&>()));
  std::string text =
      "# The settings of the run; `--resume` reads them, and writes back what it changes.\n";
  for (const auto& [key, value] : values.items()) text += key + " = " + value.dump() + "\n";
  return text;
}

void expect_same_settings(const json& began, const RunSettings& now, const std::string& where,
                          const std::string& remedy) {
  std::vector<std::string> others;
  for (const auto& [key, setting] : now.values.items()) {
    if (free_in_every_run(key) || std::ranges::find(now.free, key) != now.free.end()) continue;
    const json value = setting, before = value_before(began, now, key);
    if (!same_setting(before, value) && !grew(key, before, value))
      others.push_back(
          fmt::format("{} = {}, not {}", key, setting_text(before), setting_text(value)));
  }
  if (others.empty()) return;
  constexpr size_t most = 4;
  const std::string more =
      others.size() > most ? fmt::format(" and {} more", others.size() - most) : "";
  others.resize(std::min(others.size(), most));
  fail(where,
       "a run keeps the settings it began with: {}{}; leave out the flags (or --preset) that say "
       "otherwise, or start a new run; only the steps or epochs of a run may grow{}",
       fmt::join(others, "; "), more, remedy);
}

void expect_settings_of_run(const fs::path& run, const RunSettings& now) {
  const fs::path file = run / "config.toml";
  if (!fs::exists(file)) return;
  expect_same_settings(settings_in(file, now.values), now, file.string(), way_out(run));
}

void expect_model_of_run(const fs::path& run, const std::string& model) {
  const fs::path file = run / "config.toml";
  if (!fs::exists(file)) return;
  const std::string began = settings_in(file, {{"model", model}}).value("model", model);
  std::error_code none;  // one of them may not exist any more
  const auto place = [&](const fs::path& p) { return fs::weakly_canonical(fs::absolute(p), none); };
  if (began == model) return;
  if (!began.empty() && !model.empty()) {
    const fs::path now = place(model);
    if (!now.empty() && now == place(started_in(run) / began)) return;
  }
  fail(file.string(),
       "a run keeps the model it began with: model = {}, not {}; leave out --model or start a new "
       "run{}",
       setting_text(began), setting_text(model), way_out(run));
}

void write_changes(const fs::path& run, const RunSettings& now) {
  const fs::path file = run / "config.toml";
  const json began = settings_in(file, now.values);
  const std::string before = read_file(file);
  std::string text = before;
  for (const auto& [key, setting] : now.values.items()) {
    const json is = setting, was = value_before(began, now, key);
    if (grew(key, was, is) || (free_in_every_run(key) && !same_setting(was, is)))
      text = with_toml_value(std::move(text), key, is.dump());
  }
  if (text != before) write_file_atomic(file, text);
}

}  // namespace hearth::inline formats
