// LoadedModel: a model for inference only. It holds the weights in the form that inference reads,
// without masters, gradients or optimizer state, together with the tokenizer and the tokens that
// end a text. Every command that runs a model loads it here.
#pragma once

#include <optional>
#include <vector>

#include "core/params.h"
#include "model/files/folder.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline infer {

// The type of weights and activations, and how matrices are stored.
struct WeightsSpec {
  DType dtype = DType::f32;
  WeightFormat format = WeightFormat::plain;
};

class LoadedModel {
 public:
  // The backend must outlive the model.
  LoadedModel(ModelSource, Backend&, const WeightsSpec&);

  const ModelSource& source() const { return source_; }
  const ModelConfig& config() const { return source_.config(); }
  ParamStore& params() { return params_; }
  DType dtype() const { return params_.dtype(); }
  // Throws if the model has none.
  const Tokenizer& tokenizer() const;
  // Tokens that end a text according to the model's files, in addition to the tokenizer's own.
  const std::vector<int32_t>& ends() const { return ends_; }

 private:
  ModelSource source_;
  ParamStore params_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<int32_t> ends_;
};

}  // namespace hearth::inline infer
