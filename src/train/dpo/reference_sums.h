// Log-probabilities of preference pairs under the reference model. They are either computed once
// and cached in a file of the run folder, with a key of weights and data, or computed live: from a
// second set of weights, or from the weights in training with their adapters off.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/examples/batches.h"
#include "model/files/folder.h"
#include "train/logprob_programs.h"

namespace hearth::inline train {

// Log-probabilities of a pair, summed over the tokens of each completion.
struct PairSums {
  double chosen = 0, rejected = 0;
};

// A batch of pairs, with the chosen and the rejected completion in separate rows, and the sums of
// the log-probabilities that the model returned for such a batch.
TokenBatch lay_out_pairs(std::span<const Preference* const> pairs, int64_t max_length,
                         bool few = false);
std::vector<PairSums> sums_of(std::span<const Preference* const> pairs,
                              std::span<const float> logprobs);

class LiveReference {
 public:
  // Loads separate weights.
  LiveReference(const ModelSource&, Backend&, LogprobProgramsSpec, int64_t max_length);
  // Uses the base of the model in training: the same store, without the adapters.
  LiveReference(Memory&, LogprobProgramsSpec, int64_t max_length);
  std::vector<PairSums> sums(std::span<const Preference* const> pairs);

 private:
  std::unique_ptr<ParamStore> params_;  // null with adapters
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<LogprobPrograms> programs_;
  int64_t max_length_;
  bool few_;  // see common_length()
};

// Identifies the sums: the model_digest() of the reference, the tokens, and the dtype of the
// computation.
std::string reference_key(const std::string& model, std::span<const Preference> data, DType);

// The file of a run that holds the sums computed so far. It is a cache: sums that it lacks are
// computed again. Checkpoints identify the reference model and the data of a run.
class ReferenceFile {
 public:
  // A file with another key is ignored.
  ReferenceFile(std::filesystem::path, std::string key);
  void save() const;

  std::vector<PairSums> sums;  // of the first pairs of the data

 private:
  std::filesystem::path path_;
  std::string key_;
};

}  // namespace hearth::inline train
