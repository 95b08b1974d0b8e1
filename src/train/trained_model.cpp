#include "train/trained_model.h"

#include <algorithm>
#include <future>

#include "formats/json.h"
#include "infer/generation_config.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ModelConfig config_in_training(const ModelSource& source, const LoraConfig& lora) {
  ModelConfig c = source.config();
  c.lora = lora.spec();
  return c.resolve();
}

}  // namespace

// Tests saving up front: a tokenizer that cannot be saved would otherwise fail at the first
// checkpoint.
void expect_savable(const Tokenizer& t, std::string_view remedy) {
  std::string name = (fs::temp_directory_path() / "hearth-tokenizer-XXXXXX").string();
  if (!mkdtemp(name.data())) fail(name, "expected to make a temporary folder, got an error");
  std::string problem;
  try {
    t.save(name);
  } catch (const Error& e) { problem = e.what(); }
  std::error_code none;
  fs::remove_all(name, none);
  if (problem.empty()) return;
  if (const size_t end = problem.find("] "); end != problem.npos) problem.erase(0, end + 2);
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

ModelSource open_base(const fs::path& model, const LoraConfig& lora) {
  ModelSource source = ModelSource::open(model);
  if (source.config().lora && lora.spec())
    fail_usage("--lora",
               "{} is itself an adapter: merge it first (hearth convert --from {} --to DIR), or "
               "train all weights without --lora",
               model.string(), model.string());
  return source.merged();
}

std::vector<int32_t> answer_ends_of(const ModelSource& source, const ChatTemplate* chat,
                                    const Tokenizer& t) {
  std::vector<int32_t> ends;
  const auto add = [&](int32_t id) {
    if (id >= 0 && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  };
  for (const fs::path& dir : {source.path(), source.tokenizer()})
    read_generation_config(dir);  // throws if the file is broken
  for (const int32_t id : generation_ends(source.path(), t)) add(id);
  // An adapter's own folder may name further tokens that end its answers.
  if (source.tokenizer() != source.path())
    for (const int32_t id : generation_ends(source.tokenizer(), t)) add(id);
  if (chat) add(turn_end(*chat, t));
  return ends;
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

void expect_no_dropout(const LoraConfig& lora, std::string_view method) {
  if (const float dropout = lora.spec().dropout; dropout > 0)
    fail_usage("--lora", "expected no dropout with {}, whose passes have none, got {}", method,
               dropout);
}

}  // namespace hearth::inline train
