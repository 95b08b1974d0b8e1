#include "cli/settings_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/flags.h"
#include "cli/synonyms.h"
#include "sys/error.h"

namespace hearth::inline cli {

std::vector<CLI::App*> subcommands(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}
std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

namespace {

// The table of a command in a settings file: "pretrain", "data.prepare".
std::string table_name(const CLI::App& command) {
  std::string name = command.get_name();
  for (const CLI::App* at = command.get_parent(); at && at->get_parent(); at = at->get_parent())
    name = at->get_name() + "." + name;
  return name;
}

// Whether a settings file may have tables for the command or for its subcommands.
bool takes_settings(const CLI::App& command) {
  return !subcommands(command).empty() || command.get_option_no_throw("--config");
}

// Adds the tables of all commands below `app`.
void add_tables(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::App* c : subcommands(app)) {
    const size_t before = names.size();
    add_tables(*c, names);
    if (names.size() == before && takes_settings(*c)) names.push_back(table_name(*c));
  }
}

// The tables that a user who wrote `table` most likely meant, such as "[pretrain]": one with
// another program's name for the command or a similar spelling, or those that it abbreviates.
// Empty: none, or too many to name.
std::string meant_tables(const std::string& table, const std::vector<std::string>& tables) {
  constexpr size_t most = 3;
  if (const std::string meant = meant_command(table, tables); !meant.empty())
    return "[" + meant + "]";
  std::vector<std::string> longer, by_last_name;
  for (const std::string& t : tables)
    if (t.starts_with(table))
      longer.push_back("[" + t + "]");
    else if (t.substr(t.rfind('.') + 1).starts_with(table))
      by_last_name.push_back("[" + t + "]");
  longer.insert(longer.end(), by_last_name.begin(), by_last_name.end());
  return longer.size() > most ? "" : fmt::format("{}", fmt::join(longer, " or "));
}

// [train] is short for [tokenizer.train], but who writes it for pretrain means [pretrain].
void expect_not_skipped(const CLI::App& command, const std::string& table,
                        const std::vector<std::string>& tables, const std::string& file) {
  if (table_name(command) != command_synonym(table)) return;
  std::vector<std::string> owners;
  for (const std::string& t : tables)
    if (t.ends_with("." + table)) owners.push_back("[" + t + "]");
  fail_usage(file, "expected [{}], got [{}], which is short for {}", table_name(command), table,
             fmt::join(owners, " and "));
}

// Whether the keys of a table are flags of this command. One file may serve several commands, so
// the tables of the others are skipped. A table that belongs to no command is an error.
bool is_table_of(const CLI::App& command, const std::string& table, const std::string& file) {
  const auto names = [&](const std::string& full) {
    return table == full || table == full.substr(full.rfind('.') + 1);
  };
  if (table.empty() || names(table_name(command))) return true;
  const CLI::App* root = &command;
  while (root->get_parent()) root = root->get_parent();
  std::vector<std::string> tables;
  add_tables(*root, tables);
  if (std::ranges::any_of(tables, names)) {
    expect_not_skipped(command, table, tables, file);
    return false;
  }
  if (const std::string meant = meant_tables(table, tables); !meant.empty())
    fail_usage(file, "expected a table named after a command, got [{}]; did you mean {}?", table,
               meant);
  std::string all;  // "data.*" stands for the commands of a group
  for (const CLI::App* c : subcommands(*root))
    if (takes_settings(*c))
      all += (all.empty() ? "" : ", ") + c->get_name() + (subcommands(*c).empty() ? "" : ".*");
  fail_usage(file, "expected a table named after a command ({}), got [{}]", all, table);
}

// `info` describes the model of a file that is written for pretrain, and skips what it asks for
// beside the model.
const CLI::App* described_by(const CLI::App& command) {
  if (command.get_name() != "info") return nullptr;
  for (const CLI::App* c : subcommands(*command.get_parent()))
    if (c->get_name() == "pretrain") return c;
  return nullptr;
}

// Whether `info` reads this setting as pretrain's recipe: its own --recipe prints one.
bool is_described_recipe(const CLI::App& command, const TomlItem& item) {
  const CLI::App* other = described_by(command);
  return other && item.key == "recipe" &&
         (item.section.empty() || item.section == table_name(*other));
}

}  // namespace

std::string described_recipe(const CLI::App& command, const std::vector<TomlItem>& settings) {
  for (const TomlItem& item : settings)
    if (is_described_recipe(command, item) && !item.values.empty()) return item.values[0];
  return {};
}

std::vector<TomlItem> settings_for(const CLI::App& command, const std::vector<TomlItem>& all,
                                   const std::string& file) {
  const CLI::App* other = described_by(command);
  const auto names = [&](const char* key) {
    return std::ranges::any_of(all, [&](const TomlItem& item) { return item.key == key; });
  };
  std::vector<TomlItem> own;
  for (const TomlItem& item : all) {
    if (!is_table_of(command, item.section, file) &&
        !(other && is_table_of(*other, item.section, file)))
      continue;
    const std::string flag = flag_name(item.key);
    const bool known = command.get_option_no_throw(flag);
    if (other && !known && other->get_option_no_throw(flag)) continue;
    if (is_described_recipe(command, item)) continue;
    // A run that continues another model has the shape of that model among its own settings.
    if (other && item.key == "model" && names("dim")) continue;
    own.push_back(item);
  }
  return own;
}

}  // namespace hearth::inline cli
