// hearth serve: serves one or more models over an OpenAI-compatible HTTP API (docs/serving.md).
#include "serve/server.h"

#include <algorithm>

#include "cli/commands.h"
#include "cli/flags.h"
#include "infer/draft.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {

namespace {

struct ServeFlags {
  std::vector<std::string> models;
  std::string adapter, dtype = "auto", weights = "plain", kv = "plain";
  std::string generation_config = "auto";
  bool batch_invariant = false;
  int64_t context = 0;
  double cache_gib = 0;
  FieldFlags<ServeConfig> config;
  Common common = {};
};

// The last `parts` parts of a path, such as "base/step-100".
std::string end_of_path(const std::string& path, int parts) {
  std::filesystem::path p = std::filesystem::absolute(path).lexically_normal(), name;
  if (!p.has_filename()) p = p.parent_path();
  for (; parts > 0 && p.has_filename(); --parts, p = p.parent_path())
    name = name.empty() ? p.filename() : p.filename() / name;
  return name.string();
}

std::string repeated(std::vector<std::string> list) {
  std::ranges::sort(list);
  const auto at = std::ranges::adjacent_find(list);
  return at == list.end() ? "" : *at;
}

// The names of the folders. Where several are equal, these get as many folders above them as it
// takes to tell them apart.
std::vector<std::string> folder_names(const std::vector<std::string>& models) {
  constexpr int most = 64;
  std::vector<std::string> names;
  for (const std::string& path : models) names.push_back(end_of_path(path, 1));
  for (int parts = 2; parts <= most && !repeated(names).empty(); ++parts) {
    const std::vector<std::string> shorter = names;
    for (size_t i = 0; i < names.size(); ++i)
      if (std::ranges::count(shorter, shorter[i]) > 1) names[i] = end_of_path(models[i], parts);
  }
  if (const std::string twice = repeated(names); !twice.empty())
    fail_usage("--model", "expected different models, got {} twice; --name tells them apart",
               models[size_t(std::ranges::find(names, twice) - names.begin())]);
  return names;
}

// The names that were given, or else those of the folders.
std::vector<std::string> model_names(const std::vector<std::string>& models,
                                     const std::vector<std::string>& given) {
  if (given.empty()) return folder_names(models);
  if (given.size() != models.size())
    fail_usage("--name", "expected a name for each of {} models or none, got {}", models.size(),
               given.size());
  if (std::ranges::find(given, "") != given.end())
    fail_usage("--name", "expected a name of at least one character");
  if (const std::string twice = repeated(given); !twice.empty())
    fail_usage("--name", "expected different names, got {} twice", twice);
  return given;
}

// `name` is empty for the only model.
std::unique_ptr<ServedModel> load_served(const ServeFlags& flags, const std::string& path,
                                         const std::string& name, Backend& backend,
                                         WeightFormat format, Draft draft) {
  ModelSource source = ModelSource::open(path, flags.adapter);
  if (draft == Draft::mtp && source.config().mtp == 0)
    fail_usage("--draft",
               "expected a model with modules of multi-token prediction (mtp), got {} without: use "
               "--draft lookup",
               path);
  if (flags.context > source.config().context)
    fail_usage("--context", "expected 1 to {}, the context of {}, got {}", source.config().context,
               path, flags.context);
  const DType dtype = weights_dtype(flags.dtype, backend, Workload::decoding, source.dtype(), name);
  SamplingSpec defaults;
  apply_generation_config(defaults, flags.generation_config, source, {});
  auto model =
      std::make_unique<ServedModel>(std::move(source), backend, WeightsSpec{dtype, format});
  model->set_defaults(defaults);
  return model;
}

// All weights first: the caches share what they leave.
std::vector<NamedModel> load_all(const ServeFlags& flags, const std::vector<std::string>& names,
                                 Backend& backend, WeightFormat format, const EngineSpec& spec) {
  std::vector<NamedModel> models;
  for (size_t i = 0; i < names.size(); ++i)
    models.push_back(
        {names[i], load_served(flags, flags.models[i], names.size() > 1 ? names[i] : "", backend,
                               format, spec.draft)});
  const std::string plan = start_engines(models, backend, spec);
  if (models.size() > 1 && !spec.cache_bytes)
    say("hearth: memory for model steps and KV caches: {}\n", plan);
  return models;
}

void say_ready(const NamedModel& named, const std::string& url, const Backend& backend) {
  ServedModel& m = *named.model;
  if (!m.chat().has_template())
    say("hearth: {} has no chat template; chats are formatted as User: and Assistant: lines. Use "
        "/v1/completions to continue a prompt, or hearth sft on messages or instructions to train "
        "a template\n",
        named.name);
  if (!m.context_note().empty()) say("hearth: {}; --context changes it\n", m.context_note());
  say_long_rope(m.config(), m.context());
  const EngineStats s = m.engine().stats();
  say("hearth: serving {} on {} ({}), KV cache {}: {} tokens in {:.2f} GiB\n", named.name, url,
      backend.describe(), s.cache, s.blocks * cache_block, double(s.cache_bytes) / (1 << 30));
}

void check_paths(const ServeFlags& flags) {
  if (!flags.adapter.empty() && flags.models.size() > 1)
    fail_usage("--adapter",
               "expected one --model beside it, got {}; a LoRA folder may be a --model",
               flags.models.size());
  for (const std::string& path : flags.models)
    if (!std::filesystem::exists(path)) fail(path, "no such model folder or file");
  if (!flags.adapter.empty() && !std::filesystem::exists(flags.adapter))
    fail(flags.adapter, "no such model folder or file");
}

void run_serve(const ServeFlags& flags) {
  ServeConfig config;
  flags.config.apply(config);
  config.check();
  if (flags.config.given("draft") && config.draft == Draft::lookup && config.speculate == 0)
    config.speculate = lookup_guesses;
  if (flags.cache_gib < 0 || flags.cache_gib > 1e6)
    fail_usage("--cache-gib", "expected a size in GiB of 0 or more, got {}", flags.cache_gib);
  // Check the paths before the port is announced: models load while the port answers 503.
  check_paths(flags);
  const std::vector<std::string> names = model_names(flags.models, config.name);
  const std::unique_ptr<Backend> backend =
      make_backend(flags.common, {.batch_invariant = flags.batch_invariant});
  constexpr int64_t most_on_device = 2048, most_on_cpu = 512;
  if (config.step_tokens == 0)
    config.step_tokens = backend->device_bytes() > 0 ? most_on_device : most_on_cpu;
  const EngineSpec spec{.max_batch = config.batch,
                        .context = flags.context,
                        .step_tokens = config.step_tokens,
                        .interval = double(config.step_ms) / 1e3,
                        .speculate = config.speculate,
                        .draft = config.draft,
                        .cache_bytes = int64_t(flags.cache_gib * double(1 << 30)),
                        .remedy = flags.cache_gib > 0
                                      ? "use a larger --cache-gib or a shorter --context"
                                      : "use a shorter --context, or set --cache-gib",
                        .cache = cache_format(flags.kv),
                        .exact = flags.batch_invariant};
  check_dtype(flags.dtype, *backend);
  const WeightFormat format = weight_format(flags.weights, *backend);
  std::string url;
  run_server(
      config,
      {.load = [&] { return load_all(flags, names, *backend, format, spec); },
       .listening =
           [&](const std::string& at) {
             url = at;
             say("hearth: listening on {}, loading {}\n", url, fmt::join(flags.models, ", "));
           },
       .ready =
           [&](std::span<const NamedModel> models) {
             for (const NamedModel& m : models) say_ready(m, url, *backend);
             if (!flags.common.json) return;
             print_json({{"event", "ready"}, {"url", url}, {"model", names[0]}, {"models", names}});
             flush();
           },
       .sensors = [&] { return backend->device_state(); }});
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  ServeFlags& f = *flags;
  CLI::App* c = app.add_subcommand("serve", "serve models over an OpenAI-compatible HTTP API");
  c->add_option("--model", f.models,
                "run, checkpoint or Hugging Face folder, or model file; repeat the flag to serve "
                "several models")
      ->required()
      ->expected(1, 100000)
      ->allow_extra_args(false);
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
  c->add_option("--cache-gib", f.cache_gib,
                "KV cache size of each model in GiB; 0: chosen from the free memory")
      ->capture_default_str();
  f.config.add(*c, ServeConfig(), "Server");
  add_common(*c, f.common);
  c->callback([flags] { run_serve(*flags); });
}

}  // namespace hearth::inline cli
