// ModuleDrafter: drafts tokens with the modules of multi-token prediction. Module k (from 0) at a
// position reads the token k + 1 further and predicts the one after it, so the D modules propose D
// tokens after the last one. For more, the states of the first module stand for those of the model
// at the next position, and the modules run there again.
#pragma once

#include "infer/runner.h"
#include "infer/sequence.h"

namespace hearth::inline infer {

class ModuleDrafter {
 public:
  ModuleDrafter(const RunnerSpec& spec, int64_t drafts, Runner& runner, BlockPool& pool)
      : spec_(spec), drafts_(drafts), runner_(runner), pool_(pool) {}

  // The rows of a sequence in a step.
  struct Fed {
    Sequence* seq;
    int64_t from, rows;
  };
  // After a step, before its tokens are drawn: modules read the rows whose next tokens are known,
  // which are those of prompts. Samples of a prompt then share what was computed.
  void fill(std::span<const Fed>);
  // After tokens were drawn: Sequence::proposal of every sequence that got one and wants drafts.
  void propose(std::span<Sequence* const>);

 private:
  struct Proposal {
    Sequence* seq;
    int64_t count;                      // wanted
    std::vector<int32_t> guesses = {};  // of the tokens after those of the sequence

    int32_t token(int64_t i) const {
      return i < seq->size() ? seq->tokens[size_t(i)] : guesses[size_t(i - seq->size())];
    }
  };
  int64_t first_row(const Sequence&, int64_t module) const;
  void add_row(ModuleFeed&, const Proposal&, int64_t position, int64_t level, int64_t from) const;
  void propose_some(std::span<Proposal>);
  void read_tokens(std::span<Proposal>);
  void guess_further(std::span<Proposal*>, int64_t ahead);
  void run(const ModuleFeed&, std::span<Proposal* const>);

  const RunnerSpec spec_;
  const int64_t drafts_;
  Runner& runner_;
  BlockPool& pool_;
};

}  // namespace hearth::inline infer
