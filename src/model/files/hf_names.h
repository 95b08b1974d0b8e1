// The tensors of a model file and the rows of hearth's packed parameters each of them holds: one
// list, read from left to right to load and from right to left to save.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace hearth {

enum class HfType : uint8_t { gpt2, llama, qwen3, hearth };
inline std::span<const std::string_view> names_of(HfType) {
  static constexpr auto names =
      std::to_array<std::string_view>({"gpt2", "llama", "qwen3", "hearth"});
  return names;
}

// The layout whose config.json can say all of this config that changes the model's numbers.
HfType hf_type(const ModelConfig&);
HfType hf_type_from_json(const nlohmann::json&, const std::string& where);

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string param;        // empty: a bias the layout demands and this model has not, all zeros
  int64_t row = 0;          // its first row in `param`
  bool transposed = false;  // (in, out) in the file, (out, in) here
  // Rows of heads of this size whose rotary pairs the file has the other way; 0: as is.
  int64_t head_dim = 0;
  bool interleaved = false;  // so in the file, half-split here; else the reverse
};

struct FileLayout {
  HfType type = HfType::hearth;
  bool conv1d = true;  // gpt2: matrices are (in, out)
  // Of q and k rows in the file, whatever the model's own are; nothing: those.
  std::optional<RopePairs> pairs = RopePairs::half;
};

// `config` is resolved. Tensors of one parameter follow each other.
std::vector<FileTensor> file_tensors(const ModelConfig& config, const FileLayout&);

// Buffers that files of this layout carry and nobody needs: causal masks, rope frequencies.
bool is_buffer(HfType, std::string_view name);

// What all names but the head's begin with; files of the bare model leave it out.
std::string_view name_prefix(HfType);

}  // namespace hearth
