#include "serve/model.h"

#include <algorithm>

#include "core/memory_budget.h"
#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline serve {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

int64_t longest_of(const Tokenizer& t) {
  size_t longest = 1;
  for (int32_t id = 0; id < t.vocab_size(); ++id) try {
      longest = std::max(longest, t.bytes_of(id).size());
    } catch (const Error&) {}  // an unused id
  return int64_t(longest);
}

ordered_json describe_tokenizer(const fs::path& folder, const Tokenizer& t, int64_t context) {
  ordered_json j = ordered_json::object();
  const auto file = [&](const char* name) -> std::string {
    return fs::is_directory(folder) && fs::exists(folder / name) ? read_file(folder / name) : "";
  };
  if (const std::string config = file("tokenizer_config.json"); !config.empty())
    j = parse_ordered_json(config, (folder / "tokenizer_config.json").string());
  if (const std::string source = file("chat_template.jinja"); !source.empty())
    j["chat_template"] = source;
  const auto name = [&](const char* key, int32_t id) {
    j[key] = id < 0 ? ordered_json() : ordered_json(std::string(t.bytes_of(id)));
  };
  name("bos_token", t.bos());
  name("eos_token", t.eos());
  j["vocab_size"] = t.vocab_size();
  j["model_max_length"] = context;
  return j;
}

}  // namespace

ServedModel::ServedModel(const ModelPaths& paths, Backend& backend, const WeightsSpec& weights,
                         EngineSpec spec)
    : ServedModel(ModelSource::open(paths.model, paths.adapter), backend, weights, spec) {}

ServedModel::ServedModel(ModelSource source, Backend& backend, const WeightsSpec& weights,
                         EngineSpec spec)
    : ServedModel(std::move(source), backend, weights) {
  start(spec);
}

ServedModel::ServedModel(ModelSource source, Backend& backend, const WeightsSpec& weights)
    : backend_(backend),
      model_(std::move(source), backend, weights),
      chat_(model_.source(), tokenizer()),
      longest_token_(longest_of(tokenizer())),
      constraints_(std::make_unique<ConstraintMaker>(tokenizer())) {}

int64_t ServedModel::wanted_bytes(const EngineSpec& spec) const {
  return Engine::wanted_bytes(model_.config(), model_.dtype(), spec);
}

void ServedModel::start(EngineSpec spec) {
  const ModelConfig& config = model_.config();
  spec.tokenizer = &tokenizer();
  engine_ = std::make_unique<Engine>(config, model_.params(), backend_, spec);
  tokenizer_info_ = describe_tokenizer(model_.source().tokenizer(), tokenizer(), context());
  if (context() < config.context && spec.context == 0)
    context_note_ = fmt::format("the context is {} tokens: the model's {} do not fit in memory",
                                context(), config.context);
}

std::string start_engines(std::span<const NamedModel> models, const Backend& backend,
                          const EngineSpec& spec) {
  MemoryBudget budget =
      spec.memory_bytes ? MemoryBudget(spec.memory_bytes) : MemoryBudget::for_engine(backend);
  std::vector<int64_t> wanted;
  for (const NamedModel& m : models) wanted.push_back(m.model->wanted_bytes(spec));
  const std::vector<int64_t> shares = fair_shares(budget.bytes(), wanted);
  for (size_t i = 0; i < models.size(); ++i) {
    EngineSpec own = spec;
    own.memory_bytes = std::max<int64_t>(shares[i], 1);
    try {
      models[i].model->start(own);
    } catch (const Error& e) {
      if (models.size() == 1) throw;
      fail(models[i].name, "this model does not fit beside the others: {}", e.what());
    }
    budget.reserve(models[i].name, shares[i]);
  }
  return budget.describe();
}

}  // namespace hearth::inline serve
