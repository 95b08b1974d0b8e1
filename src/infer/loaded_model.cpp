#include "infer/loaded_model.h"

#include "infer/generation_config.h"
#include "model/decoder.h"
#include "sys/error.h"
#include "text/chat/chat_template.h"

namespace hearth::inline infer {

LoadedModel::LoadedModel(ModelSource source, Backend& backend, const WeightsSpec& weights)
    : source_(std::move(source)),
      params_(backend, frozen(decoder_params(source_.config(), weights.format)), weights.dtype) {
  if (!source_.tokenizer().empty()) tokenizer_ = Tokenizer::load(source_.tokenizer());
  const std::filesystem::path dir = generation_folder(source_);
  if (tokenizer_) ends_ = generation_ends(dir.empty() ? source_.path() : dir, *tokenizer_);
  source_.load(params_);
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (!tokenizer_)
    fail(source_.path().string(),
         "this model has no tokenizer; add its tokenizer.json to the folder");
  return *tokenizer_;
}

}  // namespace hearth::inline infer
