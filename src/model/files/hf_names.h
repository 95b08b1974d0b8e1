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

enum class HfType : uint8_t { gpt2, llama, qwen3, hearth };
inline std::span<const std::string_view> names_of(HfType) {
  static constexpr auto names =
      std::to_array<std::string_view>({"gpt2", "llama", "qwen3", "hearth"});
  return names;
}

// The layout whose config.json can express everything in this config that affects the output.
HfType hf_type(const ModelConfig&);
HfType hf_type_from_json(const nlohmann::json&, const std::string& where);

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string param;        // empty: a bias required by the layout but absent here: zeros
  int64_t row = 0;          // first row in `param`
  bool transposed = false;  // (in, out) in the file, (out, in) here
  // Size of heads whose rotary pairs are stored in the other order in the file; 0: same order.
  int64_t head_dim = 0;
  bool interleaved = false;  // interleaved in the file, half-split here; else the reverse
};

struct FileLayout {
  HfType type = HfType::hearth;
  bool conv1d = true;  // gpt2: matrices are (in, out)
  // The pair order of q and k rows in the file; nothing: the model's own order.
  std::optional<RopePairs> pairs = RopePairs::half;
};

// `config` must be resolved. Tensors of one parameter are consecutive.
std::vector<FileTensor> file_tensors(const ModelConfig& config, const FileLayout&);

// Buffers in files of this layout that are not needed: causal masks, rope frequencies.
bool is_buffer(HfType, std::string_view name);

// The prefix of all names except the head's; files of the bare model omit it.
std::string_view name_prefix(HfType);

}  // namespace hearth::inline model
