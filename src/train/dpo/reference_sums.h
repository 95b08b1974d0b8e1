// Log-probabilities of preferences under the reference model: computed once and kept in a file of
// the run folder that knows which weights and which data it is of, or live: from a second set of
// weights, or from those in training with their adapters off.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/files/folder.h"
#include "train/examples/batches.h"

namespace hearth::inline train {

// Of a pair, summed over the tokens of each completion.
struct PairSums {
  double chosen = 0, rejected = 0;
};

// A batch of pairs, chosen and rejected in rows of their own, and the sums of what came back for
// it.
TokenBatch lay_out_pairs(std::span<const Preference* const> pairs, int64_t max_length,
                         bool few = false);
std::vector<PairSums> sums_of(std::span<const Preference* const> pairs,
                              std::span<const float> logprobs);

class LiveReference {
 public:
  // Weights of its own.
  LiveReference(const ModelSource&, Backend&, LogprobProgramsSpec, int64_t max_length);
  // The base of the model in training: that store, without its adapters.
  LiveReference(Memory&, LogprobProgramsSpec, int64_t max_length);
  std::vector<PairSums> sums(std::span<const Preference* const> pairs);

 private:
  std::unique_ptr<ParamStore> params_;  // none beside adapters
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<LogprobPrograms> programs_;
  int64_t max_length_;
  bool few_;  // as common_length() takes it
};

// What the sums are of: the files of the model, the tokens, and the dtype they were computed in.
std::string reference_key(const ModelSource&, std::span<const Preference> data, DType);

// The file of a run that knows which reference it has, and what that said so far, pair by pair.
class ReferenceFile {
 public:
  // A file of another model or other data is an error where the run has begun, and else nobody's.
  ReferenceFile(std::filesystem::path, std::string key, bool begun);
  void save() const;

  std::vector<PairSums> sums;  // of the first pairs

 private:
  std::filesystem::path path_;
  std::string key_;
};

}  // namespace hearth::inline train
