#include "formats/json.h"
#include "fuzz.h"
#include "model/files/adapter.h"

int fuzz_adapter_json(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto read = [](std::string_view text) {
      return hearth::adapter_from_json(hearth::parse_json(text, "fuzz"), "fuzz");
    };
    const hearth::AdapterConfig config = read(hearth::fuzz::text_of(data, size));
    // What is taken can be written and read back as the same adapter.
    const hearth::AdapterConfig again = read(hearth::adapter_config_json(config, false));
    hearth::fuzz::require(again.base == config.base);
    hearth::fuzz::require(again.lora == config.lora);
  });
}

hearth::fuzz::Seeds seeds_adapter_json() {
  hearth::LoraSpec spec{.rank = 8, .alpha = 12.5f, .dropout = 0.05f, .rslora = true};
  return {hearth::adapter_config_json({spec, "base"}, true),
          R"({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "bias": "none",
    "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "use_dora": false,
    "base_model_name_or_path": "meta/llama", "megatron_core": "megatron.core",
    "loftq_config": {}, "peft_version": "0.18.0", "init_lora_weights": true, "r_pattern": null})",
          R"({"peft_type": "LORA", "r": 4, "target_modules": "all-linear", "use_rslora": true})"};
}
