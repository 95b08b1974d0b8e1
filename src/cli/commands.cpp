// The command line. Flags override the environment, which overrides the --config file, which
// overrides defaults. Values from environment and file become arguments, so one parser checks all.
#include "cli/commands.h"

#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "cli/arguments.h"
#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/signals.h"
#include "cli/synonyms.h"
#include "infer/engine.h"
#include "sys/build_info.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"

namespace hearth::inline cli {

namespace {

// `expected` describes the good values. A text that is no number passes: its conversion is what
// fails, with an error of its own.
template <class Good>
CLI::Validator number_check(const std::string& expected, Good good) {
  return {[=](std::string& text) -> std::string {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value) || good(value)) return {};
            return fmt::format("expected {}, got {}", expected, text);
          },
          expected};
}

// `help` and `version` are listed here and turned into flags by with_help_flags().
void add_help(CLI::App& app) {
  app.add_subcommand("help", "print the help of hearth or of a command: hearth help data get");
  app.add_subcommand("version", "print the version");
}

// `help data get` and `data get help` as `data get --help`, and `version` as `--version`.
std::vector<std::string> with_help_flags(const CLI::App& app, std::vector<std::string> given) {
  if (given.empty()) return given;
  if (given[0] == "version") given[0] = "--version";
  const bool first = given[0] == "help";
  if (first) given.erase(given.begin());
  size_t words = 0;  // those that name the command
  for (const CLI::App* at = &app; words < given.size(); ++words) {
    const auto named =
        at->get_subcommands([&](const CLI::App* c) { return c->get_name() == given[words]; });
    if (named.empty()) break;
    at = named[0];
  }
  const bool last = words > 0 && words + 1 == given.size() && given[words] == "help";
  // Flags beside a command do not change its help, and might lack their values.
  if (last || (first && words < given.size() && given[words].starts_with('-'))) given.resize(words);
  if (first || last) given.push_back("--help");
  return given;
}

// Puts the flag in place of the field that it sets, wherever the text of an error about a model
// means the field. A name of one word is often a noun ("got 4 heads"), so it is a field only at the
// beginning.
void name_flag(std::string& text, const std::string& field, const std::string& flag) {
  const auto in_word = [&](size_t i) {
    return i < text.size() && (std::isalnum(uint8_t(text[i])) || text[i] == '_' || text[i] == '-');
  };
  const bool anywhere = field == "dim" || field.find('_') != field.npos;
  for (size_t at = text.find(field); at != text.npos; at = text.find(field, at + 1)) {
    const std::string before = text.substr(0, at);
    const bool subject = before.empty() || before == "expected " || before == "expected a ";
    if ((at > 0 && in_word(at - 1)) || in_word(at + field.size()) || !(anywhere || subject))
      continue;
    text.replace(at, field.size(), flag);
    at += flag.size() - 1;
  }
}

// The text of an error about a model, with flags in place of fields: `--kv-heads` for `kv_heads`.
// A field that a settings file has set keeps the name that it has there.
std::string with_flag_names(std::string text, const CLI::App& command,
                            const std::vector<std::string>& given) {
  const auto was_given = [&](const std::string& flag) {
    return std::ranges::any_of(
        given, [&](const std::string& a) { return a.substr(0, a.find('=')) == flag; });
  };
  for (const CLI::Option* o : command.get_options()) {
    if (o->get_group() != model_group) continue;
    const std::string name = o->get_lnames()[0], off = "--no-" + name;
    std::string field = name, flag = "--" + name;
    std::ranges::replace(field, '-', '_');
    if (was_given(off))
      flag = off;
    else if (!was_given(flag) && (o->count() > 0 || field == name))
      continue;
    name_flag(text, field, flag);
  }
  return text;
}

bool sets_model(const CLI::App& command) {
  return std::ranges::any_of(command.get_options(), [](const CLI::Option* o) {
    return o->get_group() == model_group && o->count() > 0;
  });
}

// Whether an error with the label of this flag is about its value, though it could as well be about
// a file: of the same things in files, or of the file that the flag names.
bool is_value_of(const CLI::Option& o) {
  static const std::set<std::string> values{"fen", "uci", "lora"};
  return values.contains(o.get_lnames()[0]) && o.results().back() != "-";
}

// Rethrows the error that is being handled, labelled [--top-p] instead of [top_p] if that flag gave
// the value. An error about a model, which says [model], names its flags, and is a wrong value if
// they describe the model.
[[noreturn]] void rethrow_with_flag(const CLI::App& app, const Error& e,
                                    const std::vector<std::string>& given) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands()[0];
  const std::string text = e.what();  // "[top_p] expected .."
  const size_t end = text.find("] ");
  if (end == text.npos) throw;
  const std::string label = text.substr(1, end - 1), what = text.substr(end + 2);
  if (!e.usage() && label == "model" && sets_model(*command))
    throw Error(label, with_flag_names(what, *command, given), true);
  // An error that is about a flag is a wrong value, whichever check finds it.
  if (!e.usage() && label.starts_with("--") && command->get_option_no_throw(label))
    throw Error(label, what, true);
  const std::string flag = flag_name(label);
  const CLI::Option* o = command->get_option_no_throw(flag);
  if (!o || o->count() == 0 || !(e.usage() || is_value_of(*o))) throw;
  throw Error(flag, what, true);
}

}  // namespace

CLI::Validator at_least(int64_t least) {
  return number_check(fmt::format("{} or more", least),
                      [least](double x) { return x >= double(least); });
}

CLI::Validator above_zero() {
  return number_check("a number above 0", [](double x) { return x > 0; });
}

CLI::Validator between(double least, double most) {
  return number_check(fmt::format("{} to {}", least, most),
                      [=](double x) { return x >= least && x <= most; });
}

void add_force(CLI::App& app, bool& to) { app.add_flag("--force", to, "overwrite existing files"); }

void expect_new(const std::filesystem::path& file, bool force) {
  if (!force && std::filesystem::exists(file))
    fail(file.string(), "this file exists: choose another place, or --force to overwrite it");
}

void expect_writable(const std::filesystem::path& file) {
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  const std::vector<std::filesystem::path> missing = missing_dirs(folder);
  make_dirs(folder);
  { const AtomicFile probe(file); }  // removed again
  for (const auto& at : missing) std::filesystem::remove(at, unknown);
}

void add_common(CLI::App& app, Common& c) {
  app.add_option("--device", c.device, "device: auto, cpu or cuda[:i]")->capture_default_str();
  app.add_option("--threads", c.threads, "CPU threads; 0: one per core")
      ->capture_default_str()
      ->check(between(0, 4096));
  app.add_option("--memory-limit", c.memory_limit, "maximum GPU memory in GiB; 0: all that is free")
      ->capture_default_str()
      ->check(between(0, 1 << 20));
  app.add_flag("--json", c.json, "print one JSON object (or JSON lines) on stdout");
}

void add_adapter(CLI::App& app, std::string& adapter) {
  app.add_option("--adapter", adapter,
                 "adapter to apply to the model: PEFT folder, checkpoint or run");
}

// A signal may interrupt a write to a slow terminal; the loop writes the rest.
void put(std::string_view text) {
  while (!text.empty()) {
    errno = 0;
    text.remove_prefix(std::fwrite(text.data(), 1, text.size(), stdout));
    if (text.empty()) return;
    if (errno != EINTR) fail("stdout", "writing the last {} bytes failed", text.size());
    std::clearerr(stdout);
  }
}

void flush() {
  const auto wrote = [] { return std::fflush(stdout) == 0 && !std::ferror(stdout); };
  for (errno = 0; !wrote(); errno = 0) {
    if (errno != EINTR) fail("stdout", "writing failed");
    std::clearerr(stdout);
  }
}

void put_text(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO);
  if (terminal)
    put(visible(text));
  else
    put(text);
}

void put_result(std::string_view text) {
  if (reader_is_gone(STDOUT_FILENO)) return;
  put(text);
  flush();
}

void say_long_rope(const ModelConfig& config, int64_t tokens) {
  const std::string note = long_rope_note(for_length(config, tokens));
  if (!note.empty()) say("hearth: {}\n", note);
}

bool say_if_clipped(const Completion& c, int64_t asked, int64_t context) {
  if (c.finish_reason != "length" || int64_t(c.tokens.size()) >= asked) return false;
  say("hearth: --max-tokens {} was cut to {}: the model's context of {} tokens is full\n", asked,
      c.tokens.size(), context);
  return true;
}

std::string json_line(const nlohmann::ordered_json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void print_json(const nlohmann::ordered_json& j) { put(json_line(j)); }

namespace {

// `again`: the command that continues; empty: there is nothing to continue.
void say_stopped(const StoppedBySignal& s, const std::string& again) {
  const std::string end = !s.instead.empty() ? "; " + s.instead
                          : again.empty()    ? " before the run began; nothing was saved"
                                             : "; to continue:\n  " + again;
  say("hearth: stopped by SIG{}{}\n", sigabbrev_np(s.signal), end);
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app(
      "hearth trains, fine-tunes, evaluates and serves language models on your own machine.",
      "hearth");
  app.require_subcommand(1);
  app.set_version_flag("--version", build_info().version);
  add_info(app);
  add_tokenizer(app);
  add_data(app);
  add_pretrain(app);
  add_generate(app);
  add_chat(app);
  add_serve(app);
  add_board(app);
  add_plot(app);
  add_bench(app);
  add_quickstart(app);
  add_doctor(app);
  add_convert(app);
  add_eval(app);
  add_chess(app);
  add_grpo(app);
  add_sft(app);
  add_dpo(app);
  allow_config_files(app);
  allow_type_synonyms(app);
  add_help(app);

  const std::vector<std::string> given = with_help_flags(app, {argv + 1, argv + argc});
  if (given.empty()) {  // the first call of many users
    put(app.help());
    flush();
    return 2;
  }
  warn_about_unknown_variables(app);
  std::vector<std::string> args = merge_arguments(app, given);
  std::reverse(args.begin(), args.end());  // CLI11 expects reverse order
  int code = 0;
  try {
    app.parse(args);
  } catch (const StoppedBySignal& s) {
    say_stopped(s, s.instead.empty() ? resume_command(app, given, argv[0]) : "");
    code = 128 + s.signal;
  } catch (const Error& e) {
    rethrow_with_flag(app, e, given);
  } catch (const CLI::CallForVersion&) {
    put(fmt::format("hearth {}\n", build_info().version));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) explain_parse_error(app, given, e);
    app.exit(e);  // help
  }
  flush();  // a full disk is an error, not a shorter output
  return code;
}

}  // namespace hearth::inline cli
