#include "train/trained_model.h"

#include <future>

#include "infer/generation_config.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

ModelConfig config_in_training(const ModelSource& source, const LoraConfig& lora) {
  ModelConfig c = source.config();
  c.lora = lora.spec();
  c.mtp = 0;  // only pretraining trains the modules; without a loss they would decay
  return c.resolve();
}

}  // namespace

void expect_savable(const Tokenizer& t, std::string_view remedy) {
  if (const std::string problem = t.save_problem(); !problem.empty())
    fail("tokenizer", "{}, so the checkpoints could not carry it; {}", problem, remedy);
}

TrainedModel::TrainedModel(ModelConfig c, std::optional<ModelSource> from, Backend& backend,
                           DType dtype, bool offload)
    : config(std::move(c)),
      source(std::move(from)),
      params(backend, decoder_params(config), dtype, offload),
      memory(backend, &params) {
  if (offload && !backend.has_host_offload())
    fail_usage("--offload", "--offload needs a GPU; this run is on {}", backend.describe());
  check_layers_run(config, backend, dtype);
  if (!config.lora) return;
  // Loads the base first, because DPO's reference is this base; a checkpoint's adapters are loaded
  // later. The files are hashed while they are loaded.
  auto digest = std::async(std::launch::async | std::launch::deferred,
                           [this] { return model_digest(*source); });
  source->load(params);
  base = digest.get();
}

TrainedModel::TrainedModel(const ModelSource& source, const LoraConfig& lora, Backend& backend,
                           DType dtype, bool offload)
    : TrainedModel(config_in_training(source, lora), source, backend, dtype, offload) {}

void TrainedModel::begin(uint64_t seed) {
  if (config.lora) return start_adapters(params, seed);
  if (source) return source->load(params);
  params.initialise(seed);
}

void TrainedModel::carry(const ChatTemplate* chat, nlohmann::ordered_json written_template) {
  chat_template = std::move(written_template);
  ends = answer_ends_of(*source, chat, *tokenizer);
  generation = read_generation_config(source->path());
}

std::string TrainedModel::left_out() const {
  // Adapters leave their base as it is.
  if (!source || config.lora || config.mtp >= source->config().mtp) return {};
  return fmt::format(
      "the modules of multi-token prediction of {} (mtp {}) are neither trained nor saved: --draft "
      "mtp will not work with the new model",
      source->path().string(), source->config().mtp);
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
