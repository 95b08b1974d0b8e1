#include "infer/loaded_model.h"

#include "model/decoder.h"
#include "model/files/answer_ends.h"
#include "sys/error.h"

namespace hearth::inline infer {

LoadedModel::LoadedModel(ModelSource source, Backend& backend, const WeightsSpec& weights)
    : source_(std::move(source)),
      params_(backend, frozen(decoder_params(source_.config(), weights.format)), weights.dtype) {
  if (!source_.tokenizer().empty()) tokenizer_ = Tokenizer::load(source_.tokenizer());
  if (tokenizer_) ends_ = answer_ends_of(source_, nullptr, *tokenizer_);
  source_.load(params_);
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (!tokenizer_)
    fail(source_.path().string(),
         "this model has no tokenizer; add its tokenizer.json to the folder");
  return *tokenizer_;
}

}  // namespace hearth::inline infer
