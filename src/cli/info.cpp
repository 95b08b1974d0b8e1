// hearth info: describes this build, and this machine or one device of it; with a preset or model,
// also its size.
#include <fmt/format.h>

#include <optional>
#include <span>

#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/recipes.h"
#include "cpu/backend.h"
#include "cpu/features.h"
#include "cpu/gemm.h"
#include "cuda/backend.h"
#include "formats/fields.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "rewards/regex.h"
#include "sys/build_info.h"
#include "sys/compression/compression.h"
#include "sys/error.h"
#include "sys/https/https.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline cli {
namespace {

struct InfoFlags {
  Common common;
  std::string preset, model, recipe, tokenizer;
  FieldFlags<ModelConfig> shape;
};

// `stored`: the type of the weights that --dtype auto is asked about.
nlohmann::ordered_json cpu_json(const Backend& backend, DType stored) {
  std::vector<std::string> usable;
  for (Isa isa : usable_isas()) usable.emplace_back(name(isa));
  nlohmann::ordered_json j{{"isa", std::string(name(best_isa()))},
                           {"usable", usable},
                           {"integer_products", quantised_instructions(best_isa())},
                           {"backend", backend.describe()},
                           {"free_bytes", backend.free_bytes()}};
  for (const auto& [work, what] : {std::pair{Workload::training, "training"},
                                   {Workload::decoding, "decoding"},
                                   {Workload::scoring, "scoring"}}) {
    const DtypeChoice c = auto_dtype(work, name(best_isa()), stored);
    j["auto_dtype"][what] = {{"dtype", c.dtype == DType::bf16 ? "bf16" : "fp32"}, {"why", c.why}};
  }
  return j;
}

nlohmann::ordered_json gpus_json(std::span<const CudaCard> cards) {
  nlohmann::ordered_json j = nlohmann::json::array();
  for (const CudaCard& c : cards)
    j.push_back({{"name", c.name},
                 {"capability", fmt::format("{}.{}", c.major, c.minor)},
                 {"processors", c.processors},
                 {"memory_bytes", c.memory_bytes},
                 {"free_bytes", c.free_bytes},
                 {"gets", c.gets},
                 {"problem", c.problem}});
  return j;
}

// Of all devices, or of the one that --device names.
nlohmann::ordered_json machine_json(const Common& common, DType stored) {
  const BuildInfo b = build_info();
  nlohmann::ordered_json j{
      {"version", b.version}, {"commit", b.commit}, {"build", b.type}, {"compiler", b.compiler}};
  const bool cpu_alone = common.device == "cpu";
  if (cpu_alone || common.device == "auto")
    j["cpu"] = cpu_json(*make_cpu_backend(checked_threads(common.threads)), stored);
  j["unpacks"] = {{"gzip", gzip_library()}, {"zstd", zstd_library()}};
  j["downloads"] = https_library();
  j["regex"] = regex_library();
  if (cpu_alone) return j;
  const CudaDriver driver = cuda_driver();
  const NamedCards found = named_cards(common);
  j["cuda"] = {{"driver", driver.driver}, {"runtime", driver.runtime}, {"problem", found.problem}};
  j["gpus"] = gpus_json(found.cards);
  return j;
}

void model_json(nlohmann::ordered_json& j, const ModelConfig& c) {
  j["params"] = count_params(c);
  if (c.moe) j["active_params"] = count_active_params(c);
  j["matmul_params"] = matmul_params(c);
  j["train_flops_per_token"] = train_flops_per_token(c, c.context);
  j["config"] = fields_to_json(c);
}

void print_cpu(const nlohmann::ordered_json& cpu) {
  fmt::print("cpu     {}; usable instruction sets: {}\n", cpu["backend"].get<std::string>(),
             fmt::join(cpu["usable"].get<std::vector<std::string>>(), ", "));
  fmt::print("        int8 and int4 matrix products: {}\n",
             cpu["integer_products"].get<std::string>());
  for (const auto& [what, choice] : cpu["auto_dtype"].items())
    fmt::print("        --dtype auto for {}: {} ({})\n", what, choice["dtype"].get<std::string>(),
               choice["why"].get<std::string>());
  fmt::print("memory  {:.1f} GiB free\n", cpu["free_bytes"].get<double>() / (1 << 30));
}

void print_gpus(const nlohmann::ordered_json& gpus, const std::string& why_none) {
  if (gpus.empty()) fmt::print("gpu     none: {}\n", why_none);
  for (const auto& g : gpus) {
    const std::string problem = g["problem"].get<std::string>();
    fmt::print("gpu     {}, compute capability {}, {:.1f} of {:.1f} GiB free; {}\n",
               g["name"].get<std::string>(), g["capability"].get<std::string>(),
               g["free_bytes"].get<double>() / (1 << 30),
               g["memory_bytes"].get<double>() / (1 << 30),
               problem.empty() ? g["gets"].get<std::string>() : "not used: " + problem);
  }
}

void print_text(const nlohmann::ordered_json& j) {
  fmt::print("hearth {} ({}, {}, {})\n", j["version"].get<std::string>(),
             j["commit"].get<std::string>(), j["build"].get<std::string>(),
             j["compiler"].get<std::string>());
  if (j.contains("cpu")) print_cpu(j["cpu"]);
  for (const auto& [kind, library] : j["unpacks"].items())
    if (library == "")
      fmt::print("data    cannot read {} files: built without the library\n", kind);
  if (j["downloads"] == "") fmt::print("data    no downloads: built without libcurl\n");
  if (j["regex"] == "") fmt::print("rewards no regex: built without PCRE2\n");
  if (j.contains("gpus")) print_gpus(j["gpus"], j["cuda"]["problem"].get<std::string>());
  if (!j.contains("params")) return;
  fmt::print("model   {} parameters", j["params"].get<int64_t>());
  if (j.contains("active_params"))
    fmt::print(", of which a token uses {}", j["active_params"].get<int64_t>());
  fmt::print("\n");
  for (const auto& [key, value] : j["config"].items()) fmt::print("  {} = {}\n", key, value.dump());
}

bool describes_new_model(const InfoFlags& f) { return !f.preset.empty() || f.shape.any_given(); }

// Opens the model in the folder that --model names. Refuses flags that would describe another one
// first, whether the folder exists or not.
std::optional<ModelSource> open_named_model(const InfoFlags& f) {
  if (f.model.empty()) return std::nullopt;
  if (describes_new_model(f))
    fail_usage("--model",
               "the flags of a model's shape describe a new model; drop --model or them");
  if (!f.tokenizer.empty())
    fail_usage("--tokenizer", "has no effect: --model has a vocabulary; leave one of them out");
  return ModelSource::open(f.model);
}

// The model that pretrain would train with the same flags.
ModelConfig described(const InfoFlags& f) {
  if (f.preset.empty() && !f.shape.given("dim"))
    fail_usage("info", "the flags of a model's shape need --preset, or --dim");
  ModelConfig c = f.preset.empty() ? model_of_flags(f.shape) : model_over_preset(f.preset, f.shape);
  if (!f.tokenizer.empty() && !f.shape.given("vocab"))
    c.vocab = Tokenizer::load(f.tokenizer).vocab_size();
  expect_layout(c);
  return c.resolve();
}

void run(const InfoFlags& f) {
  if (!f.recipe.empty()) {
    const std::string toml(recipe_named(f.recipe).toml);
    if (f.common.json) return print_json({{"recipe", f.recipe}, {"toml", toml}});
    fmt::print("{}", toml);
    return;
  }
  const std::optional<ModelSource> source = open_named_model(f);
  nlohmann::ordered_json j = machine_json(f.common, source ? source->dtype() : DType::bf16);
  if (describes_new_model(f)) {
    if (!f.preset.empty()) j["preset"] = f.preset;
    model_json(j, described(f));
  } else if (source) {
    j["model"] = f.model;
    model_json(j, source->config());
  }
  f.common.json ? print_json(j) : print_text(j);
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* c = app.add_subcommand("info", "describe this build, this machine or a model");
  auto f = std::make_shared<InfoFlags>();
  add_common(*c, f->common);
  CLI::Option* p = c->add_option("--preset", f->preset,
                                 fmt::format("model preset: {}", fmt::join(preset_names(), ", ")));
  c->add_option("--model", f->model, "run, checkpoint or Hugging Face folder to describe")
      ->excludes(p);
  c->add_option("--recipe", f->recipe,
                fmt::format("recipe to print as a settings file: {}", recipe_names()))
      ->excludes(p);
  c->add_option("--tokenizer", f->tokenizer,
                "tokenizer of a new model: without --vocab it sets the vocabulary, as in pretrain");
  f->shape.add(*c, ModelConfig{}, model_group);
  c->callback([f] { run(*f); });
}

}  // namespace hearth::inline cli
