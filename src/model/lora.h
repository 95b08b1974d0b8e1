// Low-rank adapters beside frozen matrices: which modules have them, how they are recorded and how
// they are merged. hearth packs q, k, v (and gate, up) into one matrix. The adapters of a matrix
// are one pair of parameters: <matrix>.lora_A (modules * rank, in), the stacked A of all modules,
// and <matrix>.lora_B (rows of all modules, rank). The matrices of experts are stacked too, so all
// experts of a layer have one pair, sorted by expert.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tape.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

// One module with its name in files, for instance "model.layers.0.self_attn.q_proj".
struct LoraModule {
  std::string path, matrix;  // in the file; our parameter: "blocks.0.attn.qkv"
  int64_t row = 0;           // its first row in the matrix
  int64_t out = 0, in = 0;
  int64_t a_row = 0, b_row = 0;  // its first rows in lora_A and lora_B
  FileTensor b = {};             // the rows of its B, in the file's order
};
using LoraMatrices = std::map<std::string, std::vector<LoraModule>, std::less<>>;  // by matrix

void check_lora(const LoraSpec&, std::string_view where);  // checks the ranges of the fields
// The modules that config.lora names; throws if a target matches none.
LoraMatrices lora_matrices(const ModelConfig&);
// The names that config.lora may use for this model, without layer prefixes.
std::vector<std::string> lora_target_names(const ModelConfig&);
// The targets of config.lora as PEFT names them: without all-linear, and with the numbers of
// experts.
std::vector<std::string> lora_file_targets(const ModelConfig&);
// The reverse for a list in a file, which may name modules of other models too.
struct LoraTargetsInFile {
  std::vector<std::string> targets;
  std::function<bool(const std::string&)> has_experts;  // whether the file adapts it in experts
};
std::vector<std::string> lora_targets_of_file(const ModelConfig&, const LoraTargetsInFile&);
// Whether a target names any module of this model.
bool is_lora_target(const ModelConfig&, std::string_view target);
bool is_adapter(std::string_view param);
// Whether the model's own parameters are trained, which they are not with adapters.
inline bool trains_base(const ModelConfig& c) { return !c.lora; }

struct AdapterScale {
  int64_t rank = 1;
  float scale = 1;
};
// y + scale B A x, for the modules of the current scope's matrix; declares lora_A and lora_B.
Var adapted(Tape&, Var y, Var x, std::span<const LoraModule>, const AdapterScale&);
// The parameters of the current scope's matrix of `parts` equal parts, which experts are: lora_A,
// and lora_B with a column block for each module of a part.
struct AdapterParams {
  Var a, b;
};
AdapterParams adapter_params(Tape&, int64_t out, int64_t in, std::span<const LoraModule>,
                             int64_t rank, int64_t parts = 1);

// Initialises every adapter: A uniform within 1 / sqrt(in), B zero, so that training starts at the
// base.
void start_adapters(ParamStore&, uint64_t seed);
// Adds scale B A to the weights of the base, in a store that holds both.
void merge_adapters(const ModelConfig&, ParamStore&);

// The settings of adapters in commands and run configs.
struct LoraConfig {
  std::string lora;
  std::vector<std::string> lora_targets = {"all-linear"};

  template <class V>
  void visit(V&& v) {
    v("lora", lora, "train only LoRA adapters: rank[,alpha[,dropout]]; alpha defaults to 2 rank");
    v("lora_targets", lora_targets,
      "modules that get adapters: names such as q_proj,v_proj; all-linear: all but experts; "
      "experts: the matrices of all experts");
  }
  LoraSpec spec() const;  // rank 0 when `lora` is empty
  // For methods that train without dropout: throws if there is any.
  void expect_no_dropout(std::string_view method) const;
};

}  // namespace hearth::inline model
