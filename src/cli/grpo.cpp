// hearth grpo: trains a model on its own completions by verifiable rewards.
#include "align/grpo.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/signals.h"
#include "core/error.h"
#include "io/terminal.h"

namespace hearth {
namespace {

struct GrpoFlags {
  Common common;
  std::string run;
  bool resume = false, trust_programs = false;
  int64_t stop_after_step = 0;
  FieldFlags<GrpoConfig> config;
};

nlohmann::ordered_json grpo_json(const GrpoResult& r, const Backend& backend) {
  return {{"steps", r.steps},
          {"updates", r.updates},
          {"completions", r.completions},
          {"unrewarded", r.unrewarded},
          {"tokens", r.tokens},
          {"reward", json_or_null(r.reward)},
          {"exact", json_or_null(r.exact)},
          {"logprob_gap_max", json_or_null(r.logprob_gap)},
          {"seconds", r.seconds},
          {"rollout_tokens_per_s", json_or_null(r.rollout_tokens_per_s)},
          {"train_tokens_per_s", json_or_null(r.train_tokens_per_s)},
          {"reason", r.reason},
          {"checkpoint", r.checkpoint.string()},
          {"device", backend.describe()}};
}

std::string grpo_line(const GrpoResult& r) {
  std::string text =
      fmt::format("{} steps, {} updates, {} completions", r.steps, r.updates, r.completions);
  // A checkpoint of an older version does not say what its last reward was.
  if (r.reward)
    text += fmt::format(", reward {:.4f}", *r.reward);
  else if (r.unrewarded == r.completions)
    text += ", no reward";
  if (r.unrewarded) text += fmt::format(", {} without", r.unrewarded);
  if (r.exact) text += fmt::format(", exact {:.4f}", *r.exact);
  return text + fmt::format(", {:.1f} s; {}\n", r.seconds, r.checkpoint.string());
}

void run_grpo(const GrpoFlags& f) {
  GrpoRunSpec spec;
  spec.config = with_auto_dtype<GrpoConfig>();
  f.config.apply(spec.config);
  if (spec.config.clock == 0) spec.config.clock = int64_t(std::time(nullptr));  // kept with the run
  spec.config.check();
  spec.run = f.run;
  spec.resume = f.resume;
  spec.stop_after_step = f.stop_after_step;
  spec.stop = count_stop_signals();
  spec.warn = [](const std::string& line) { say_problem(line); };
  const TrainDType asked = spec.config.dtype;
  const std::unique_ptr<Backend> backend = make_backend(
      f.common, {.tf32 = asked == TrainDType::tf32,
                 // auto is bf16 on a card, where alone it matters
                 .batch_invariant = spec.config.invariant() || (spec.config.batch_invariant &&
                                                                asked == TrainDType::automatic)});
  resolve_dtype(spec.config.dtype, *backend);
  // A resumed run reads the setting back from its folder: nobody asked for it now.
  if (!f.resume && f.config.given("batch_invariant") && spec.config.batch_invariant &&
      !backend->batch_invariant())
    fail_usage("--batch-invariant", "expected --dtype bf16 on {}, got {}", backend->describe(),
               enum_name(spec.config.dtype));
  const GrpoResult r = grpo(spec, *backend);
  put_result(f.common.json ? json_line(grpo_json(r, *backend)) : grpo_line(r));
  expect_not_signalled(r.reason);
}

}  // namespace

void add_grpo(CLI::App& app) {
  CLI::App* c = app.add_subcommand("grpo", "train a model on its own completions by rewards");
  auto f = std::make_shared<GrpoFlags>();
  add_common(*c, f->common);
  c->add_option("--run", f->run, "run folder")->required();
  c->add_flag("--resume", f->resume, "go on with the run in the folder, to the bit");
  // Read where files of settings are (arguments.cpp).
  c->add_flag("--trust-programs", f->trust_programs,
              "run the programs that config.toml of a resumed run, or --config, names");
  c->add_option("--stop-after-step", f->stop_after_step, "save and exit after this step");
  f->config.add(*c, with_auto_dtype<GrpoConfig>(), "GRPO");
  c->callback([f] { run_grpo(*f); });
}

}  // namespace hearth
