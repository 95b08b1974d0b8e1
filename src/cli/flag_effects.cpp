#include "cli/flag_effects.h"

#include <algorithm>
#include <cstdlib>

#include "cli/flags.h"
#include "optim/muon.h"
#include "sys/error.h"

namespace hearth::inline cli {

std::string value_of(const std::vector<std::string>& args, const std::string& flag) {
  std::string value;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with(flag + "=")) value = args[i].substr(flag.size() + 1);
    if (args[i] == flag && i + 1 < args.size()) value = args[i + 1];
  }
  return value;
}

namespace {

// A name as enums have it: wsd-sqrt is wsd_sqrt.
std::string last_name(const std::vector<std::string>& args, const std::string& flag) {
  std::string name = value_of(args, flag);
  std::ranges::replace(name, '-', '_');
  return name;
}

// 0 if the flag is absent or its value is no number, which is an error of its own.
double number(const std::vector<std::string>& args, const std::string& flag) {
  return std::strtod(value_of(args, flag).c_str(), nullptr);
}

// The flags that give a training command its validation data: "--val or --holdout".
std::string validation_flags(const CLI::App& command) {
  std::string all;
  for (const std::string flag : {"--val", "--holdout", "--eval-data"})
    if (command.get_option_no_throw(flag)) all += (all.empty() ? "" : " or ") + flag;
  return all;
}

bool validates(const std::vector<std::string>& args) {
  return !value_of(args, "--val").empty() || !value_of(args, "--eval-data").empty() ||
         number(args, "--holdout") > 0;
}

void expect_length(const AskedFlags& f) {
  const std::string steps = value_of(f.args, "--steps");
  if (f.asked.contains("--epochs") && !steps.empty() && steps != "0")
    fail_usage("--epochs", "has no effect: the length of the run is --steps {}; leave {}", steps,
               f.of_run ? "it out, or extend the run by a larger --steps" : "one of them out");
}

void expect_muon(const AskedFlags& f) {
  const std::string optimizer = last_name(f.args, "--optimizer");
  if (optimizer == "muon" || optimizer == "normuon") return;
  MuonConfig().visit([&](const std::string& name, const auto&, const char*) {
    const std::string flag = flag_name(name);
    if (f.asked.contains(flag))
      fail_usage(flag, "has no effect: only --optimizer muon and normuon use it; leave it out");
  });
}

// A target that no validation can reach would never stop the run.
void expect_validation(const CLI::App& command, const AskedFlags& f) {
  if (validates(f.args)) return;
  const std::string data = validation_flags(command);
  if (number(f.args, "--target-loss") > 0 && (!f.of_run || f.asked.contains("--target-loss")))
    fail_usage("--target-loss", "expected {} with it, got none", data);
  if (!f.of_run && f.asked.contains("--eval-every") && number(f.args, "--eval-every") > 0)
    fail_usage("--eval-every",
               "has no effect: there is no validation data; leave it out, or give {}", data);
}

// The other settings of a new run. A resumed run may be given those that it began with.
void expect_used(const AskedFlags& f) {
  const auto refuse = [&](const char* flag, bool useless, const char* why) {
    if (useless && f.asked.contains(flag)) fail_usage(flag, "has no effect: {}; leave it out", why);
  };
  const std::string schedule = last_name(f.args, "--schedule");
  refuse("--decay-steps",
         number(f.args, "--decay-steps") > 0 && schedule != "wsd" && schedule != "wsd_sqrt",
         "only --schedule wsd and wsd_sqrt use it");
  refuse("--adam-eps", last_name(f.args, "--optimizer") == "lion",
         "--optimizer lion does not use it");
  refuse("--sample-prompt", number(f.args, "--sample-every") == 0,
         "without --sample-every there are no samples");
  refuse("--kl", number(f.args, "--beta") == 0, "there is no KL penalty without --beta");
}

}  // namespace

void expect_effect(const CLI::App& command, const AskedFlags& flags) {
  for (const char* help : {"--help", "-h"})
    if (std::ranges::find(flags.args, help) != flags.args.end()) return;
  expect_length(flags);
  expect_muon(flags);
  if (!command.get_option_no_throw("--resume")) return;  // not a training command
  expect_validation(command, flags);
  if (!flags.of_run) expect_used(flags);
}

}  // namespace hearth::inline cli
