// Low-rank adapters beside frozen matrices: which modules they stand at, how they are recorded and
// how they are merged. hearth packs q, k, v (and gate, up) into one matrix: the adapters of one
// matrix lie in one pair of parameters, <matrix>.lora_A (modules * rank, in), their A one below the
// other, and <matrix>.lora_B (rows of all modules, rank).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tape.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

// One module as its file names it, for instance "model.layers.0.self_attn.q_proj".
struct LoraModule {
  std::string path, matrix;  // of the file, and of our parameter: "blocks.0.attn.qkv"
  int64_t row = 0;           // first of its rows in the matrix
  int64_t out = 0, in = 0;
  int64_t a_row = 0, b_row = 0;  // where it begins in lora_A and lora_B
  FileTensor b = {};             // the rows of its B, in the file's order
};
using LoraMatrices = std::map<std::string, std::vector<LoraModule>, std::less<>>;  // by matrix

void check_lora(const LoraSpec&, std::string_view where);  // ranges of its numbers
// The modules that config.lora names, which must be some.
LoraMatrices lora_matrices(const ModelConfig&);
// The names config.lora may use for this model, without their layers.
std::vector<std::string> lora_target_names(const ModelConfig&);
// Whether a target names any module of this model.
bool is_lora_target(const ModelConfig&, std::string_view target);
bool is_adapter(std::string_view param);
// Whether the model's own parameters are trained: not beside adapters.
inline bool trains_base(const ModelConfig& c) { return !c.lora; }

struct AdapterScale {
  int64_t rank = 1;
  float scale = 1;
};
// y + scale B A x, for the modules of the current scope's matrix; declares lora_A and lora_B.
Var adapted(Tape&, Var y, Var x, std::span<const LoraModule>, const AdapterScale&);

// Draws every adapter: A uniform within 1 / sqrt(in), B zero, so that training starts at the base.
void start_adapters(ParamStore&, uint64_t seed);
// Adds scale B A to the weights of the base, in the store that holds both.
void merge_adapters(const ModelConfig&, ParamStore&);

// How commands and run configs say it: two fields among those they visit.
struct LoraConfig {
  std::string lora;
  std::vector<std::string> lora_targets = {"all-linear"};

  template <class V>
  void visit(V&& v) {
    v("lora", lora, "train only LoRA adapters: rank[,alpha[,dropout]]; alpha defaults to 2 rank");
    v("lora_targets", lora_targets,
      "modules that get adapters: names such as q_proj,v_proj, or all-linear");
  }
  LoraSpec spec() const;  // rank 0 when `lora` is empty
};

}  // namespace hearth::inline model
