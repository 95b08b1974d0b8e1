// The tensors of a model file and the rows of hearth's packed parameters that each holds: one list,
// used for both loading and saving.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace hearth::inline model {

// Values of model_type, in the order in which a model tries them; hearth takes every model.
enum class HfType : uint8_t {
  gpt2,
  llama,
  qwen2,
  qwen3,
  mistral,
  smollm3,
  gpt_neox,
  olmo2,
  gemma,
  gemma2,
  gemma3_text,
  phi3,
  mixtral,
  qwen3_moe,
  deepseek_v3,
  hearth
};
inline std::span<const std::string_view> names_of(HfType) {
  static constexpr auto names = std::to_array<std::string_view>(
      {"gpt2", "llama", "qwen2", "qwen3", "mistral", "smollm3", "gpt_neox", "olmo2", "gemma",
       "gemma2", "gemma3_text", "phi3", "mixtral", "qwen3_moe", "deepseek_v3", "hearth"});
  return names;
}

// The layout whose config.json can express everything in this config that affects the output: the
// one that the config names, else the first.
HfType hf_type(const ModelConfig&);
// What keeps a model whose hf_type is hearth out of the layout that it resembles most, such as
// "llama cannot express position = alibi". Empty: unknown.
std::string why_own_layout(const ModelConfig&);
HfType hf_type_from_json(const nlohmann::json&, const std::string& where);

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string param;        // empty: a bias required by the layout but absent here: zeros
  int64_t row = 0;          // first row in `param`
  bool transposed = false;  // (in, out) in the file, (out, in) here
  // The row of `param`, counted from `row` on, that each row of the file is; empty: the same.
  std::vector<int64_t> order = {};
  float offset = 0;   // added to the file's values
  bool copy = false;  // repeats rows of `param` that another tensor holds

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    return n;
  }
  // Whether the bytes of the file are those of the parameter's rows.
  bool same_layout() const { return !transposed && order.empty() && offset == 0; }
};

struct FileLayout {
  HfType type = HfType::hearth;
  bool conv1d = true;  // gpt2: matrices are (in, out)
  // The pair order of q and k rows in the file; nothing: the model's own order.
  std::optional<RopePairs> pairs = RopePairs::half;
  bool gain_offset = true;  // gemma: the file's gains lack the 1 that the model adds to them
  bool by_head = true;      // gpt_neox: q, k and v of one head after another
  // The pair order of rotated rows of latent attention; nothing: the model's own order.
  std::optional<RopePairs> latent_pairs = {};
};

// `config` must be resolved. Tensors of one parameter are consecutive, except copies.
std::vector<FileTensor> file_tensors(const ModelConfig& config, const FileLayout&);

// Buffers in files of this layout that are not needed: causal masks, rope frequencies.
bool is_buffer(HfType, std::string_view name);
// Whether a tensor of a llama-like layout belongs to a layer after the last, as those of
// deepseek_v3's modules of multi-token prediction do.
bool is_past_layers(std::string_view name, int64_t layers);

// The prefix of all names except the head's; files of the bare model omit it.
std::string_view name_prefix(HfType);
std::string_view head_name(HfType);  // the tensor of an untied head

}  // namespace hearth::inline model
