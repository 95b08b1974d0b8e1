// Runner: the model's forward programs over one paged KV cache. A step feeds rows, each a token of
// a sequence. Programs are recorded when first needed, one per bucket of rows, and share weights,
// cache and arena. If the device samples, launches alternate between two sets of inputs and
// outputs, so that transfers of one overlap with the run of the other.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/fp8.h"
#include "core/program_cache.h"
#include "infer/module_runner.h"
#include "infer/rope_rows.h"
#include "infer/sampler.h"
#include "model/config.h"

namespace hearth::inline infer {

// The input of a step. The rows of a sequence are consecutive, ordered by position.
struct Feed {
  bool follows = false;  // tokens are those sampled by the previous launch, row by row
  std::vector<int32_t> tokens, positions, sequences;  // per row; sequences are numbered from 0
  // Rows whose logits are read, ascending; one that several samples draw from is repeated.
  std::vector<int32_t> wanted;
  std::vector<std::optional<SampleControls>>
      draws;                 // per wanted row: how the device samples; none: the host does
  std::vector<char> scores;  // per wanted row: whether log-probabilities are needed
  // Per wanted row: the tokens that a constrained draw on the device allows, if they are known at
  // the launch; else Runner::draw gets them.
  std::vector<AllowedTokens> allowed;
  std::vector<std::span<const int32_t>> tables;  // cache blocks of each sequence

  bool masks() const;   // whether the device draws under constraints
  bool pauses() const;  // whether the step waits for them before it draws
  void clear();
};

class Runner {
 public:
  Runner(const ModelConfig&, ParamStore&, Backend&, const RunnerSpec&);

  // Whether the device samples; if not, the host must draw every token of a feed.
  bool draws() const;
  bool draws_any_token() const { return spec_.vocab == config_.vocab; }
  // Runs the model over a feed, after earlier launches. collect() then waits for the oldest launch.
  // A launch with rows for the host must be collected before the next one.
  void launch(const Feed&);
  // After the launch of a feed that pauses, and before anything else: draws its tokens from those
  // that `allowed` names.
  void draw(const Feed&);
  void collect(const Feed&);
  void drop_launches() { collected_ = launched_; }  // they will not be collected
  // The logits of the i-th wanted row of the last collected launch, after the model's softcap. Not
  // available if the device sampled from it.
  std::span<const float> logits(int64_t i) const {
    return std::span(logits_).subspan(size_t(i * wide_), size_t(config_.vocab));
  }
  const Drawn& drawn(int64_t i) const { return drawn_[size_t(i)]; }
  // For a row with scores that the host samples from; none under a softcap.
  std::optional<LogSum> log_sum(int64_t i) const { return sums_[size_t(i)]; }
  // Log-probability of a token after the i-th wanted row at a temperature, bit-identical to
  // training.
  float logprob(int64_t i, int32_t token, float temperature);
  bool softcaps() const { return config_.logit_softcap > 0; }
  size_t programs() const { return programs_.size(); }  // recorded and not dropped
  // Launches of programs that still had to be recorded, to choose kernels or to be captured.
  int64_t cold_launches() const;
  // With modules, when no launch is in flight: runs one of them over rows whose states are cached,
  // and returns the likeliest token after each wanted row.
  std::vector<int32_t> run_module(const ModuleFeed&);
  // Copies a block before the next launch.
  void copy_block(int32_t from, int32_t to);

  // Bytes of one cache block over all layers, and over modules that draft; bytes of everything else
  // that a step of this size needs.
  static int64_t block_bytes(const ModelConfig&, DType, CacheFormat = CacheFormat::plain,
                             int64_t modules = 0);
  static int64_t step_bytes(const ModelConfig&, DType, const RunnerSpec&);

 private:
  // What a program is recorded for: a step, the log-sums of rows of logits, or log-probabilities at
  // a temperature.
  struct Key {
    enum class Kind : uint8_t { step, log_sums, logprobs } kind;
    StepShape shape = {};  // log_sums: only its logits
    size_t turn = 0;
    bool masks = false;
    float temperature = 0;
    auto operator<=>(const Key&) const = default;
  };
  Exec& program(const Key&);
  Tape record(const Key&) const;
  void upload(const Feed&, const StepShape&, size_t turn);
  void upload_masks(const Feed&, size_t turn);
  void copy_blocks();
  StepShape shape_of(const Feed&) const;
  bool absorbs() const;
  int64_t deep_rows(const Backend&) const;
  void find_caches();
  void score(const Feed&);

  ModelConfig config_;  // resolved
  RunnerSpec spec_;
  Memory memory_;
  RopeRows rope_;
  int64_t wide_;  // columns of the logits: vocabulary rounded up to tiles
  struct ConstantMask {
    const uint32_t* bits = nullptr;  // null: none
    std::vector<int32_t> also = {};
    bool operator==(const ConstantMask&) const = default;
  };
  // Values that programs share, each bound when the first program that has it is recorded. They
  // belong to no single program, so they stay when the cache drops one.
  struct Turn {
    StateRef<int32_t> inputs;
    StateRef<int32_t> drawn;    // if the device samples
    StateRef<int32_t> allowed;  // if it does so under constraints
    bool undrawn = false;       // its last launch pauses: nothing was drawn, no transfer begun
    // What each row of `allowed` holds, if that is constant.
    std::vector<ConstantMask> kept = {};
  };
  std::array<Turn, 2> turns_;
  StateRef<float> device_logits_, nll_;
  StateRef<int32_t> targets_;
  std::vector<Tensor> caches_;  // of the layers that keep something
  ProgramCache<Key> programs_;
  std::unique_ptr<ModuleRunner> modules_;            // null: no modules draft
  std::vector<std::pair<int32_t, int32_t>> copies_;  // pending block copies
  std::vector<int32_t> inputs_, masks_;
  std::array<std::unique_ptr<Transfer>, 2> arrivals_;  // transfers of sampled tokens, by turn
  size_t launched_ = 0, collected_ = 0;
  int64_t cold_ = 0;           // launches of programs of its own that had not run twice
  std::vector<float> logits_;  // (wanted, wide) of the last collected launch
  std::vector<Drawn> drawn_;   // (wanted)
  std::vector<std::optional<LogSum>> sums_;  // (wanted)
};

}  // namespace hearth::inline infer
