// hearth serve: serves a model over an OpenAI-compatible HTTP API (docs/serving.md).
#include "serve/server.h"

#include "cli/commands.h"
#include "cli/flags.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {

namespace {

struct ServeFlags {
  std::string model, adapter, dtype = "auto", weights = "plain", kv = "plain";
  std::string generation_config = "auto";
  bool batch_invariant = false;
  int64_t context = 0;
  double cache_gib = 0;
  FieldFlags<ServeConfig> config;
  Common common = {};
};

std::string model_name(const std::string& path) {
  const std::filesystem::path p = std::filesystem::absolute(path).lexically_normal();
  return p.has_filename() ? p.filename().string() : p.parent_path().filename().string();
}

std::unique_ptr<ServedModel> load_served(const ServeFlags& flags, Backend& backend,
                                         WeightFormat format, const EngineSpec& spec) {
  ModelSource source = ModelSource::open(flags.model, flags.adapter);
  if (flags.context > source.config().context)
    fail_usage("--context", "expected 1 to {}, got {}", source.config().context, flags.context);
  const DType dtype = weights_dtype(flags.dtype, backend, Workload::decoding, source.dtype());
  SamplingSpec defaults;
  apply_generation_config(defaults, flags.generation_config, source, {});
  auto model =
      std::make_unique<ServedModel>(std::move(source), backend, WeightsSpec{dtype, format}, spec);
  model->set_defaults(defaults);
  return model;
}

void say_ready(ServedModel& m, const std::string& name, const std::string& url,
               const Backend& backend) {
  if (!m.chat().has_template())
    say("hearth: {} has no chat template; chats are formatted as User: and Assistant: lines. Use "
        "/v1/completions to continue a prompt, or hearth sft on messages or instructions to train "
        "a template\n",
        name);
  if (!m.context_note().empty()) say("hearth: {}; --context changes it\n", m.context_note());
  const EngineStats s = m.engine().stats();
  say("hearth: serving {} on {} ({}), KV cache {}: {} tokens in {:.2f} GiB\n", name, url,
      backend.describe(), s.cache, s.blocks * cache_block, double(s.cache_bytes) / (1 << 30));
}

void run_serve(const ServeFlags& flags) {
  ServeConfig config;
  flags.config.apply(config);
  config.check();
  if (flags.cache_gib < 0 || flags.cache_gib > 1e6)
    fail_usage("--cache-gib", "expected a size in GiB of 0 or more, got {}", flags.cache_gib);
  // Check the paths before the port is announced: the model loads while the port answers 503.
  for (const std::string& path : {flags.model, flags.adapter})
    if (!path.empty() && !std::filesystem::exists(path)) fail(path, "no such model folder or file");
  const EngineSpec spec{.max_batch = config.batch,
                        .context = flags.context,
                        .speculate = config.speculate,
                        .cache_bytes = int64_t(flags.cache_gib * double(1 << 30)),
                        .cache = cache_format(flags.kv)};
  const std::unique_ptr<Backend> backend =
      make_backend(flags.common, {.batch_invariant = flags.batch_invariant});
  check_dtype(flags.dtype, *backend);
  const WeightFormat format = weight_format(flags.weights, *backend);
  std::string url;
  const std::string name = config.name.empty() ? model_name(flags.model) : config.name;
  run_server(config, {.name = name,
                      .load = [&] { return load_served(flags, *backend, format, spec); },
                      .listening =
                          [&](const std::string& at) {
                            url = at;
                            say("hearth: listening on {}, loading {}\n", url, flags.model);
                          },
                      .ready =
                          [&](ServedModel& m) {
                            say_ready(m, name, url, *backend);
                            if (!flags.common.json) return;
                            print_json({{"event", "ready"}, {"url", url}, {"model", name}});
                            flush();
                          }});
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  ServeFlags& f = *flags;
  CLI::App* c = app.add_subcommand("serve", "serve a model over an OpenAI-compatible HTTP API");
  c->add_option("--model", f.model, "run, checkpoint or Hugging Face folder, or model file")
      ->required();
  add_adapter(*c, f.adapter);
  add_generation_config(*c, f.generation_config);
  add_dtype(*c, f.dtype);
  add_weights(*c, f.weights);
  add_kv(*c, f.kv);
  add_batch_invariant(*c, f.batch_invariant);
  c->add_option(
       "--context", f.context,
       "maximum tokens of prompt and completion; 0: the model's context, or what fits in memory")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--cache-gib", f.cache_gib, "KV cache size in GiB; 0: chosen from the free memory")
      ->capture_default_str();
  f.config.add(*c, ServeConfig(), "Server");
  add_common(*c, f.common);
  c->callback([flags] { run_serve(*flags); });
}

}  // namespace hearth::inline cli
