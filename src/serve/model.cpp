#include "serve/model.h"

#include <algorithm>

#include "formats/json.h"
#include "infer/generation_config.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

Tokenizer tokenizer_of(const ModelSource& source) {
  if (source.tokenizer().empty())
    fail(source.path().string(), "expected a model with a tokenizer, got none beside it");
  return Tokenizer::load(source.tokenizer());
}

int64_t longest_of(const Tokenizer& t) {
  size_t longest = 1;
  for (int32_t id = 0; id < t.vocab_size(); ++id) try {
      longest = std::max(longest, t.bytes_of(id).size());
    } catch (const Error&) {}  // an id that stands for nothing
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

ServedModel::ServedModel(const ModelPaths& paths, Backend& backend, const ServedWeights& weights,
                         EngineSpec spec)
    : ServedModel(ModelSource::open(paths.model, paths.adapter), backend, weights, spec) {}

ServedModel::ServedModel(const ModelSource& source, Backend& backend, const ServedWeights& weights,
                         EngineSpec spec)
    : tokenizer_(tokenizer_of(source)),
      chat_(source.tokenizer(), tokenizer_),
      longest_token_(longest_of(tokenizer_)),
      params_(backend, decoder_params(source.config(), weights.format), weights.dtype) {
  if (const fs::path dir = generation_folder(source); !dir.empty())
    ends_ = generation_ends(dir, tokenizer_);
  source.load(params_);
  spec.tokenizer = &tokenizer_;
  engine_ = std::make_unique<Engine>(source.config(), params_, backend, spec);
  tokenizer_info_ = describe_tokenizer(source.tokenizer(), tokenizer_, context());
  if (context() < source.config().context && spec.context == 0)
    context_note_ = fmt::format("a context of {} tokens: the model's {} do not fit in memory",
                                context(), source.config().context);
}

}  // namespace hearth
