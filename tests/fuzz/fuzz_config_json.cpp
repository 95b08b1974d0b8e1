#include "formats/json.h"
#include "fuzz.h"
#include "model/files/folder.h"

int fuzz_config_json(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto config = hearth::config_from_hf_json(
        hearth::parse_json(hearth::fuzz::text_of(data, size), "fuzz"), "fuzz");
    // What is taken can be written and read back as the same model.
    const std::string text = hearth::hf_config_json(config, hearth::DType::f32, -1, -1);
    hearth::fuzz::require(hearth::config_from_hf_json(hearth::parse_json(text, "again"), "again") ==
                          config);
  });
}

hearth::fuzz::Seeds seeds_config_json() {
  hearth::fuzz::Seeds seeds;
  for (const char* name : {"gpt2", "tiny"}) {
    const hearth::ModelConfig config = hearth::preset(name).resolve();
    seeds.push_back(hearth::hf_config_json(config, hearth::DType::f32, 1, 2));
  }
  seeds.push_back(R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false})");
  // The last of very many layers alone sees a window.
  seeds.push_back(R"({"model_type": "qwen3", "vocab_size": 320, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 10000, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
    "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 9999})");
  return seeds;
}
