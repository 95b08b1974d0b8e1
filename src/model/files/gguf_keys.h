// The keys of a GGUF model and the config that they mean, in both directions. Internal to
// gguf_*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/gguf.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

constexpr std::string_view rope_freqs = "rope_freqs.weight";

// llama.cpp's name of a layout; empty: it has none, or none that computes the same.
std::string_view gguf_architecture(HfType);
HfType gguf_type(const GgufTable&);  // an unknown architecture is an error

// Also checks the factors of Llama 3's RoPE, if the file has them.
ModelConfig read_gguf_config(const GgufTable&);

// The layout under which llama.cpp computes this model; an error says why there is none.
HfType exportable(const ModelConfig&);
// Whether llama.cpp computes GELU by its tanh form where the model has the exact one. The family
// was trained so, and llama.cpp's own converter writes such files.
bool computes_other_gelu(const ModelConfig&, HfType);
// The keys that say what the model is.
void put_config(GgufKeys&, const ModelConfig&, HfType);
std::vector<float> rope_factors(const ModelConfig&);  // of Llama 3's rule
// Whether files of this model have the factors of RoPE as a tensor.
bool has_rope_factors(const ModelConfig&, HfType);

// --- gguf_expert_keys.cpp ---
// `arch` is the prefix of the keys, such as "llama.". Readers add Hugging Face's keys to the json.
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
