#include "model/files/hf_keys.h"

namespace hearth::inline model {

using nlohmann::ordered_json;

ModelConfig read_gpt2(const Keys& k) {
  ModelConfig c;
  c.vocab = k.get<int64_t>("vocab_size");
  c.context = k.get<int64_t>("n_positions", k.get<int64_t>("n_ctx", 1024));
  c.dim = k.get<int64_t>("n_embd");
  c.layers = k.layers("n_layer");
  c.heads = k.get<int64_t>("n_head");
  c.hidden = k.get<int64_t>("n_inner", 0);
  c.position = Position::learned;
  c.norm = Norm::layer, c.norm_bias = true;
  c.norm_eps = k.get<float>("layer_norm_epsilon", 1e-5f);
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.act = read_act(k, "activation_function", "gelu_new", gpt_acts);
  c.tied = k.get<bool>("tie_word_embeddings", true);
  c.dropout_embed = k.get<float>("embd_pdrop", 0.1f);
  c.dropout_attention = k.get<float>("attn_pdrop", 0.1f);
  c.dropout_residual = k.get<float>("resid_pdrop", 0.1f);
  c.init_std = k.get<float>("initializer_range", 0.02f);
  k.only("scale_attn_weights", true);
  k.only("scale_attn_by_inverse_layer_idx", false);
  k.only("add_cross_attention", false);
  return c;
}

ordered_json write_gpt2(const ModelConfig& c) {
  return {{"vocab_size", c.vocab},
          {"n_positions", c.context},
          {"n_ctx", c.context},
          {"n_embd", c.dim},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_inner", c.hidden},
          {"activation_function", act_name(c.act, gpt_acts)},
          {"layer_norm_epsilon", plain(c.norm_eps)},
          {"embd_pdrop", plain(c.dropout_embed)},
          {"attn_pdrop", plain(c.dropout_attention)},
          {"resid_pdrop", plain(c.dropout_residual)},
          {"initializer_range", plain(c.init_std)},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", c.tied}};
}

ModelConfig read_gpt_neox(const Keys& k) {
  ModelConfig c;
  c.vocab = k.get<int64_t>("vocab_size");
  c.context = k.get<int64_t>("max_position_embeddings", 2048);
  c.dim = k.get<int64_t>("hidden_size");
  c.layers = k.layers("num_hidden_layers");
  c.heads = k.get<int64_t>("num_attention_heads");
  c.hidden = k.get<int64_t>("intermediate_size");
  c.norm = Norm::layer, c.norm_bias = true;
  c.norm_eps = k.get<float>("layer_norm_eps", 1e-5f);
  c.parallel_residual = k.get<bool>("use_parallel_residual", true);
  c.qkv_bias = c.out_bias = k.get<bool>("attention_bias", true);
  c.mlp_bias = true;
  c.act = read_act(k, "hidden_act", "gelu", gpt_acts);
  c.tied = k.get<bool>("tie_word_embeddings", false);
  c.dropout_embed = c.dropout_residual = k.get<float>("hidden_dropout", 0);
  c.dropout_attention = k.get<float>("attention_dropout", 0);
  c.init_std = k.get<float>("initializer_range", 0.02f);
  read_rope(c, k,
            {.theta = k.get<double>("rotary_emb_base", 1e4),
             .rotary = k.get<double>("rotary_pct", 0.25),
             .partial = true});
  return c;
}

ordered_json write_gpt_neox(const ModelConfig& c) {
  ordered_json j{{"vocab_size", c.vocab},
                 {"max_position_embeddings", c.context},
                 {"hidden_size", c.dim},
                 {"intermediate_size", c.hidden},
                 {"num_hidden_layers", c.layers},
                 {"num_attention_heads", c.heads},
                 {"hidden_act", act_name(c.act, gpt_acts)},
                 {"layer_norm_eps", plain(c.norm_eps)},
                 {"use_parallel_residual", c.parallel_residual},
                 {"attention_bias", c.qkv_bias || c.out_bias},
                 {"hidden_dropout", plain(c.dropout_residual)},
                 {"attention_dropout", plain(c.dropout_attention)},
                 {"initializer_range", plain(c.init_std)},
                 {"tie_word_embeddings", c.tied},
                 {"rotary_pct", plain(c.rotary)},
                 {"rotary_emb_base", c.rope_theta}};
  write_rope(j, c);
  j.erase("rope_theta");  // rotary_emb_base
  j["rope_parameters"]["partial_rotary_factor"] = plain(c.rotary);
  return j;
}

}  // namespace hearth::inline model
