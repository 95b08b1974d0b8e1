// The batches that a pretraining run validates on.
#pragma once

#include <functional>

#include "data/loader.h"

namespace hearth::inline data {

// The default number of validation tokens: forward passes over 64 steps' worth of tokens cost about
// as much as 20 training steps on any machine. A power of two, at most 2^20. It follows from the
// settings alone and not from a measured speed, so that one command always gives one log.
int64_t default_eval_tokens(int64_t tokens_per_step);

struct ValidationSpec {
  int64_t tokens = 0;            // at most
  bool whole_documents = false;  // rows do not cross documents
};

// Calls use(batch) until it returns false or the requested number of tokens is reached, at most
// once over the files. Files that are too short for a full batch come in batches with masked
// targets.
void each_validation_batch(const LoaderSpec&, const ValidationSpec&,
                           const std::function<bool(const Batch&)>& use);

}  // namespace hearth::inline data
