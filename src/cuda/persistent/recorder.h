// Recorder: turns the kernels that a decode program launches into the phases of the persistent
// kernel. It stands in for the backend's kernels and notes their arguments; a program with a kernel
// or a choice that the persistent kernel does not have is refused, and runs kernel by kernel. Plain
// host code, so that its tests run without a GPU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "cuda/persistent/phase.h"

namespace hearth::cuda::persistent {

// A recorded step. `step` still lacks its phases, wires and number, which have memory of their own.
struct StepPlan {
  std::vector<Phase> phases;
  Step step;
  int64_t packets = 0;               // of all wires
  std::optional<SampleArgs> sample;  // what follows the step
};

struct RecorderLimits {
  int blocks = 1;            // of the kernel
  int64_t shared_bytes = 0;  // of a block
  int64_t control_bytes = 0;
};

class Recorder : public Stream {
 public:
  explicit Recorder(const RecorderLimits& limits) : limits_(limits) {}
  // The kernels to record with; their stream is the recorder itself.
  static const Kernels& kernels();
  // The plan of what was recorded, or nothing if it was refused.
  std::optional<StepPlan> finish();
  // Why it was refused: the first reason.
  const std::string& refusal() const { return refusal_; }
  // Whether it was a decode step of few rows, one of each sequence, in the first place.
  bool decodes_few_rows() const { return few_rows_; }

  void embed(const EmbedArgs&);
  void norm(const NormArgs&);
  void gemm(const GemmArgs&);
  void norm_gemm(const NormGemmArgs&);
  bool gemm_glu(const GemmGluArgs&);
  void activation(const ActivationArgs&);
  void qk_norm_rope(const QkNormRopeArgs&);
  void attention_cached(const AttentionCachedArgs&);
  void sample(const SampleArgs&);
  void refuse(std::string why);

 private:
  // Phases that are over, once a packet of a wire is there: up to `finished`, all blocks have read
  // all that they read there; up to `joined`, they have joined the splits of attention. -1: none.
  struct Known {
    int finished = -1, joined = -1;
  };
  // What a range of memory holds: the rows of a wire, before what a later kernel did to them.
  struct Value {
    Tensor tensor;
    Wire wire;
    bool of_attention = false;
    Known known = {};
    std::optional<NormArgs> norm = {};
    std::optional<QkNormRopeArgs> turn = {};
  };
  // Packets of a wire, which a later phase may use again.
  struct Region {
    uint32_t at;
    int64_t packets;
    int last_read;
  };
  struct Product {
    Tensor c, x, w, bias, prior;
    std::optional<NormArgs> norm;  // of x: kind, eps, gain and shift
    float alpha = 1;
    Act act = Act::none;
    bool glu = false;
  };
  bool recording();
  bool expect(bool holds, const char* what);
  bool plain(const Tensor&, const char* what);  // bf16 at a multiple of 16 bytes
  const Value* find(const Tensor&) const;
  const Value* source(const Tensor&, const char* reader);
  Known known_of_all(const Value&) const;
  void read(const Wire&);
  void define(Value);
  void forget(const Tensor&);
  uint32_t reserve(int64_t packets, const Known&);
  uint32_t append(int64_t packets);
  void product(const Product&);
  bool check(const Product&, const Value& x);
  bool check(const AttentionCachedArgs&);
  bool check_layouts(const AttentionCachedArgs&);
  void check_memory();
  bool set_turn(AttentionPhase&, const QkNormRopeArgs&);
  bool set_tables(const AttentionCachedArgs&);

  RecorderLimits limits_;
  StepPlan plan_;
  std::vector<Value> values_;
  std::vector<Region> regions_;
  std::string refusal_;
  bool embedded_ = false, few_rows_ = false, ended_ = false;
  int last_attention_ = -1;
  Tensor logits_;
  int64_t part_packets_ = 0;
  int64_t largest_entry_ = 0, work_bytes_ = 0;
};

}  // namespace hearth::cuda::persistent
