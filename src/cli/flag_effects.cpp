#include "cli/flag_effects.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "cli/flags.h"
#include "model/config.h"
#include "optim/optimizer.h"
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

// Of a boolean flag; the last spelling counts.
bool is_on(const std::vector<std::string>& args, const std::string& flag) {
  bool on = false;
  for (const std::string& a : args) {
    if (a == flag || a == flag + "=true") on = true;
    if (a == flag + "=false" || a == "--no-" + flag.substr(2)) on = false;
  }
  return on;
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

// Whether a flag has the value that turns it off, however it is written: 1 and 1.0 are the same.
bool is_off(const std::vector<std::string>& args, const std::string& flag, double off) {
  const std::string value = value_of(args, flag);
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  return !value.empty() && *end == '\0' && number == off;
}

// Beam search takes the most likely beams. Penalties and the logit bias change what is likely.
void expect_samples(const AskedFlags& f) {
  if (number(f.args, "--beams") <= 1) return;
  constexpr double never = std::numeric_limits<double>::quiet_NaN();
  std::string useless;
  for (const auto& [flag, off] : {std::pair{"--temperature", 0.0},
                                  {"--top-k", 0.0},
                                  {"--top-p", 1.0},
                                  {"--min-p", 0.0},
                                  {"--seed", never}})
    if (f.asked.contains(flag) && !is_off(f.args, flag, off))
      useless += (useless.empty() ? "" : ", ") + std::string(flag);
  if (!useless.empty())
    fail_usage("--beams",
               "beam search draws no samples, so {} would have no effect; leave out "
               "--beams or the flags of sampling",
               useless);
}

// A target that no validation can reach would never stop the run.
void expect_validation(const CLI::App& command, const AskedFlags& f) {
  if (validates(f.args)) return;
  const std::string data = validation_flags(command);
  if (number(f.args, "--target-loss") > 0 && (!f.of_run || f.asked.contains("--target-loss")))
    fail_usage("--target-loss", "expected {} with it, got none", data);
  if (f.of_run) return;
  const auto refuse = [&](const char* flag, bool set) {
    if (set && f.asked.contains(flag))
      fail_usage(flag, "has no effect: there is no validation data; leave it out, or give {}",
                 data);
  };
  refuse("--eval-every", number(f.args, "--eval-every") > 0);
  refuse("--eval-tokens", number(f.args, "--eval-tokens") > 0);
  refuse("--eval-documents", is_on(f.args, "--eval-documents"));
}

// Whether the weight decay of the matrices is above 0.
bool decays_matrices(const CLI::App& command, const AskedFlags& f) {
  const std::string groups = "--group-weight-decay", all = "--weight-decay";
  const GroupNumbers own = parse_groups(value_of(f.args, groups), groups);
  if (const auto& decay = own[size_t(Group::matrix)]) return *decay > 0;
  if (!value_of(f.args, all).empty()) return !is_off(f.args, all, 0);
  return std::stod(command.get_option(all)->get_default_str()) > 0;
}

// The other settings of a new run. A resumed run may be given those that it began with.
void expect_used(const CLI::App& command, const AskedFlags& f) {
  const auto refuse = [&](const char* flag, bool useless, const char* why) {
    if (useless && f.asked.contains(flag)) fail_usage(flag, "has no effect: {}; leave it out", why);
  };
  const std::string schedule = last_name(f.args, "--schedule");
  refuse("--decay-steps",
         number(f.args, "--decay-steps") > 0 && schedule != "wsd" && schedule != "wsd_sqrt",
         "only --schedule wsd and wsd_sqrt use it");
  refuse("--decay-share",
         number(f.args, "--decay-share") > 0 && number(f.args, "--decay-steps") > 0,
         "--decay-steps gives the length of the decay");
  refuse("--lr-floor",
         number(f.args, "--lr-floor") > 0 &&
             (schedule == "constant" || schedule == "wsd" || schedule == "wsd_sqrt"),
         "only --schedule cosine and linear use it");
  refuse("--ema-decay", last_name(f.args, "--baseline") != "ema", "only --baseline ema uses it");
  refuse("--adam-eps", last_name(f.args, "--optimizer") == "lion",
         "--optimizer lion does not use it");
  refuse("--sample-prompt", number(f.args, "--sample-every") == 0,
         "without --sample-every there are no samples");
  refuse("--sample-tokens",
         number(f.args, "--sample-tokens") > 0 && number(f.args, "--sample-every") == 0,
         "without --sample-every there are no samples");
  refuse("--document-start",
         number(f.args, "--document-start") >= 0 && !is_on(f.args, "--document-mask") &&
             !is_on(f.args, "--eval-documents"),
         "only --document-mask and --eval-documents use it");
  refuse("--cautious-decay", is_on(f.args, "--cautious-decay") && !decays_matrices(command, f),
         "the weight decay of the matrices is 0");
  refuse("--kl", number(f.args, "--beta") == 0, "there is no KL penalty without --beta");
}

// The model that --preset and the model flags describe, except for its booleans and derived fields.
ModelConfig model_in(const std::vector<std::string>& args) {
  const std::string base = value_of(args, "--preset");
  ModelConfig c = base.empty() ? ModelConfig() : preset(base);
  c.visit([&](const char* name, auto& field, const char*) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(field)>, bool>) {
      const std::string flag = flag_name(name), value = value_of(args, flag);
      if (!value.empty()) field_from_text(field, {value}, flag);
    }
  });
  return c;
}

// Whether a pattern, which is repeated over the layers, gives this letter to one of them.
bool has_letter(const std::string& pattern, int64_t layers, char letter) {
  return pattern.substr(0, size_t(std::max<int64_t>(layers, 0))).find(letter) != pattern.npos;
}

// Layers with attention, of which those beyond a second round of the pattern are not counted.
int64_t attending_layers(const ModelConfig& m) {
  const std::string twice = m.mixer_pattern + m.mixer_pattern;
  if (twice.empty()) return m.layers;
  return std::ranges::count(twice.substr(0, size_t(std::max<int64_t>(m.layers, 0))), 'A');
}

struct ModelChoice {
  bool used;
  std::string why_not;
  std::vector<const char*> flags;
};

std::vector<ModelChoice> model_choices(const ModelConfig& m, const AskedFlags& f) {
  const std::string position = fmt::format("position is {}", enum_name(m.position));
  const std::string scaling = fmt::format("rope_scaling is {}", enum_name(m.rope_scaling));
  const bool longrope = m.rope_scaling == RopeScaling::longrope;
  const bool bounded = m.rope_scaling == RopeScaling::yarn || m.rope_scaling == RopeScaling::llama3;
  const bool windows = m.window || m.long_window ||
                       !value_of(f.args, "--window-schedule").empty() ||
                       !value_of(f.args, "--long-window-schedule").empty();
  return {
      {m.position == Position::rope,
       position,
       {"--rope-theta", "--rotary", "--rope-pairs", "--rope-scaling", "--rope-factor",
        "--rope-context", "--rope-low", "--rope-high", "--rope-local-theta"}},
      {m.rope_scaling != RopeScaling::none, scaling, {"--rope-factor"}},
      {bounded || longrope, scaling, {"--rope-context"}},
      {bounded, scaling, {"--rope-low", "--rope-high"}},
      {longrope,
       scaling,
       {"--rope-short-factors", "--rope-long-factors", "--rope-attention-factor"}},
      {has_letter(m.rope_pattern, m.layers, 'L'),
       "no layer has the letter L in rope_pattern",
       {"--rope-local-theta"}},
      {m.position == Position::relative, position, {"--relative-buckets", "--relative-distance"}},
      {windows, "window and long_window are 0", {"--window-pattern"}},
      {has_letter(m.window_pattern, m.layers, 'S'),
       "no layer has the letter S in window_pattern",
       {"--window", "--window-schedule"}},
      {has_letter(m.window_pattern, m.layers, 'L'),
       "no layer has the letter L in window_pattern",
       {"--long-window", "--long-window-schedule"}},
      {m.output_gate != OutputGate::none, "output_gate is none", {"--gate-inputs"}},
      {bool(m.moe), "the model has no experts", {"--top-k", "--router", "--router-scale"}},
      {m.moe || !is_on(f.args, "--norm-topk"), "the model has no experts", {"--norm-topk"}},
      {m.layers > 1 || !is_on(f.args, "--x0-skip"), "the model has only one layer", {"--x0-skip"}},
      {m.layers > 2 || !is_on(f.args, "--u-skips"),
       "the model has fewer than three layers",
       {"--u-skips"}},
      {attending_layers(m) > 1 || !is_on(f.args, "--value-residual"),
       "the model has only one layer with attention",
       {"--value-residual"}},
  };
}

// The flags of a new model. 0 is always accepted: it says that a choice is not made.
void expect_model_used(const CLI::App& command, const AskedFlags& f) {
  if (!command.get_option_no_throw("--preset") || !value_of(f.args, "--model").empty()) return;
  for (const ModelChoice& choice : model_choices(model_in(f.args), f))
    for (const char* flag : choice.flags)
      if (!choice.used && f.asked.contains(flag) && value_of(f.args, flag) != "0")
        fail_usage(flag, "has no effect: {}; leave it out", choice.why_not);
}

}  // namespace

void expect_effect(const CLI::App& command, const AskedFlags& flags) {
  for (const char* help : {"--help", "-h"})
    if (std::ranges::find(flags.args, help) != flags.args.end()) return;
  expect_length(flags);
  expect_muon(flags);
  expect_samples(flags);
  if (!command.get_option_no_throw("--resume")) return;  // not a training command
  expect_validation(command, flags);
  if (flags.of_run) return;
  expect_used(command, flags);
  expect_model_used(command, flags);
}

}  // namespace hearth::inline cli
