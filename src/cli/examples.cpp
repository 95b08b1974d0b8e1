// hearth sft and hearth dpo: fine-tune a model on examples or on preference pairs.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/run_flags.h"
#include "cli/signals.h"
#include "data/shards.h"
#include "sys/terminal.h"
#include "train/examples/example_task.h"

namespace hearth::inline cli {
namespace {

template <class Config>
struct ExampleFlags {
  Common common;
  RunFlags run;
  FieldFlags<Config> config;
};

template <class Config>
using Method = RunResult (*)(const Config&, const RunSpec&, Backend&);

template <class Config>
void run_method(const ExampleFlags<Config>& f, Method<Config> method) {
  f.run.check_folder();
  Config config = with_auto_dtype<Config>();
  f.config.apply(config);
  if (config.clock == 0) config.clock = int64_t(std::time(nullptr));  // the run stores it
  const TrainDType d = config.dtype;
  RunSpec spec;
  const std::unique_ptr<Backend> backend =
      make_backend(f.common, {.tf32 = d == TrainDType::tf32, .fp16 = d == TrainDType::fp16});
  resolve_dtype(config.dtype, *backend);
  spec.phases->mark("device");
  f.run.apply(spec, *backend, config.dtype);
  if (!config.val.empty() && !f.run.goes_on())
    note_shared_files(spec, expand_globs(config.data), expand_globs(config.val));
  const std::unique_ptr<BoardThread> board = f.run.open_board();
  const RunResult r = method(config, spec, *backend);
  expect_finite(r);
  f.run.explain_ending(r, reached_loss(r, config.target_loss));
  put_result(f.common.json ? json_line(result_json(r, *backend)) : result_line(r));
  expect_not_signalled(r.reason);
  show_curve(spec.run);
}

template <class Config>
void add_method(CLI::App& app, const char* name, const char* help, Method<Config> method) {
  CLI::App* c = app.add_subcommand(name, help);
  auto f = std::make_shared<ExampleFlags<Config>>();
  add_common(*c, f->common);
  f->run.add(*c, "--steps or --epochs");
  f->config.add(*c, with_auto_dtype<Config>(), "Training");
  c->callback([f, method] { run_method(*f, method); });
}

}  // namespace

void add_sft(CLI::App& app) {
  add_method<SftConfig>(app, "sft", "fine-tune a model on examples", sft);
}

void add_dpo(CLI::App& app) {
  add_method<DpoConfig>(app, "dpo", "fine-tune a model on preference pairs (DPO)", dpo);
}

}  // namespace hearth::inline cli
