#include "train/trained_model.h"

#include <future>

#include "infer/generation_config.h"
#include "model/decoder.h"
#include "model/files/answer_ends.h"
#include "model/layer_spec.h"
#include "optim/update.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

ModelConfig config_in_training(const ModelSource& source, const LoraConfig& lora) {
  ModelConfig c = source.config();
  c.lora = lora.spec();
  if (c.lora) c.mtp = 0;  // the modules stay in the base
  return c.resolve();
}

// Without a loss, weight decay alone would move the modules.
std::vector<ParamSpec> params_in_training(const ModelConfig& c, Modules modules) {
  std::vector<ParamSpec> all = decoder_params(c);
  if (modules == Modules::apart) lay_modules_apart(all);
  for (ParamSpec& p : all)
    if (modules == Modules::stay && is_of_module(p)) p.trainable = false;
  return all;
}

}  // namespace

void expect_savable(const Tokenizer& t, std::string_view remedy) {
  if (const std::string problem = t.save_problem(); !problem.empty())
    fail("tokenizer", "{}, so the checkpoints could not carry it; {}", problem, remedy);
}

TrainedModel::TrainedModel(ModelConfig c, std::optional<ModelSource> from, Backend& backend,
                           DType dtype, bool offload, Modules m)
    : config(std::move(c)),
      modules(m),
      source(std::move(from)),
      params(backend, params_in_training(config, m), dtype, offload),
      memory(backend, &params) {
  if (offload && !backend.has_host_offload())
    fail_usage("--offload", "--offload needs a GPU; this run is on {}", backend.describe());
  check_layers_run(config, backend, dtype);
  if (!config.lora) return;
  // Loads the base first, because DPO's reference is this base; a checkpoint's adapters are loaded
  // later. The files are hashed while they are loaded.
  auto digest = std::async(std::launch::async | std::launch::deferred,
                           [this] { return hold_model(*source); });
  source->load(params);
  base = digest.get();
}

TrainedModel::TrainedModel(const ModelSource& source, const LoraConfig& lora, Backend& backend,
                           DType dtype, bool offload, Modules modules)
    : TrainedModel(config_in_training(source, lora), source, backend, dtype, offload, modules) {}

ModelConfig TrainedModel::computed() const {
  ModelConfig c = config;
  if (modules == Modules::stay) c.mtp = 0;
  return c;
}

void TrainedModel::begin(uint64_t seed) {
  if (config.lora) return start_adapters(params, seed);
  if (source) return source->load(params);
  params.initialise(seed);
}

void TrainedModel::carry(const ChatTemplate* chat, nlohmann::ordered_json written_template) {
  chat_template = std::move(written_template);
  check_generation_config(*source);
  ends = answer_ends_of(*source, chat, *tokenizer);
  generation = read_generation_config(source->path());
}

Tokenizer tokenizer_beside(const ModelSource& source, const ModelConfig& model) {
  if (source.tokenizer().empty())
    fail(source.path().string(), "expected a model with a tokenizer, got none beside it");
  Tokenizer t = Tokenizer::load(source.tokenizer());
  if (t.vocab_size() > model.vocab)
    fail(source.path().string(), "expected a tokenizer of at most {} tokens, got {}", model.vocab,
         t.vocab_size());
  expect_savable(t, "choose a model with a tokenizer.json");
  return t;
}

}  // namespace hearth::inline train
