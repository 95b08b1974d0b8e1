// Log-probabilities of preference pairs under the reference model, and the file of the run folder
// that caches them, with a key of weights and data.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "data/examples/batches.h"

namespace hearth::inline train {

// Log-probabilities of a pair, summed over the tokens of each completion.
struct PairSums {
  double chosen = 0, rejected = 0;
};

// The sums of the log-probabilities that the model returned for a batch of lay_out_pairs().
std::vector<PairSums> sums_of(std::span<const Preference* const> pairs,
                              std::span<const float> logprobs);

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
