// hearth grpo: trains a model on its own completions with verifiable rewards.
#include "train/grpo/grpo.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/run_flags.h"
#include "cli/signals.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

struct GrpoFlags {
  Common common;
  RunFlags run;
  bool trust_programs = false;
  FieldFlags<GrpoConfig> config;
};

// What every run reports, and GRPO's own values. An evaluation of GRPO has a reward, not a loss.
nlohmann::ordered_json grpo_json(const GrpoResult& r, const Backend& backend) {
  nlohmann::ordered_json j = result_json(r, backend);
  j.erase("val_loss"), j.erase("val_step");
  j.update({{"updates", r.updates},
            {"completions", r.completions},
            {"unrewarded", r.unrewarded},
            {"failed_reward_attempts", r.failed_attempts},
            {"reward", json_or_null(r.reward)},
            {"eval_reward", json_or_null(r.val_loss)},
            {"eval_step", json_or_null(r.val_step)},
            {"exact", json_or_null(r.exact)},
            {"logprob_gap_max", json_or_null(r.logprob_gap)},
            {"rollout_tokens_per_s", json_or_null(r.rollout_tokens_per_s)},
            {"train_tokens_per_s", json_or_null(r.train_tokens_per_s)}});
  return j;
}

std::string grpo_line(const GrpoResult& r) {
  std::string text =
      fmt::format("{}, {}, {}", counted(r.steps, "step"), counted(r.updates, "update"),
                  counted(r.completions, "completion"));
  if (r.reward)
    text += fmt::format(", reward {:.4f}", *r.reward);
  else if (r.unrewarded == r.completions)
    text += ", no rewards";
  if (r.unrewarded) text += fmt::format(", {} without a reward", r.unrewarded);
  if (r.failed_attempts) text += ", " + counted(r.failed_attempts, "failed reward attempt");
  if (r.exact) text += fmt::format(", exact {:.4f}", *r.exact);
  return text + result_end(r);
}

void run_grpo(const GrpoFlags& f) {
  f.run.check_folder();
  GrpoConfig config = with_auto_dtype<GrpoConfig>();
  f.config.apply(config);
  if (config.clock == 0) config.clock = int64_t(std::time(nullptr));  // the run stores it
  config.check();
  const TrainDType asked = config.dtype;
  RunSpec spec;  // it starts to count the time
  const std::unique_ptr<Backend> backend = make_backend(
      f.common, {.tf32 = asked == TrainDType::tf32,
                 .fp16 = asked == TrainDType::fp16,
                 // auto is bf16 on a GPU; elsewhere the flag has no effect
                 .batch_invariant = config.invariant() ||
                                    (config.batch_invariant && asked == TrainDType::automatic)});
  resolve_dtype(config.dtype, *backend);
  // A resumed run reads the setting from its folder, so the user did not ask for it now.
  if (!f.run.goes_on() && f.config.given("batch_invariant") && config.batch_invariant &&
      !backend->batch_invariant())
    fail_usage("--batch-invariant", "expected --dtype bf16 or fp8 on {}, got {}",
               backend->describe(), enum_name(config.dtype));
  spec.phases->mark("device");
  f.run.apply(spec, *backend, config.dtype);
  const std::unique_ptr<BoardThread> board = f.run.open_board();
  const GrpoResult r = grpo(config, spec, *backend);
  expect_finite(r);
  f.run.explain_ending(r, fmt::format("exact {:.4f} reached --target-exact {}", r.exact.value_or(0),
                                      config.target_exact));
  put_result(f.common.json ? json_line(grpo_json(r, *backend)) : grpo_line(r));
  expect_not_signalled(r.reason);
  show_curve(spec.run);
}

}  // namespace

void add_grpo(CLI::App& app) {
  CLI::App* c =
      app.add_subcommand("grpo", "train a model with rewards on its own completions (GRPO)");
  auto f = std::make_shared<GrpoFlags>();
  add_common(*c, f->common);
  f->run.add(*c, "--steps");
  // Read by arguments.cpp, which loads the settings files.
  c->add_flag("--trust-programs", f->trust_programs,
              "run the programs named in the config.toml of a resumed run or in --config");
  f->config.add(*c, with_auto_dtype<GrpoConfig>(), "GRPO");
  c->callback([f] { run_grpo(*f); });
}

}  // namespace hearth::inline cli
