// Runner: the model's forward programs over one paged KV cache. A step feeds rows, each a token of
// some sequence; programs are recorded when first needed, one per bucket of rows, and share
// weights, cache and arena with each other. Where the device draws, launches take turns with two
// sets of inputs and outputs, so that those of one can be on their way while another runs.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/exec.h"
#include "core/fp8.h"
#include "infer/rope_rows.h"
#include "infer/sampler.h"
#include "model/config.h"

namespace hearth {

struct RunnerSpec {
  int64_t rows = 1;       // most tokens of a step
  int64_t logits = 1;     // most of them whose logits are wanted
  int64_t sequences = 1;  // most sequences they are of
  int64_t context = 1;    // most tokens of a sequence
  int64_t blocks = 1;     // of the cache
  CacheFormat cache = CacheFormat::plain;
  int64_t vocab = 0;  // tokens that may be drawn
};

// What a step feeds. The rows of a sequence lie together, in the order of their positions.
struct Feed {
  bool follows = false;  // tokens are those the device draws in the launch before, row by row
  std::vector<int32_t> tokens, positions, sequences;  // of each row; sequences count up from 0
  std::vector<int32_t> wanted;                        // rows whose logits are read
  std::vector<std::optional<SampleControls>> draws;   // how the device draws from each; none: host
  std::vector<char> scores;                           // whether log-probabilities of it are wanted
  std::vector<std::span<const int32_t>> tables;       // blocks of each sequence

  void clear();
};

// What a program of the model is made for.
struct StepShape {
  int64_t rows, logits;  // both rounded up: rows, and rows whose logits are wanted
  bool all = false;      // these are the same, in order
  bool apart = false;    // row n is of sequence n
  auto operator<=>(const StepShape&) const = default;
};

class Runner {
 public:
  Runner(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&);

  // Whether the device draws; where not, a feed may leave nothing to it.
  bool draws() const;
  bool draws_any_token() const { return spec_.vocab == config_.vocab; }
  // Runs the model over a feed, behind what was launched before. Then collect() waits for the
  // oldest launch; only one that leaves nothing to the host may have another behind it.
  void launch(const Feed&);
  void collect(const Feed&);
  void drop_launches() { collected_ = launched_; }  // nobody collects them
  // What follows the i-th wanted row of the launch collected last, after the model's softcap. Not
  // there when the device drew from it.
  std::span<const float> logits(int64_t i) const {
    return std::span(logits_).subspan(size_t(i * wide_), size_t(config_.vocab));
  }
  const Drawn& drawn(int64_t i) const { return drawn_[size_t(i)]; }
  // Of a row with scores that the host draws from; none under a softcap.
  std::optional<LogSum> log_sum(int64_t i) const { return sums_[size_t(i)]; }
  // Of a token after the i-th wanted row, with the logits over a temperature: the bits of training.
  float logprob(int64_t i, int32_t token, float temperature);
  bool softcaps() const { return config_.logit_softcap > 0; }
  // Before the next launch.
  void copy_block(int32_t from, int32_t to);

  // Bytes of one block of the cache over all layers; of everything else a step of this size needs.
  static int64_t block_bytes(const ModelConfig&, DType, CacheFormat = CacheFormat::plain);
  static int64_t step_bytes(const ModelConfig&, DType, const RunnerSpec&);

 private:
  Exec& program(const StepShape&, size_t turn);
  void upload(const Feed&, const StepShape&, size_t turn);
  void copy_blocks();
  StepShape shape_of(const Feed&) const;
  void score(const Feed&);

  ModelConfig config_;  // resolved
  RunnerSpec spec_;
  Memory memory_;
  RopeRows rope_;
  int64_t wide_;  // columns of the logits: the vocabulary in whole tiles
  std::map<std::pair<StepShape, size_t>, std::unique_ptr<Exec>> programs_;  // and by turn
  std::vector<std::pair<int32_t, int32_t>> copies_;                         // of blocks, to be made
  std::vector<int32_t> inputs_;
  std::array<std::unique_ptr<Transfer>, 2> arrivals_;  // of what was drawn, by turns
  size_t launched_ = 0, collected_ = 0;
  std::vector<float> logits_;                         // (wanted, wide) of the launch collected last
  std::vector<Drawn> drawn_;                          // (wanted)
  std::vector<std::optional<LogSum>> sums_;           // (wanted)
  std::map<int64_t, std::unique_ptr<Exec>> scorers_;  // by rows
  std::map<float, std::unique_ptr<Exec>> logprobs_;   // by temperature
};

// The rows of the program that runs `rows` rows: powers of two, so that few programs serve all.
int64_t bucket(int64_t rows, int64_t most);

}  // namespace hearth
