// The keys of a GGUF model and the config that they mean, in both directions. Internal to
// gguf_*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf/gguf.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

constexpr std::string_view rope_freqs = "rope_freqs.weight",
                           rope_short_factors = "rope_factors_short.weight",
                           rope_long_factors = "rope_factors_long.weight";

// llama.cpp's name of a layout; empty: it has none, or none that computes the same.
std::string_view gguf_architecture(HfType);
HfType gguf_type(const GgufTable&);  // an unknown architecture is an error

// Also checks the factors of RoPE, if the file has them.
ModelConfig read_gguf_config(const GgufTable&);

// The layout under which llama.cpp computes this model; an error says why there is none.
HfType exportable(const ModelConfig&);
// Whether llama.cpp computes GELU by its tanh form where the model has the exact one. The family
// was trained so, and llama.cpp's own converter writes such files.
bool computes_other_gelu(const ModelConfig&, HfType);
// The keys that say what the model is.
void put_config(GgufKeys&, const ModelConfig&, HfType);

// --- gguf_rope_keys.cpp ---
// `arch` is the prefix of the keys, such as "llama.".
nlohmann::json read_rope_keys(const GgufTable&, const std::string& arch);  // as rope_parameters
bool has_long_rope(const GgufTable&, const std::string& arch);
// In files of longrope: one factor for each pair of rotated dims.
void expect_factor_tensors(const GgufTable&, const std::string& arch, int64_t rotated);
void check_rope_factors(const GgufTable&, const ModelConfig&);  // of Llama 3's rule
// Throws for a model that llama.cpp would compute otherwise; `name` is its architecture.
void check_rope(const ModelConfig&, HfType, std::string_view name);
void put_rope(GgufKeys&, const ModelConfig&, const std::string& arch);
// The tensors of factors that files of this model have.
std::vector<std::pair<std::string_view, std::vector<float>>> rope_tensors(const ModelConfig&,
                                                                          HfType);

// --- gguf_expert_keys.cpp ---
// Readers add Hugging Face's keys to the json.
void read_expert_keys(nlohmann::json&, const GgufTable&, const std::string& arch, HfType);
void read_latent_keys(nlohmann::json&, const GgufTable&, const std::string& arch);
// Whether a deepseek2 has one tensor for keys and one for values, as all but old files have.
bool has_split_keys(const GgufTable&);
// Throw for a model that llama.cpp would compute otherwise.
void check_experts(const ModelConfig&, HfType);
void check_latents(const ModelConfig&);
void put_experts(GgufKeys&, const ModelConfig&, HfType, const std::string& arch);
void put_latents(GgufKeys&, const ModelConfig&, const std::string& arch);

}  // namespace hearth::inline model
