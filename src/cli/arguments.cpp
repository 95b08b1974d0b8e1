#include "cli/arguments.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "cli/environment.h"
#include "cli/flag_effects.h"
#include "cli/flags.h"
#include "cli/recipes.h"
#include "cli/settings_tables.h"
#include "cli/start_folder.h"
#include "cli/synonyms.h"
#include "formats/json.h"
#include "formats/toml.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

// The command that the arguments name, at any depth of subcommands.
CLI::App* find_command(CLI::App& app, const std::vector<std::string>& given) {
  CLI::App* at = &app;
  for (const std::string& a : given) {
    const std::vector<CLI::App*> subs = subcommands(*at);
    const auto it =
        std::find_if(subs.begin(), subs.end(), [&](CLI::App* s) { return s->get_name() == a; });
    if (it == subs.end()) break;
    at = *it;
  }
  return at;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* o : command.get_options())
    for (const std::string& l : o->get_lnames()) names.push_back("--" + l);
  return names;
}

std::string name_in(const std::string& argument) { return argument.substr(0, argument.find('=')); }

struct ConfigFile {
  std::string path;  // empty: none
  bool of_run = false;
};

// The config.toml of the run that --resume continues.
ConfigFile file_of_run(const CLI::App& command, const std::vector<std::string>& given) {
  if (!command.get_option_no_throw("--resume")) return {};
  const bool resumes = std::any_of(given.begin(), given.end(), [](const std::string& a) {
    return name_in(a) == "--resume" && a != "--resume=false";
  });
  const std::string run = value_of(given, "--run");
  if (!resumes || run.empty()) return {};
  const std::filesystem::path saved = std::filesystem::path(run) / "config.toml";
  if (std::filesystem::exists(saved)) return {saved.string(), true};
  // With --data this call can start a new run: restartable jobs always pass --resume.
  if (value_of(given, "--data").empty())
    fail(run,
         "there is no run to resume: {} does not exist; check --run, or give --data to start one",
         saved.string());
  say("hearth: {} contains no run yet; starting a new one\n", run);
  return {};
}

bool is_switch(const CLI::App& command, const std::string& flag) {
  const CLI::Option* o = command.get_option_no_throw(flag);
  return o && o->get_expected_max() == 0;
}

// Normalises a boolean to "true" or "false". `where` names the source of the value.
std::string truth(const std::string& value, const std::string& where) {
  for (const char* yes : {"true", "1", "yes", "on"})
    if (value == yes) return "true";
  for (const char* no : {"false", "0", "no", "off"})
    if (value == no) return "false";
  fail_usage(where, "expected true or false (or 1, yes, on, 0, no, off), got {}", in_quotes(value));
}

// `where` names the environment variable or file that the values come from.
void append(std::vector<std::string>& args, const CLI::App& command, const std::string& flag,
            const std::vector<std::string>& values, const std::string& where) {
  const CLI::Option* o = command.get_option_no_throw(flag);
  if (is_switch(command, flag)) {
    args.push_back(flag + "=" + truth(values.at(0), where));
    return;
  }
  if (values.size() == 1 && o->get_expected_max() == 1) {
    args.push_back(flag + "=" + values[0]);
    return;
  }
  for (const std::string& v : values) args.push_back(flag), args.push_back(v);
}

// CLI11 would take the next flag for the value that a flag lacks. `--flag=--other` is a value.
void expect_values(const CLI::App& command, const std::vector<std::string>& given) {
  const std::vector<std::string> known = flag_names(command);
  for (size_t i = 0; i < given.size(); ++i) {
    const CLI::Option* o =
        given[i].starts_with("--") ? command.get_option_no_throw(given[i]) : nullptr;
    if (!o || o->get_expected_min() < 1) continue;
    if (i + 1 == given.size()) fail_usage(given[i], "needs a value: {}", o->get_description());
    const std::string next = name_in(given[++i]);
    if (std::ranges::find(known, next) != known.end())
      fail_usage(given[i - 1], "needs a value, got the flag {}: {}", next, o->get_description());
  }
}

// `--flag=` as `--flag ''`: CLI11 would take the next argument for the value. It takes an empty
// text for the number 0, which is refused here.
std::vector<std::string> with_empty_values(const CLI::App& command,
                                           const std::vector<std::string>& given) {
  std::vector<std::string> args;
  for (const std::string& a : given) {
    const std::string flag = name_in(a);
    const CLI::Option* o = flag.starts_with("--") && flag.size() + 1 == a.size()
                               ? command.get_option_no_throw(flag)
                               : nullptr;
    args.push_back(o && o->get_expected_min() > 0 ? flag : a);
    if (args.back() != a) args.emplace_back();
  }
  for (size_t i = 1; i < args.size(); ++i) {
    const std::string& flag = args[i - 1];
    const CLI::Option* o =
        args[i].empty() && flag.starts_with("--") ? command.get_option_no_throw(flag) : nullptr;
    if (o && !o->get_type_name().starts_with("TEXT") && o->get_expected_min() > 0)
      fail_usage(flag, "needs a value: {}", o->get_description());
  }
  return args;
}

constexpr const char* trust_flag = "--trust-programs";

// The program that a setting would make hearth run; empty: none.
std::string program_in(const std::string& flag, const std::string& value) {
  constexpr std::string_view prefix = "program:";
  if (flag == "--reward" && value.starts_with(prefix)) return value.substr(prefix.size());
  if (flag == "--stockfish" && value != "auto" && value != "none") return value;
  return {};
}

// A settings file, including the config.toml of a run folder, may come from a stranger, so the
// programs it may start must be confirmed on the command line.
void expect_trusted(const CLI::App& command, const std::string& file, const std::string& flag,
                    const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    const std::string program = program_in(flag, value);
    if (program.empty()) continue;
    const std::string shown =
        nlohmann::json(program).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    // An error has one line. A command too long to show in full must not be trusted by its
    // beginning.
    if (shown.size() > 200)
      fail_usage(file,
                 "this file asks to run a program whose command has {} characters, too long to "
                 "show here: read it in the file, then pass {} on the command line",
                 program.size(), flag);
    const bool has_flag = command.get_option_no_throw(trust_flag) != nullptr;
    fail_usage(file, "this file asks to run the program {}: {}pass {} on the command line", shown,
               has_flag ? std::string("allow it with ") + trust_flag + ", or " : "", flag);
  }
}

bool trusts_programs(const std::vector<std::string>& args) {
  return std::any_of(args.begin(), args.end(), [](const std::string& a) {
    return a == trust_flag || a == std::string(trust_flag) + "=true";
  });
}

// meant_flag() spelled as a key of a settings file.
std::string meant_key(const std::string& flag, const CLI::App& command) {
  std::string meant = meant_flag(flag, command);
  if (meant.empty()) return meant;
  meant.erase(0, 2);
  std::replace(meant.begin(), meant.end(), '-', '_');
  return meant;
}

// "hearth tokenizer train"
std::string full_name(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* at = command.get_parent(); at; at = at->get_parent())
    path = at->get_name() + " " + path;
  return path;
}

// The end of an error about an unknown flag: the most likely flag, or how to list all of them.
std::string remedy(const std::string& meant, const CLI::App& command) {
  if (!meant.empty()) return fmt::format("did you mean {}?", meant);
  return fmt::format("{} --help lists them", full_name(command));
}

// A misspelled command is an error before its flags are, also with --help.
void expect_command(const CLI::App& command, const std::vector<std::string>& given) {
  std::vector<std::string> names;
  for (const CLI::App* s : subcommands(command)) names.push_back(s->get_name());
  size_t depth = 0;  // words of `given` that name the command
  for (const CLI::App* at = command.get_parent(); at; at = at->get_parent()) ++depth;
  if (names.empty() || depth >= given.size() || given[depth].starts_with("-")) return;
  fail_usage(command.get_name(), "expected a command, got {}; {}", in_quotes(given[depth]),
             remedy(meant_command(given[depth], names), command));
}

std::string quoted_for_shell(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("_-./:=,+@%").find(char(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// The flag that a stray argument most likely belongs to: a settings file, a model, or a prompt.
std::string flag_for_stray(const CLI::App& command, const std::string& argument) {
  if (argument.ends_with(".toml")) return "--config";
  for (const char* flag : {"--model", "--prompt"})
    if (const CLI::Option* o = command.get_option_no_throw(flag); o && o->count() == 0) return flag;
  return {};
}

// Names the first argument that a command without subcommands cannot take.
void explain_leftover(const CLI::App& command) {
  const std::vector<std::string> left = command.remaining();
  for (const std::string& a : left) {
    const std::string flag = name_in(a);
    if (!a.starts_with("-") || flag == "-" || flag == "--") continue;
    const std::string meant =
        a.starts_with("--") ? meant_flag(flag, command) : meant_by_short(flag, command);
    fail_usage(command.get_name(), "expected a known flag, got {}; {}", flag,
               remedy(meant, command));
  }
  if (left.empty()) return;
  const std::string flag = flag_for_stray(command, left[0]);
  fail_usage(command.get_name(), "{} takes no argument without a flag, got {}; {}",
             full_name(command), left[0],
             remedy(flag.empty() ? flag : flag + " " + quoted_for_shell(left[0]), command));
}

// Names the missing flag, taken from CLI11's "--model is required".
[[noreturn]] void explain_required(CLI::App& command, const std::string& text) {
  const std::string where = command.get_name();
  if (const std::vector<CLI::App*> subs = subcommands(command); !subs.empty()) {
    std::string names;
    for (const CLI::App* s : subs) names += (names.empty() ? "" : ", ") + s->get_name();
    fail_usage(where, "{} needs a command: {}", full_name(command), names);
  }
  const size_t end = text.find(" is required");
  fail_usage(where, "{} needs {}; {} --help lists the flags", full_name(command),
             text.substr(0, end), full_name(command));
}

// The command that a run's settings belong to: the one that can resume and has all of the flags.
// Null if there is none or more than one.
const CLI::App* command_of_run(const CLI::App& command, const std::vector<TomlItem>& settings) {
  const CLI::App* found = nullptr;
  const CLI::App& parent = *command.get_parent();
  for (const CLI::App* c : subcommands(parent)) {
    const bool knows_all = std::ranges::all_of(settings, [&](const TomlItem& item) {
      return c->get_option_no_throw(flag_name(item.key)) != nullptr;
    });
    if (!knows_all || !c->get_option_no_throw("--resume")) continue;
    if (found) return nullptr;
    found = c;
  }
  return found;
}

[[noreturn]] void refuse_setting(const CLI::App& command, const ConfigFile& config,
                                 const std::vector<TomlItem>& settings, const TomlItem& item) {
  if (const CLI::App* owner = config.of_run ? command_of_run(command, settings) : nullptr) {
    const std::string run = std::filesystem::path(config.path).parent_path().string();
    fail_usage(command.get_name(), "{} is a run of {}: hearth {} --run {} --resume", run,
               owner->get_name(), owner->get_name(), quoted_for_shell(run));
  }
  fail_usage(config.path, "expected a flag of {}, got {}; {}", command.get_name(),
             in_quotes(item.key), remedy(meant_key(flag_name(item.key), command), command));
}

// Appends the settings that `seen` does not have yet; `config` says where they come from.
void append_settings(std::vector<std::string>& args, std::set<std::string>& seen,
                     const CLI::App& command, const ConfigFile& config,
                     const std::vector<TomlItem>& settings) {
  const std::string& file = config.path;
  const std::vector<std::string> known = flag_names(command);
  const bool trusted = trusts_programs(args);
  // With --resume, --preset is checked against the run's model instead of being filled in from it.
  const bool own_model = config.of_run && seen.contains("--preset");
  for (const TomlItem& item : settings_for(command, settings, file)) {
    const std::string flag = flag_name(item.key);
    if (std::find(known.begin(), known.end(), flag) == known.end())
      refuse_setting(command, config, settings, item);
    if (own_model && command.get_option_no_throw(flag)->get_group() == model_group) continue;
    // An empty list or string stands for a flag that was not given.
    if (item.values.empty() || (item.values.size() == 1 && item.values[0].empty())) continue;
    if (flag == trust_flag)
      fail_usage(file, "{} is allowed only on the command line, not in a file", trust_flag);
    if (item.values.size() > 1 && command.get_option_no_throw(flag)->get_items_expected_max() <= 1)
      fail_usage(file, "expected one value for {}, got a list of {}", item.key, item.values.size());
    if (!seen.insert(flag).second) continue;
    if (!trusted) expect_trusted(command, file, flag, item.values);
    append(args, command, flag, item.values, fmt::format("{}: {}", file, item.key));
  }
}

// The recipe that a command which takes one is given; empty: none.
std::string recipe_in(const CLI::App& command, const std::vector<std::string>& args) {
  const CLI::Option* o = command.get_option_no_throw("--recipe");
  return o && o->get_group() == recipe_group ? value_of(args, "--recipe") : std::string();
}

// The flag at the beginning of a parser error; null: there is none.
const CLI::Option* flag_in(const CLI::App& command, const std::string& text) {
  const std::string flag = text.substr(0, text.find_first_of(" :="));
  return flag.starts_with("--") ? command.get_option_no_throw(flag) : nullptr;
}

// The limit that a whole number exceeds because the flag's type is too narrow for it; empty: the
// text is no such number. What 64 bits can hold was too much for 32.
std::string width_limit(const std::string& value, bool is_unsigned) {
  int64_t wide = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), wide);
  if (end != value.data() + value.size() || value.empty()) return {};
  if (error == std::errc{} && wide < 0) return is_unsigned ? " of 0 or more" : "";
  if (error == std::errc{})
    return fmt::format(" of at most {}", is_unsigned ? UINT32_MAX : INT32_MAX);
  return is_unsigned ? fmt::format(" of at most {}", UINT64_MAX)
                     : fmt::format(" from {} to {}", INT64_MIN, INT64_MAX);
}

// Names the values that a flag takes, which CLI11 does not, for a text that is no such number:
// "Could not convert: --steps = abc". Returns if the error is another one.
void explain_value(const CLI::App& command, const std::string& text) {
  constexpr std::string_view converts = "Could not convert: ";
  const std::string rest = text.starts_with(converts) ? text.substr(converts.size()) : "";
  const CLI::Option* o = flag_in(command, rest);
  if (!o) return;
  const std::string flag = "--" + o->get_lnames()[0];
  const std::string type = o->get_type_name();  // "INT:0 to 4096"
  const std::string value = rest.substr(std::min(rest.find(" = ") + 3, rest.size()));
  const bool whole = type.starts_with("INT") || type.starts_with("UINT");
  const size_t range = type.find(':');
  std::string expected = whole ? "a whole number" : "a number";
  if (range != type.npos) expected += " (" + type.substr(range + 1) + ")";
  if (whole) expected += width_limit(value, type.starts_with("UINT"));
  fail_usage(flag, "expected {}, got {}", expected, in_quotes(value));
}

}  // namespace

void allow_config_files(CLI::App& app) {
  for (CLI::App* s : subcommands(app)) {
    allow_config_files(*s);
    if (subcommands(*s).empty())
      s->add_option("--config",
                    "TOML file with flags; the command line and HEARTH_* variables override it")
          ->type_name("FILE");
  }
}

std::vector<std::string> merge_arguments(CLI::App& app, const std::vector<std::string>& given) {
  CLI::App* command = find_command(app, given);
  expect_command(*command, given);
  if (command == &app || !subcommands(*command).empty()) return given;
  expect_values(*command, given);
  std::set<std::string> seen;
  for (const std::string& a : given) {
    if (!a.starts_with("--")) continue;
    std::string flag = name_in(a);
    if (flag.starts_with("--no-")) flag = "--" + flag.substr(5);
    seen.insert(flag);
  }
  std::vector<std::string> args = with_empty_values(*command, given);
  for (std::string& a : args)
    if (const size_t at = a.find('='); a.starts_with("--") && at != a.npos)
      if (const std::string flag = a.substr(0, at); is_switch(*command, flag))
        a = flag + "=" + truth(a.substr(at + 1), flag);
  for (const std::string& flag : flag_names(*command)) {
    const char* value = flag.starts_with("--no-") || flag == "--help" || flag == "--config"
                            ? nullptr
                            : std::getenv(environment_name(flag).c_str());
    if (value && *value && seen.insert(flag).second)
      append(args, *command, flag, {value}, environment_name(flag));
  }
  const std::set<std::string> asked = seen;
  const ConfigFile file{.path = value_of(args, "--config")};
  std::string name = recipe_in(*command, args);
  if (!file.path.empty()) {
    const std::vector<TomlItem> settings = read_toml(file.path);
    append_settings(args, seen, *command, file, settings);
    name = described_recipe(*command, settings);
    if (name.empty()) name = recipe_in(*command, args);
  }
  if (!name.empty()) {
    const ConfigFile recipe{.path = "recipe " + name};
    append_settings(args, seen, *command, recipe, parse_toml(recipe_named(name).toml, recipe.path));
  }
  // The settings of a run that is resumed come last: those of files have to agree with them, as
  // flags do.
  ConfigFile run = file_of_run(*command, args);
  if (run.of_run) {
    if (go_to_start_folder(value_of(args, "--run"), args))
      run.path = (std::filesystem::path(value_of(args, "--run")) / "config.toml").string();
    if (!file.path.empty())
      say("hearth: settings from {}; those that it does not name from {}\n", file.path, run.path);
    append_settings(args, seen, *command, run, read_toml(run.path));
  }
  expect_effect(*command, {.args = args, .asked = asked, .of_run = run.of_run});
  return args;
}

void explain_parse_error(CLI::App& app, const std::vector<std::string>& given,
                         const CLI::ParseError& e) {
  CLI::App* command = find_command(app, given);
  const std::string where = command == &app ? "hearth" : command->get_name();
  if (dynamic_cast<const CLI::ExtrasError*>(&e) || dynamic_cast<const CLI::RequiredError*>(&e)) {
    if (subcommands(*command).empty()) explain_leftover(*command);
    const std::vector<std::string> known = flag_names(*command);
    for (const std::string& a : given) {
      const std::string flag = name_in(a);
      if (!a.starts_with("--") || a == "--") continue;
      if (std::find(known.begin(), known.end(), flag) == known.end())
        fail_usage(where, "expected a known flag, got {}; {}", flag,
                   remedy(meant_flag(flag, *command), *command));
    }
  }
  std::string text = e.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (dynamic_cast<const CLI::RequiredError*>(&e)) explain_required(*command, text);
  explain_value(*command, text);
  fail_usage(where, "{}; {} --help explains the flags", text, full_name(*command));
}

std::string resume_command(CLI::App& app, const std::vector<std::string>& given,
                           const std::string& program) {
  const CLI::App* command = find_command(app, given);
  std::string text = quoted_for_shell(program);
  const CLI::Option* resume = command->get_option_no_throw("--resume");
  const bool resumes = resume;
  if (resumes && resume->count() > 0) {  // the same call continues the run again
    for (const std::string& a : given) text += " " + quoted_for_shell(a);
    return text;
  }
  for (const CLI::App* at = &app; at != command;) {
    at = at->get_subcommands().front();
    text += " " + at->get_name();
  }
  // Flags that the run's config.toml does not store. A command without --resume continues by
  // itself.
  const std::set<std::string> kept_by_caller{"--run", "--device", "--threads", "--memory-limit",
                                             "--json"};
  bool runs_programs = false;
  for (const CLI::Option* o : command->get_options()) {
    const std::string flag = "--" + (o->get_lnames().empty() ? "" : o->get_lnames()[0]);
    for (const std::string& v : o->results()) runs_programs |= !program_in(flag, v).empty();
    if (o->count() == 0 || (resumes && !kept_by_caller.contains(flag))) continue;
    text += " " + flag;
    if (o->get_expected_max() > 0)
      for (const std::string& v : o->results()) text += " " + quoted_for_shell(v);
  }
  if (runs_programs && resumes) text += std::string(" ") + trust_flag;
  if (!resumes) return text;
  const std::string run = command->get_option("--run")->as<std::string>();
  return std::filesystem::exists(run + "/config.toml") ? text + " --resume" : "";
}

}  // namespace hearth::inline cli
