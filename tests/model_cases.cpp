#include "model_cases.h"

namespace hearth::cases {
namespace {

ModelConfig base() {
  ModelConfig c;
  c.vocab = 19, c.context = 12, c.layers = 2, c.dim = 16, c.heads = 4, c.kv_heads = 2;
  c.hidden = 20;
  c.init_std = 0.3f;
  return c;
}

template <class F>
ModelCase variant(const char* name, F change) {
  ModelCase m{name, base()};
  change(m.config);
  return m;
}

ModelCase with_documents(ModelCase m) {
  m.documents = true;
  return m;
}

void gpt2_like(ModelConfig& c) {
  c.position = Position::learned, c.kv_heads = 0;
  c.norm = Norm::layer, c.norm_bias = true, c.norm_eps = 1e-5f;
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.act = Act::gelu_tanh;
}

void neox_like(ModelConfig& c) {
  c.norm = Norm::layer, c.norm_bias = true, c.norm_eps = 1e-5f, c.kv_heads = 0;
  c.qkv_bias = c.out_bias = c.mlp_bias = c.parallel_residual = true;
  c.act = Act::gelu_erf, c.rotary = 0.5f, c.tied = false;
}

void olmo2_like(ModelConfig& c) {
  c.norm_place = NormPlace::after, c.qk_norm = QkNorm::before_rope, c.qk_norm_whole = true;
}

void gemma3_like(ModelConfig& c) {
  c.embed_scale = 4, c.act = Act::geglu_tanh, c.norm_place = NormPlace::sandwich;
  c.qk_norm = QkNorm::before_rope, c.head_dim = 6, c.score_scale = 0.5f, c.layers = 3;
  c.window = 3, c.window_pattern = "SSL", c.rope_pattern = "LLR", c.rope_local_theta = 50;
}

void latent(ModelConfig& c) {
  c.kv_heads = 0, c.mla = {.kv_latent = 10, .nope_dim = 3, .rope_dim = 4}, c.v_head_dim = 5;
  c.rope_pairs = RopePairs::interleaved;
}

std::vector<ModelCase> make_cases() {
  using C = ModelConfig;
  return {
      variant("llama", [](C&) {}),
      variant("gpt2", gpt2_like),
      variant("nocap",
              [](C& c) {
                c.kv_heads = 0, c.rope_reverse = true, c.norm_gain = false, c.act = Act::gelu_erf;
                c.attention_scale = 0.35f, c.init = WeightInit::fan_in;
              }),
      variant("qwen3", [](C& c) { c.qk_norm = QkNorm::before_rope, c.head_dim = 6; }),
      variant("nanochat",
              [](C& c) {
                c.qk_norm = QkNorm::after_rope, c.qk_norm_gain = false, c.norm_gain = false;
                c.act = Act::relu2, c.logit_softcap = 3, c.tied = false;
              }),
      variant("qk_norm_before_plain",
              [](C& c) {
                c.qk_norm = QkNorm::before_rope, c.qk_norm_gain = false,
                c.rope_pairs = RopePairs::interleaved;
              }),
      variant("qk_norm_after_gain", [](C& c) { c.qk_norm = QkNorm::after_rope, c.kv_heads = 4; }),
      variant("qk_norm_without_rope",
              [](C& c) { c.qk_norm = QkNorm::before_rope, c.position = Position::none; }),
      variant(
          "qk_norm_whole",
          [](C& c) { c.qk_norm = QkNorm::before_rope, c.qk_norm_whole = true, c.qkv_bias = true; }),
      with_documents(variant("qk_norm_whole_values",
                             [](C& c) {
                               c.qk_norm = QkNorm::before_rope, c.qk_norm_whole = true;
                               c.qk_norm_gain = false, c.rope_pairs = RopePairs::interleaved;
                               c.v_head_dim = 7, c.value_residual = true, c.layers = 3;
                               c.rope_pattern = "RNR";
                             })),
      variant("rope_pattern",
              [](C& c) {
                c.layers = 4, c.rope_pattern = "RLN", c.rope_local_theta = 30;
                c.rope_scaling = RopeScaling::linear, c.rope_factor = 2, c.rotary = 0.5f;
              }),
      variant("local_ropes",
              [](C& c) { c.rope_pattern = "LN", c.window = 3, c.qk_norm = QkNorm::after_rope; }),
      variant("gpt_neox", neox_like),
      variant("parallel_sandwich",
              [](C& c) {
                c.parallel_residual = true, c.norm_place = NormPlace::sandwich;
                c.attention_scale = 0.7f, c.dropout_residual = 0.2f;
              }),
      variant("parallel_attention_free",
              [](C& c) {
                c.parallel_residual = true, c.layers = 3, c.mixer_pattern = "AN";
                c.dropout_residual = 0.2f;
              }),
      variant("olmo2", olmo2_like),
      variant("after_parallel",
              [](C& c) {
                c.norm_place = NormPlace::after, c.parallel_residual = true;
                c.attention_scale = 0.6f, c.dropout_residual = 0.2f;
              }),
      variant("gemma", [](C& c) { c.embed_scale = 4, c.act = Act::geglu_tanh, c.head_dim = 6; }),
      variant("gemma2",
              [](C& c) {
                c.embed_scale = 4, c.act = Act::geglu_tanh, c.norm_place = NormPlace::sandwich;
                c.attention_softcap = 1.5f, c.logit_softcap = 2, c.score_scale = 0.4f;
                c.window = 3, c.window_pattern = "SL";
              }),
      with_documents(variant("gemma3", gemma3_like)),
      variant("embed_scale_smear",
              [](C& c) { c.embed_scale = 2.5f, c.smear = true, c.bigram_embeds = 13; }),
      variant("mqa", [](C& c) { c.kv_heads = 1; }),
      variant("post_norm", [](C& c) { gpt2_like(c), c.norm_place = NormPlace::post; }),
      variant("post_norm_scaled",
              [](C& c) { c.norm_place = NormPlace::post, c.attention_scale = 0.5f; }),
      variant("sandwich",
              [](C& c) { c.norm_place = NormPlace::sandwich, c.attention_scale = 0.7f; }),
      variant("no_final_norm", [](C& c) { c.final_norm = false, c.norm = Norm::layer; }),
      variant("layer_norm_plain", [](C& c) { c.norm = Norm::layer, c.norm_gain = false; }),
      variant("window", [](C& c) { c.window = 2, c.window_pattern = "SL"; }),
      variant(
          "long_window",
          [](C& c) { c.window = 2, c.long_window = 4, c.window_pattern = "LSS", c.layers = 3; }),
      variant("wide_values", [](C& c) { c.v_head_dim = 7, c.qk_norm = QkNorm::before_rope; }),
      variant("narrow_values",
              [](C& c) {
                gpt2_like(c), c.v_head_dim = 3, c.output_gate = OutputGate::elementwise;
                c.dropout_attention = 0.2f;
              }),
      with_documents(variant("wide_values_documents",
                             [](C& c) {
                               c.v_head_dim = 9, c.kv_heads = 1, c.window = 3;
                               c.layers = 3, c.mixer_pattern = "AN";
                             })),
      variant("lora_wide_values",
              [](C& c) {
                c.v_head_dim = 6, c.output_gate = OutputGate::per_head;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("attention_free", [](C& c) { c.layers = 3, c.mixer_pattern = "NA", c.window = 4; }),
      variant("attention_free_post",
              [](C& c) {
                gpt2_like(c), c.layers = 3, c.mixer_pattern = "ANN";
                c.norm_place = NormPlace::post;
              }),
      variant("softcaps", [](C& c) { c.attention_softcap = 1.5f, c.logit_softcap = 2; }),
      variant("scales",
              [](C& c) {
                c.score_scale = 0.9f, c.logit_scale = 0.6f, c.logit_softcap = 2;
                c.embed_norm = c.zero_projections = c.zero_head = true, c.tied = false;
                c.embed_std = 0.7f;
              }),
      variant("x0_skip", [](C& c) { c.x0_skip = true, c.layers = 3; }),
      variant("u_skips",
              [](C& c) {
                c.u_skips = true, c.layers = 4, c.norm_place = NormPlace::post;
                c.dropout_embed = 0.2f;
              }),
      with_documents(variant("skips",
                             [](C& c) {
                               c.x0_skip = c.u_skips = c.embed_norm = true, c.layers = 6;
                               c.mixer_pattern = "AAANAA", c.norm_gain = false;
                             })),
      variant("lora_skips",
              [](C& c) {
                c.x0_skip = c.u_skips = true, c.layers = 4;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("value_embeds",
              [](C& c) { c.value_embeds = 2, c.layers = 5, c.qk_norm = QkNorm::before_rope; }),
      variant("value_embeds_gpt2",
              [](C& c) { gpt2_like(c), c.value_embeds = 1, c.v_head_dim = 3, c.embed_std = 0.5f; }),
      variant("value_residual",
              [](C& c) { c.value_residual = true, c.layers = 3, c.mixer_pattern = "NAA"; }),
      with_documents(variant("all_values",
                             [](C& c) {
                               c.value_residual = c.x0_skip = c.u_skips = true, c.layers = 4;
                               c.value_embeds = 2, c.qk_norm = QkNorm::after_rope, c.rotary = 0.5f;
                               c.qk_norm_gain = c.norm_gain = false, c.act = Act::relu2;
                             })),
      variant("lora_values",
              [](C& c) {
                c.value_embeds = 1, c.value_residual = true;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("smear", [](C& c) { c.smear = c.embed_norm = true; }),
      with_documents(
          variant("smear_documents", [](C& c) { c.smear = c.x0_skip = true, c.tied = false; })),
      with_documents(variant("bigrams", [](C& c) { c.bigram_embeds = 13; })),
      variant("bigrams_gpt2", [](C& c) { gpt2_like(c), c.bigram_embeds = 40; }),
      variant("lora_bigrams",
              [](C& c) {
                c.bigram_embeds = 7, c.smear = true;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("key_offset", [](C& c) { c.rotary = 0.5f, c.key_offset_pattern = "O"; }),
      with_documents(variant("key_offset_values",
                             [](C& c) {
                               c.qk_norm = QkNorm::after_rope, c.rotary = 0.5f, c.layers = 4;
                               c.key_offset_pattern = "NO", c.window_pattern = "SL", c.window = 3;
                               c.value_embeds = 1, c.value_residual = c.smear = true;
                               c.kv_heads = 1, c.v_head_dim = 7, c.dropout_attention = 0.2f;
                             })),
      variant("lora_key_offset",
              [](C& c) {
                c.rope_pairs = RopePairs::interleaved, c.head_dim = 6, c.rotary = 1 / 3.f;
                c.key_offset_pattern = "O", c.mixer_pattern = "AN", c.layers = 3, c.mtp = 1;
                c.qk_norm = QkNorm::before_rope, c.qk_norm_whole = true, c.kv_heads = 4;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("small_gate", [](C& c) { c.output_gate = OutputGate::per_head, c.gate_inputs = 5; }),
      variant("small_gate_post",
              [](C& c) {
                c.output_gate = OutputGate::elementwise, c.gate_inputs = 8;
                c.norm_place = NormPlace::post, c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("gate", [](C& c) { c.output_gate = OutputGate::elementwise; }),
      variant("gate_per_head", [](C& c) { c.output_gate = OutputGate::per_head, c.kv_heads = 1; }),
      variant("geglu", [](C& c) { c.act = Act::geglu, c.mlp_bias = true; }),
      variant("reglu", [](C& c) { c.act = Act::reglu, c.tied = false, c.out_bias = true; }),
      variant(
          "interleaved_partial",
          [](C& c) { c.rope_pairs = RopePairs::interleaved, c.rotary = 0.5f, c.qkv_bias = true; }),
      variant(
          "alibi",
          [](C& c) { c.position = Position::alibi, c.heads = 6, c.kv_heads = 3, c.head_dim = 4; }),
      variant("relative",
              [](C& c) {
                c.position = Position::relative, c.heads = 6, c.kv_heads = 3, c.head_dim = 4;
                c.relative_buckets = 4, c.relative_distance = 5;
              }),
      with_documents(variant("relative_documents",
                             [](C& c) {
                               c.position = Position::relative, c.window = 4,
                               c.window_pattern = "SL";
                               c.relative_buckets = 2, c.relative_distance = 3;
                               c.attention_softcap = 2, c.tied = false;
                             })),
      variant("lora_relative",
              [](C& c) { c.position = Position::relative, c.lora = {.rank = 2, .alpha = 3}; }),
      variant("no_positions", [](C& c) { c.position = Position::none; }),
      variant("rope_linear",
              [](C& c) {
                c.rope_scaling = RopeScaling::linear, c.rope_factor = 2, c.rope_context = 6;
              }),
      variant("rope_yarn",
              [](C& c) {
                c.rope_scaling = RopeScaling::yarn, c.rope_factor = 4, c.rope_context = 6,
                c.rope_high = 32;
              }),
      variant("rope_llama3",
              [](C& c) {
                c.rope_scaling = RopeScaling::llama3, c.rope_factor = 4, c.rope_context = 6;
              }),
      variant("rope_long_factors",
              [](C& c) {
                c.rope_scaling = RopeScaling::longrope, c.rope_factor = 4, c.rope_context = 6;
                c.rope_short_factors = "1,1.5", c.rope_long_factors = "1.25,9";
              }),
      variant("rope_short_factors",
              [](C& c) {
                c.rope_scaling = RopeScaling::longrope, c.rope_context = 64;
                c.rope_attention_factor = 1.5f;
                c.rope_short_factors = "1,1.5", c.rope_long_factors = "1.25,9";
                c.rope_pairs = RopePairs::interleaved, c.qk_norm = QkNorm::before_rope;
              }),
      variant("dropouts",
              [](C& c) {
                c.dropout_embed = 0.1f, c.dropout_attention = 0.2f, c.dropout_residual = 0.3f;
                c.dropout_mlp = 0.25f;
              }),
      variant("dropouts_post",
              [](C& c) {
                gpt2_like(c), c.norm_place = NormPlace::post;
                c.dropout_embed = c.dropout_attention = c.dropout_residual = c.dropout_mlp = 0.2f;
              }),
      with_documents(variant("documents", [](C& c) { c.window = 3, c.window_pattern = "LS"; })),
      with_documents(variant("documents_learned", gpt2_like)),
      variant("mla", latent),
      variant("mla_q_latent",
              [](C& c) {
                latent(c), c.mla.q_latent = 7, c.qkv_bias = c.out_bias = true;
                c.rope_pairs = RopePairs::half, c.layers = 3;
                c.rope_scaling = RopeScaling::yarn, c.rope_factor = 4, c.rope_context = 6;
                c.rope_high = 32, c.mla.yarn_mscale = 0.7f, c.mla.yarn_mscale_all = 1.3f;
              }),
      with_documents(variant("mla_documents",
                             [](C& c) {
                               latent(c), c.v_head_dim = 7, c.window = 3, c.window_pattern = "SL";
                               c.rope_pattern = "NR", c.output_gate = OutputGate::per_head;
                               c.rope_reverse = true, c.tied = false, c.attention_softcap = 2;
                             })),
      variant("mla_moe",
              [](C& c) {
                latent(c), c.layers = 3, c.dropout_attention = 0.2f, c.norm = Norm::layer;
                c.moe.experts = c.moe.top_k = 3, c.moe.shared_experts = 1;
                c.moe.first_dense_layers = 1, c.moe.router = Router::sigmoid;
              }),
      variant("lora_mla",
              [](C& c) {
                latent(c), c.mla.q_latent = 5;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("lora_mla_some",
              [](C& c) {
                latent(c), c.norm = Norm::layer;
                c.lora = {.rank = 2, .alpha = 3, .targets = {"kv_b"}};
              }),
      variant("mtp", [](C& c) { c.mtp = 1, c.qk_norm = QkNorm::before_rope; }),
      with_documents(variant("mtp_three",
                             [](C& c) {
                               c.mtp = 3, c.tied = false, c.embed_scale = 2, c.mixer_pattern = "AN";
                               c.dropout_residual = 0.2f, c.x0_skip = true, c.layers = 3;
                             })),
      variant("mtp_mla_moe", [](C& c) { latent(c), c.mtp = 2, c.moe.experts = c.moe.top_k = 2; }),
      variant("lora_mtp", [](C& c) { c.mtp = 1, c.lora = {.rank = 2, .alpha = 3}; }),
      variant("moe", [](C& c) { c.moe.experts = 4; }),
      variant("moe_all", [](C& c) { c.moe.experts = c.moe.top_k = 3, c.moe.norm_topk = false; }),
      variant("moe_shared",
              [](C& c) {
                c.layers = 3, c.moe.experts = 6, c.moe.shared_experts = 2, c.moe.expert_hidden = 10;
                c.moe.first_dense_layers = 1, c.moe.router = Router::sigmoid;
                c.moe.router_bias = true, c.moe.router_scale = 2.5f;
                c.moe.expert_groups = 3, c.moe.top_groups = 2;
              }),
      variant("moe_switch",
              [](C& c) {
                c.moe.experts = 3, c.moe.top_k = 1, c.moe.router = Router::switch_top1;
                c.act = Act::relu2, c.dropout_residual = 0.25f, c.tied = false;
              }),
      with_documents(variant("moe_pattern",
                             [](C& c) {
                               c.layers = 4, c.moe.experts = 5, c.moe.top_k = 3;
                               c.moe.expert_pattern = "ED", c.moe.norm_topk = false, c.tied = false;
                               c.norm_place = NormPlace::post, c.dropout_residual = 0.2f;
                             })),
      variant("moe_sandwich",
              [](C& c) {
                c.moe.experts = 4, c.norm_place = NormPlace::sandwich, c.act = Act::gelu_tanh;
              }),
      variant("lora_moe",
              [](C& c) {
                c.moe.experts = c.moe.top_k = 2, c.moe.shared_experts = 1;
                c.lora = {.rank = 2, .alpha = 3};
              }),
      variant("lora_experts",
              [](C& c) {
                c.moe.experts = 4, c.moe.shared_experts = 1;
                c.lora = {.rank = 3, .alpha = 4, .targets = {"all-linear", "experts"}};
              }),
      variant("lora_experts_eight",
              [](C& c) {
                c.moe.experts = 4;
                c.lora = {.rank = 8, .alpha = 16, .targets = {"experts"}};
              }),
      variant("lora_experts_some",
              [](C& c) {
                c.moe.experts = 3;
                c.lora = {.rank = 2, .alpha = 6, .targets = {"experts.w3", "experts.w2"}};
              }),
      variant("lora", [](C& c) { c.lora = {.rank = 3, .alpha = 4}; }),
      variant("lora_gpt2",
              [](C& c) {
                gpt2_like(c), c.dropout_mlp = c.dropout_residual = 0.2f;
                c.lora = {.rank = 2, .alpha = 3, .dropout = 0.25f};
              }),
      variant("lora_some",
              [](C& c) {
                c.rope_pairs = RopePairs::interleaved, c.tied = false;
                c.lora = {.rank = 1,
                          .alpha = 0.7f,
                          .rslora = true,
                          .targets = {"v_proj", "up_proj", "q_proj"}};
              }),
      with_documents(
          variant("lora_qwen3",
                  [](C& c) {
                    c.qk_norm = QkNorm::before_rope, c.head_dim = 6;
                    c.lora = {.rank = 4, .alpha = 4, .targets = {"mlp.down_proj", "k_proj"}};
                  })),
      variant("lora_gate",
              [](C& c) {
                c.output_gate = OutputGate::elementwise, c.norm_place = NormPlace::sandwich;
                c.attention_scale = 0.7f, c.act = Act::relu2, c.qkv_bias = true;
                c.lora = {.rank = 2, .alpha = 6, .rslora = true};
              }),
      variant("lora_gpt_neox", [](C& c) { neox_like(c), c.lora = {.rank = 2, .alpha = 3}; }),
      variant("lora_olmo2", [](C& c) { olmo2_like(c), c.lora = {.rank = 2, .alpha = 3}; }),
      variant("lora_gemma3", [](C& c) { gemma3_like(c), c.lora = {.rank = 2, .alpha = 3}; }),
      variant("lora_phi3",
              [](C& c) {
                c.layout = "phi3", c.rope_pairs = RopePairs::interleaved;
                c.lora = {.rank = 2, .alpha = 3, .targets = {"qkv_proj", "gate_up_proj"}};
              }),
      variant("lora_post",
              [](C& c) {
                gpt2_like(c), c.norm_place = NormPlace::post, c.attention_scale = 0.5f;
                c.lora = {.rank = 2, .alpha = 4, .targets = {"up"}};
              }),
  };
}

}  // namespace

const std::vector<ModelCase>& model_cases() {
  static const std::vector<ModelCase> all = make_cases();
  return all;
}

}  // namespace hearth::cases
