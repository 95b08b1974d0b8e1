// hearth sft and hearth dpo: a model goes on to learn from examples or preferences.
#include <fmt/format.h>

#include "align/dpo.h"
#include "align/sft.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/pretrain.h"
#include "cli/signals.h"
#include "io/terminal.h"

namespace hearth {
namespace {

template <class Config>
struct AlignFlags {
  Common common;
  std::string run;
  bool resume = false;
  int64_t stop_after_step = 0;
  FieldFlags<Config> config;
};

template <class Config>
using Align = RunResult (*)(const Config&, const AlignRunSpec&, Backend&);

void print_aligned(const RunResult& r, bool as_json, const Backend& backend) {
  if (as_json)
    return put_result(json_line({{"steps", r.steps},
                                 {"tokens", r.tokens},
                                 {"train_loss", json_or_null(r.train_loss)},
                                 {"val_loss", json_or_null(r.val_loss)},
                                 {"val_step", json_or_null(r.val_step)},
                                 {"tokens_per_s", json_or_null(r.tokens_per_s)},
                                 {"train_seconds", r.train_seconds},
                                 {"skipped", r.skipped},
                                 {"reason", r.reason},
                                 {"checkpoint", r.checkpoint.string()},
                                 {"device", backend.describe()}}));
  put_result(result_line(r));
}

template <class Config>
void run_aligned(const AlignFlags<Config>& f, Align<Config> method) {
  Config config = with_auto_dtype<Config>();
  f.config.apply(config);
  if (config.clock == 0) config.clock = int64_t(std::time(nullptr));  // kept with the run
  const AlignRunSpec spec{.run = f.run,
                          .resume = f.resume,
                          .stop_after_step = f.stop_after_step,
                          .stop = count_stop_signals(),
                          .warn = [](const std::string& line) { say_problem(line); }};
  const std::unique_ptr<Backend> backend =
      make_backend(f.common, {.tf32 = config.dtype == TrainDType::tf32});
  resolve_dtype(config.dtype, *backend);
  const RunResult r = method(config, spec, *backend);
  print_aligned(r, f.common.json, *backend);
  expect_not_signalled(r.reason);
}

template <class Config>
void add_method(CLI::App& app, const char* name, const char* help, Align<Config> method) {
  CLI::App* c = app.add_subcommand(name, help);
  auto f = std::make_shared<AlignFlags<Config>>();
  add_common(*c, f->common);
  c->add_option("--run", f->run, "run folder")->required();
  c->add_flag("--resume", f->resume, "go on with the run in the folder, to the bit");
  c->add_option("--stop-after-step", f->stop_after_step, "save and exit after this step");
  f->config.add(*c, with_auto_dtype<Config>(), "Training");
  c->callback([f, method] { run_aligned(*f, method); });
}

}  // namespace

void add_sft(CLI::App& app) { add_method<SftConfig>(app, "sft", "teach a model by examples", sft); }

void add_dpo(CLI::App& app) {
  add_method<DpoConfig>(app, "dpo", "teach a model by preferences", dpo);
}

}  // namespace hearth
